/** Titles, subtitles and tooltips of boxes. */

import { formatBytes, formatExact, formatShape } from "../data/formats";
import { kindOf, type Model } from "../data/model";
import type { Module, TensorSpec } from "../data/records";
import type { Node } from "./calls";
import type { Item, Link } from "./levels";

export interface Words {
  readonly title: string;
  readonly subtitle: string;
}

/** The module of a node: the called one, or the one around it. */
export function moduleOf(model: Model, node: Node): Module | undefined {
  const id = model.find(node.path);
  return id === undefined ? undefined : model.module(id);
}

export function wordsFor(model: Model, item: Item): Words {
  const { node, members } = item;
  if (item.kind === "stack") {
    const first = nameOf(model, node);
    const last = nameOf(model, (members.findLast((member) => member.kind === "call") ?? members.at(-1)!).node);
    const { period = 1 } = item;
    const repeated = members.slice(0, period);
    const calls = repeated.filter((member) => member.kind === "call");
    const pattern = calls.length
      ? calls.map((member) => classOf(model, member.node))
      : repeated.map((member) => opTitle(member.node));
    return { title: `${pattern.join(", ")} ×${members.length / period}`, subtitle: `${first} … ${last}` };
  }
  if (item.kind === "group") return { title: `${countOf(item)} steps`, subtitle: `from ${nameOf(model, node)}` };
  if (item.kind === "call") {
    const again = node.number > 1 ? ` · call ${node.number}` : "";
    return { title: nameOf(model, node), subtitle: classOf(model, node) + again };
  }
  if (item.kind === "op") {
    const title = opTitle(node);
    return { title, subtitle: isSymbol(title) ? "" : shapesOf(node.outputs) };
  }
  const title = { input: "Input", output: "Output", attached: "" }[item.kind];
  return {
    title: [title, node.facts["argument"] ?? node.name].filter(Boolean).join(" "),
    subtitle: shapesOf([...node.outputs, ...node.inputs].slice(0, 1)),
  };
}

const SYMBOLS: Readonly<Record<string, string>> = { add: "+", sub: "−", mul: "×", div: "÷", matmul: "@" };

/** torch's name of an operation, or its usual sign. */
function opTitle({ name }: Node): string {
  return SYMBOLS[name.replace(/^__[ir]?|_+$/g, "")] ?? name;
}

export function isSymbol(title: string): boolean {
  return title.length === 1;
}

function countOf(item: Item): number {
  return item.kind === "group" ? item.members.reduce((sum, one) => sum + countOf(one), 0) : 1;
}

export function nameOf(model: Model, node: Node): string {
  if (node.kind !== "call") return node.kind === "op" ? opTitle(node) : node.name || node.kind;
  const module = moduleOf(model, node);
  return module ? tail(module, model) : node.path || model.name;
}

/** "3" alone is not clear: a number is shown with the name before it. */
function tail(module: Module, model: Model): string {
  const label = model.label(module);
  if (!/^\d+$/.test(label) || module.parent === undefined) return label;
  const above = model.module(module.parent);
  return above.name && !/^\d+$/.test(above.name) ? `${above.name}.${label}` : label;
}

export function classOf(model: Model, node: Node): string {
  const module = moduleOf(model, node);
  return module ? kindOf(module) : "";
}

export function shapesOf(specs: readonly TensorSpec[]): string {
  return specs.map((spec) => formatShape(spec.shape)).join(", ");
}

/** Rows of name and value; a missing name is a dash. */
export type Rows = readonly (readonly [string, string])[];

/** The `extra_repr` of a module, split at commas outside of brackets. */
export function factsOf(extra: string): Rows {
  const parts: string[] = [];
  let [depth, start] = [0, 0];
  for (let at = 0; at <= extra.length; at++) {
    const letter = extra[at];
    if (letter && "([{".includes(letter)) depth++;
    else if (letter && ")]}".includes(letter)) depth--;
    else if (at === extra.length || (letter === "," && depth <= 0)) {
      parts.push(extra.slice(start, at).trim());
      start = at + 1;
    }
  }
  return parts.filter(Boolean).map((part) => {
    const named = /^([A-Za-z_]\w*)=(.*)$/s.exec(part);
    return named ? [named[1]!, named[2]!] : ["–", part];
  });
}

/** The lines of a tooltip: shapes first, then the module's `extra_repr`. */
export function rowsFor(model: Model, item: Item, passes: number): Rows {
  const { node } = item;
  const module = item.kind === "call" || item.kind === "stack" ? moduleOf(model, node) : undefined;
  const named = (name: string, specs: readonly TensorSpec[]) =>
    specs.map((spec, at) => [specs.length > 1 ? `${name} ${at}` : name, describe(spec)] as const);
  const { "receptive field": field, ...settings } = node.facts;
  const facts = Object.entries(settings).map(([name, fact]) => [/^\d+$/.test(name) ? "–" : name, fact] as const);
  return [
    ...(item.kind === "op" ? [["operation", node.name] as const] : []),
    ...named("in", node.inputs),
    ...named("out", node.outputs),
    ...(facts.length ? facts : module ? factsOf(module.extra ?? "") : []),
    ...(field ? [["receptive field", field] as const] : []),
    ...(module && model.parameters(module.id)
      ? [["parameters", formatExact(model.parameters(module.id))] as const]
      : []),
    ...(node.count < passes ? [["ran in", `${node.count} of ${passes} passes`] as const] : []),
  ];
}

function describe(spec: TensorSpec): string {
  return `${formatShape(spec.shape)} ${spec.dtype}${spec.device && spec.device !== "cpu" ? ` on ${spec.device}` : ""}`;
}

/** What flows along a link. */
export function linkWords({ specs }: Link): Rows {
  const bytes = specs.reduce((sum, spec) => sum + (spec.bytes ?? 0), 0);
  const shapes = specs.map((spec) => ["flows", describe(spec)] as const);
  return bytes ? [...shapes, ["memory", formatBytes(bytes)]] : shapes;
}
