/** The contents of an opened call: its calls and ops, with repeats folded and large numbers grouped. */

import type { TensorSpec } from "../data/records";
import { type CallGraph, type Edge, type Node, push } from "./calls";

export interface Item {
  readonly key: string;
  /** "stack" is a run of repeats, "group" a part of too many items. */
  readonly kind: Node["kind"] | "stack" | "group";
  /** The node it stands for; the first one of a stack or group. */
  readonly node: Node;
  /** The members of a stack or group. */
  readonly members: readonly Item[];
  /** For a stack, the members per repeat; 1 if left out. */
  readonly period?: number;
}

export interface Link {
  /** Indices of items of the level. */
  readonly from: number;
  readonly to: number;
  readonly specs: readonly TensorSpec[];
  readonly count: number;
}

export interface Level {
  readonly items: readonly Item[];
  readonly links: readonly Link[];
}

export interface Choice {
  /** Whether ops are shown between calls, too. */
  readonly ops: boolean;
  /** Whether repeated calls are folded into one item. */
  readonly fold: boolean;
}

/** Items [from, to) that become one, and the length of the repeated pattern. */
interface Stretch {
  readonly from: number;
  readonly to: number;
  readonly period: number;
}

/** Longer patterns are modules in most models. */
const LONGEST_PATTERN = 12;
/** At least this many ops without a call are folded; fewer are easy to read. */
const FEWEST_FOLDED_OPS = 24;
/** At least this many repeats are folded. */
const FEWEST_FOLDED = 3;
/** A layout of more items takes too long and cannot be read. */
const MOST_ITEMS = 250;
const GROUP_SIZE = 100;

/** The levels of one graph, each computed when it is first opened. */
export class Levels {
  private readonly known = new Map<string, Level>();
  private readonly kinds = new Map<string, number>();
  private readonly likeness = new Map<number, number>();

  constructor(
    readonly graph: CallGraph,
    readonly choice: Choice,
    /** What else must match for two calls to be folded, such as the class. */
    private readonly classOf: (path: string) => string,
  ) {}

  /** The contents of a call; undefined for the outermost calls. */
  ofCall(id: number | undefined): Level {
    const key = id === undefined ? "" : this.graph.node(id).key;
    let level = this.known.get(key);
    if (!level) this.known.set(key, (level = this.arrange(this.plain(id), key)));
    return level;
  }

  inside(item: Item): Level {
    return item.members.length ? this.known.get(item.key)! : this.ofCall(item.node.id);
  }

  canOpen(item: Item): boolean {
    if (item.members.length) return true;
    return item.kind === "call" && this.contents(item.node).length > 0;
  }

  /** The contents of a call without its inputs and outputs. */
  private contents(node: Node): readonly number[] {
    return node.children.filter((id) => !["input", "output"].includes(this.graph.node(id).kind));
  }

  /**
   * The nodes of a call and their edges, ops left out where calls tell enough. An op where data of several nodes
   * meets, as the addition of a residual connection, stays: without it each of them would lead to all that follows.
   */
  private plain(id: number | undefined): Level {
    const nodes = inputsFirst(this.graph.children(id).map((child) => this.graph.node(child)));
    const edges = this.graph.edges(id);
    const hidesOps = !this.choice.ops && nodes.some((node) => node.kind === "call" || node.kind === "attached");
    const origins = hidesOps ? originsOf(nodes, edges) : new Map<number, number>();
    const shown = nodes.filter((node) => !hidesOps || node.kind !== "op" || origins.get(node.id) === node.id);
    const places = new Map(shown.map((node, at) => [node.id, at]));
    const links: Link[] = [];
    for (const { source, target, spec, count } of edges) {
      const from = places.get(origins.get(source) ?? source);
      const to = places.get(target);
      if (from !== undefined && to !== undefined) links.push({ from, to, specs: spec ? [spec] : [], count });
    }
    const items = shown.map((node): Item => ({ key: node.key, kind: node.kind, node, members: [] }));
    return { items, links: joined(links) };
  }

  private arrange(level: Level, key: string): Level {
    const folded = this.choice.fold ? this.group(level, this.repeats(level.items), "stack", key) : level;
    return this.inGroups(folded, key);
  }

  private inGroups(level: Level, key: string): Level {
    if (level.items.length <= MOST_ITEMS) return level;
    const parts: Stretch[] = [];
    for (let from = 0, to = 0; from < level.items.length; from = to) {
      // Inputs and outputs are not grouped with other items.
      const border = borderOf(level.items[from]!);
      while (to < level.items.length && to - from < GROUP_SIZE && borderOf(level.items[to]!) === border) to++;
      if (to - from > 1) parts.push({ from, to, period: 1 });
    }
    return this.inGroups(this.group(level, parts, "group", key), `${key}+`);
  }

  /** Runs of equal items, or of a short repeated pattern such as conv, norm, activation. */
  private repeats(items: readonly Item[]): Stretch[] {
    const kinds = items.map(({ kind, node }) => (kind === "call" || kind === "op" ? this.likenessOf(node) : undefined));
    const stretches: Stretch[] = [];
    const hasCall = ({ from, period }: Stretch) => items.slice(from, from + period).some((item) => item.kind === "call");
    const tells = (one: Stretch) => hasCall(one) || one.to - one.from >= FEWEST_FOLDED_OPS;
    for (let from = 0; from < items.length;) {
      const found = repeatAt(kinds, from, tells);
      if (found) stretches.push(found);
      from = found?.to ?? from + 1;
    }
    return stretches;
  }

