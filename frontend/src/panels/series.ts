/** Which series belong to a pinned node, in the order in which they are read. */

import type { Series } from "../data/records";
import type { Node } from "../graph/calls";
import { comparedRuns } from "../state/state";

/** A plot is made anew when it is about another series, or compared with others. */
export function keyOf({ id }: Series): string {
  return [id, ...comparedRuns.value].join(" ");
}

/** A quantity, and its gradient beside it. */
export interface Pair {
  readonly value: Series | undefined;
  readonly gradient: Series | undefined;
}

export interface Section {
  readonly title: string;
  readonly pairs: readonly Pair[];
}

const GRADIENTS = [".grad_norm", ".grad"];

/** The series at a node: all of a call, one place of an input or output, one attached tensor. */
export function seriesOf(node: Node, all: readonly Series[]): readonly Series[] {
  const here = all.filter((one) => one.path === node.path);
  if (node.kind === "call") return here;
  const root = { input: "input", output: "output", attached: "", op: "" }[node.kind];
  const name = [root, node.name].filter(Boolean).join(".");
  return here.filter((one) => [name, root].includes(plainName(one.name)));
}

/** A name without what stands around it: "eval:output.grad" is about "output". */
function plainName(name: string): string {
  const bare = name.replace(/^eval:/, "");
  const suffix = GRADIENTS.find((one) => bare.endsWith(one)) ?? (bare.endsWith(".update") ? ".update" : "");
  return bare.slice(0, bare.length - suffix.length);
}

/** The series of a node in sections: what goes in and out, then what the module holds. */
export function sectionsOf(series: readonly Series[], isParameter: (name: string) => boolean): readonly Section[] {
  const pairs = new Map<string, { value?: Series; gradient?: Series; more: Series[] }>();
  for (const one of series) {
    const prefix = one.name.startsWith("eval:") ? "eval:" : "";
    const key = prefix + plainName(one.name);
    const pair = pairs.get(key) ?? { more: [] };
    if (GRADIENTS.some((suffix) => one.name.endsWith(suffix))) {
      if (pair.gradient) pair.more.push(one);
      else pair.gradient = one;
    } else if (one.name.endsWith(".update")) pair.more.push(one);
    else pair.value = one;
    pairs.set(key, pair);
  }
  const titled: [string, (name: string) => boolean][] = [
    ["Inputs", (name) => /^input(\.|$)/.test(name)],
    ["Outputs", (name) => /^output(\.|$)/.test(name)],
    ["Parameters", isParameter],
    ["In evaluation", (name) => name.startsWith("eval:")],
    ["Other", () => true],
  ];
  const sections = titled.map(([title]) => ({ title, pairs: [] as Pair[] }));
  for (const [name, { value, gradient, more }] of pairs) {
    const section = sections[titled.findIndex(([, belongs]) => belongs(name))]!;
    if (value || gradient) section.pairs.push({ value, gradient });
    more.forEach((one) => section.pairs.push({ value: one, gradient: undefined }));
  }
  return sections.filter((section) => section.pairs.length);
}
