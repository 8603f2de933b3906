/** What findings are about, and which of them belong together. */

import { callName, readName } from "../data/names";
import type { Finding, Series } from "../data/records";
import { type CallGraph, type Node, push } from "../graph/calls";

export interface Lead {
  readonly path: string;
  readonly series: Series | undefined;
  /** Undefined where the module was never seen running. */
  readonly call: Node | undefined;
  readonly op: Node | undefined;
}

export function leadOf(finding: Finding, all: readonly Series[], among: CallGraph | null): Lead {
  const label = finding.series ?? finding.facts?.["series"];
  const about = all.find(({ path, name }) => [path, name].filter(Boolean).join(".") === label);
  const path = finding.path || about?.path || "";
  const calls = (among?.calls(path) ?? []).map((id) => among!.node(id));
  const wanted = finding.call || (about ? readName(about.name).call : 1);
  const call = calls.find(({ number }) => number === wanted || callName(number) === wanted) ?? calls[0];
  const op = insideOf(among, call).find(({ kind, name }) => kind === "op" && name === finding.op);
  return { path, series: about, call, op };
}

function insideOf(among: CallGraph | null, call: Node | undefined): Node[] {
  return (call?.children ?? []).map((id) => among!.node(id));
}

const SEVERITIES = ["error", "warning", "info"] as const;

/**
 * What is of one kind and was found at one step, in the order in which it was found: the first one is where
 * it began, and the others mostly follow from it.
 */
export function together(all: readonly Finding[]): Finding[][] {
  const groups = new Map<string, Finding[]>();
  for (const severity of SEVERITIES) {
    for (const one of all) {
      if (one.severity !== severity) continue;
      push(groups, one.step === undefined ? String(groups.size) : JSON.stringify([severity, one.kind, one.step]), one);
    }
  }
  return [...groups.values()];
}
