/** The modules and steps of findings, and their groups. */

import { callName, readName } from "../data/names";
import type { Finding, Series } from "../data/records";
import { type CallGraph, type Node, push } from "../graph/calls";

export interface Lead {
  readonly path: string;
  readonly series: Series | undefined;
  /** Undefined if the module never ran. */
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
 * Findings of one kind and one step, in the order in which they were found: the first one is where it began,
 * and the others mostly follow from it.
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

/** The first and last step of a problem; undefined if unknown. */
export function stepsOf(group: readonly Finding[]): readonly [number, number] | undefined {
  const firsts = group.flatMap(({ first_step, step }) => first_step ?? step ?? []);
  if (!firsts.length) return undefined;
  const lasts = group.flatMap(({ last_step, step }) => last_step ?? step ?? []);
  const first = Math.min(...firsts);
  return [first, Math.max(first, ...lasts)];
}

/** The findings at a module and below it. */
export interface Problems {
  /** The worst one here or below. */
  readonly worst: Finding;
  /** The number of problems here, and including all below; infos are not counted. */
  readonly here: number;
  readonly total: number;
}

/** The problems of each module that has any, and of all modules around it: one event counts once. */
export function problemsByPath(all: readonly Finding[]): ReadonlyMap<string, Problems> {
  const found = new Map<string, { worst: Finding; here: number; total: number }>();
  for (const group of together(all)) {
    const isProblem = group[0]!.severity !== "info";
    const counted = new Set<string>();
    for (const path of new Set(group.map((one) => one.path ?? ""))) {
      const finding = group.find((one) => (one.path ?? "") === path)!;
      for (const above of around(path)) {
        const known = found.get(above) ?? { worst: finding, here: 0, total: 0 };
        if (isProblem && above === path) known.here += 1;
        if (isProblem && !counted.has(above)) known.total += 1;
        counted.add(above);
        found.set(above, known);
      }
    }
  }
  return found;
}

/** A path and all paths above it, up to the model's own. */
function around(path: string): string[] {
  const parts = path ? path.split(".") : [];
  return ["", ...parts.map((_, at) => parts.slice(0, at + 1).join("."))];
}

/** The worst problem that begins at each step, in the order of steps. */
export function beginnings(all: readonly Finding[]): readonly (readonly [number, Finding])[] {
  const found = new Map<number, Finding>();
  for (const group of together(all.filter(({ severity }) => severity !== "info"))) {
    const first = stepsOf(group)?.[0];
    if (first !== undefined && !found.has(first)) found.set(first, group[0]!);
  }
  return [...found].sort(([one], [other]) => one - other);
}