  /** Equal for two calls that do the same, regardless of their parameters. */
  private likenessOf(node: Node): number {
    const known = this.likeness.get(node.id);
    if (known !== undefined) return known;
    const inner = node.children.map((id) => this.likenessOf(this.graph.node(id)));
    const shapes = [...node.inputs, ...node.outputs].map((spec) => spec.shape);
    const what = node.kind === "call" ? this.classOf(node.path) : node.name;
    const { source: _, ...facts } = node.facts;
    const text = JSON.stringify([node.kind, what, facts, shapes, inner]);
    const number = this.kinds.get(text) ?? this.kinds.size;
    this.kinds.set(text, number);
    this.likeness.set(node.id, number);
    return number;
  }

  /**
   * The level with each stretch as one item. Items are in execution order, so links never lead backwards,
   * and merging neighbors creates no cycle.
   */
  private group(level: Level, stretches: readonly Stretch[], kind: "stack" | "group", key: string): Level {
    if (!stretches.length) return level;
    const items: Item[] = [];
    const newPlace: number[] = [];
    const starts = new Map(stretches.map((stretch) => [stretch.from, stretch]));
    for (let at = 0; at < level.items.length;) {
      const stretch = starts.get(at);
      const end = stretch?.to ?? at + 1;
      const members = level.items.slice(at, end);
      for (let one = at; one < end; one++) newPlace[one] = items.length;
      if (stretch) {
        const { node, key: first } = members[0]!;
        const item: Item = { key: `${key}*${kind}${first}`, kind, node, members, period: stretch.period };
        const inner = { items: members, links: linksWithin(level.links, at, end) };
        this.known.set(item.key, kind === "stack" ? this.inGroups(inner, item.key) : inner);
        items.push(item);
      } else items.push(members[0]!);
      at = end;
    }
    const links = level.links.map((link) => ({ ...link, from: newPlace[link.from]!, to: newPlace[link.to]! }));
    return { items, links: joined(links) };
  }
}

const BORDERS: Partial<Record<Item["kind"], number>> = { input: -1, output: 1 };

function borderOf({ kind }: { kind: Item["kind"] }): number {
  return BORDERS[kind] ?? 0;
}

function inputsFirst(nodes: readonly Node[]): Node[] {
  return nodes.toSorted((one, other) => borderOf(one) - borderOf(other));
}

/** For each op the node that its data came from; itself if data of several nodes meets there. */
function originsOf(nodes: readonly Node[], edges: readonly Edge[]): ReadonlyMap<number, number> {
  const ops = new Set(nodes.filter((node) => node.kind === "op").map((node) => node.id));
  const [into, next, waits] = [new Map<number, number[]>(), new Map<number, number[]>(), new Map<number, number>()];
  for (const { source, target } of edges) {
    push(next, source, target);
    if (!ops.has(target)) continue;
    push(into, target, source);
    if (ops.has(source)) waits.set(target, (waits.get(target) ?? 0) + 1);
  }
  const used = usedOps(ops, edges);
  const origins = new Map<number, number>();
  const ready = [...ops].filter((op) => !waits.get(op));
  for (const op of ready) {
    const found = new Set((into.get(op) ?? []).map((source) => origins.get(source) ?? (ops.has(source) ? -1 : source)));
    found.delete(-1);
    const [first] = found;
    if (found.size > 1 && used.has(op)) origins.set(op, op);
    else if (first !== undefined) origins.set(op, first);
    for (const target of next.get(op) ?? []) {
      const left = (waits.get(target) ?? 0) - 1;
      waits.set(target, left);
      if (left === 0) ready.push(target);
    }
  }
  return origins;
}

/** The ops whose result reaches anything that is not an op. */
function usedOps(ops: ReadonlySet<number>, edges: readonly Edge[]): ReadonlySet<number> {
  const into = new Map<number, number[]>();
  for (const { source, target } of edges) push(into, target, source);
  const used = new Set<number>();
  const waiting = [...into.keys()].filter((id) => !ops.has(id));
  for (const at of waiting) {
    for (const source of into.get(at) ?? []) {
      if (!ops.has(source) || used.has(source)) continue;
      used.add(source);
      waiting.push(source);
    }
  }
  return used;
}

/** The shortest pattern that begins here and repeats often enough. */
function repeatAt(
  kinds: readonly (number | undefined)[],
  from: number,
  tells: (one: Stretch) => boolean,
): Stretch | undefined {
  for (let period = 1; period <= LONGEST_PATTERN; period++) {
    let same = from + period;
    while (same < kinds.length && kinds[same] !== undefined && kinds[same] === kinds[same - period]) same++;
    const times = Math.floor((same - from) / period);
    const found = { from, to: from + times * period, period };
    if (times >= FEWEST_FOLDED && tells(found)) return found;
  }
  return undefined;
}

function linksWithin(links: readonly Link[], from: number, to: number): Link[] {
  const inside = (place: number) => from <= place && place < to;
  return links
    .filter((link) => inside(link.from) && inside(link.to))
    .map((link) => ({ ...link, from: link.from - from, to: link.to - from }));
}

/** One link for each pair of items, and none from an item to itself. */
function joined(links: readonly Link[]): Link[] {
  const pairs = new Map<string, Link>();
  for (const link of links) {
    if (link.from === link.to) continue;
    const pair = `${link.from} ${link.to}`;
    const known = pairs.get(pair);
    pairs.set(pair, known ? { ...known, specs: [...known.specs, ...link.specs] } : link);
  }
  return [...pairs.values()];
}
