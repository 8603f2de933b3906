/** What is seen inside an opened call: its calls and ops, repeated ones folded, many ones grouped. */

import type { TensorSpec } from "../data/records";
import { type CallGraph, type Node, push } from "./calls";

export interface Item {
  readonly key: string;
  /** "stack" is several alike in a row, "group" a part of what would be too many. */
  readonly kind: Node["kind"] | "stack" | "group";
  /** The node it stands for; the first one of a stack or group. */
  readonly node: Node;
  /** Of a stack or group what it is made of. */
  readonly members: readonly Item[];
  /** Of a stack how many members make up what is repeated; one if left out. */
  readonly period?: number;
}

export interface Link {
  /** Places in the items of the level. */
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

/** Items [from, to) that become one; of those that repeat a pattern, how long it is. */
interface Stretch {
  readonly from: number;
  readonly to: number;
  readonly period: number;
}

/** Longer patterns are modules of their own in most models. */
const LONGEST_PATTERN = 6;
/** So many alike in a row are folded. */
const FEWEST_FOLDED = 3;
/** One layout of more items takes too long, and nobody could read it. */
const MOST_ITEMS = 250;
const GROUP_SIZE = 100;

/** The levels of one graph, each worked out when it is first opened. */
export class Levels {
  private readonly known = new Map<string, Level>();
  private readonly kinds = new Map<string, number>();
  private readonly likeness = new Map<number, number>();

  constructor(
    readonly graph: CallGraph,
    readonly choice: Choice,
    /** What else must be alike for two calls to be folded, such as the class. */
    private readonly classOf: (path: string) => string,
  ) {}

  /** What is inside a call; undefined asks for the outermost calls. */
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

  /** What stands in a call beside its inputs and outputs. */
  private contents(node: Node): readonly number[] {
    return node.children.filter((id) => !["input", "output"].includes(this.graph.node(id).kind));
  }

  /** The nodes of a call and their edges, ops left out where calls tell enough. */
  private plain(id: number | undefined): Level {
    const nodes = this.graph.children(id).map((child) => this.graph.node(child));
    const hidesOps = !this.choice.ops && nodes.some((node) => node.kind === "call" || node.kind === "attached");
    const shown = hidesOps ? nodes.filter((node) => node.kind !== "op") : nodes;
    const places = new Map(shown.map((node, at) => [node.id, at]));
    const items = shown.map((node): Item => ({ key: node.key, kind: node.kind, node, members: [] }));
    return { items, links: hidesOps ? this.linksPastOps(id, places) : this.links(id, places) };
  }

  private links(id: number | undefined, places: ReadonlyMap<number, number>): Link[] {
    return joined(
      this.graph.edges(id).map(({ source, target, spec, count }) => ({
        from: places.get(source)!,
        to: places.get(target)!,
        specs: spec ? [spec] : [],
        count,
      })),
    );
  }

  /** Links between what is shown, drawn past the ops that are not. */
  private linksPastOps(id: number | undefined, places: ReadonlyMap<number, number>): Link[] {
    const next = new Map<number, number[]>();
    const edges = this.graph.edges(id);
    for (const edge of edges) push(next, edge.source, edge.target);
    const reached = new Map<number, ReadonlySet<number>>();
    const from = (start: number): ReadonlySet<number> => {
      const found = new Set<number>();
      const waiting = [start];
      const seen = new Set(waiting);
      for (let at = waiting.pop(); at !== undefined; at = waiting.pop()) {
        for (const target of next.get(at) ?? []) {
          const place = places.get(target);
          if (place !== undefined) found.add(place);
          else if (reached.has(target)) reached.get(target)!.forEach((one) => found.add(one));
          else if (!seen.has(target)) waiting.push(target);
          seen.add(target);
        }
      }
      return found;
    };
    // Backwards, so that what lies behind an op is known before the ops that lead to it.
    const ops = [...new Set(edges.map((edge) => edge.source))].filter((one) => !places.has(one));
    for (const op of ops.sort((a, b) => b - a)) reached.set(op, from(op));
    const links: Link[] = [];
    for (const { source, target, spec, count } of edges) {
      const place = places.get(source);
      if (place === undefined) continue;
      const direct = places.get(target);
      const ends = direct === undefined ? (reached.get(target) ?? new Set<number>()) : new Set([direct]);
      for (const to of ends) links.push({ from: place, to, specs: spec ? [spec] : [], count });
    }
    return joined(links);
  }

  private arrange(level: Level, key: string): Level {
    const folded = this.choice.fold ? this.group(level, this.repeats(level.items), "stack", key) : level;
    return this.inGroups(folded, key);
  }

  private inGroups(level: Level, key: string): Level {
    if (level.items.length <= MOST_ITEMS) return level;
    const parts: Stretch[] = [];
    for (let at = 0; at < level.items.length; at += GROUP_SIZE) {
      parts.push({ from: at, to: Math.min(at + GROUP_SIZE, level.items.length), period: 1 });
    }
    return this.inGroups(this.group(level, parts, "group", key), `${key}+`);
  }

  /** Stretches of items that are alike, or that repeat a short pattern such as conv, norm, activation. */
  private repeats(items: readonly Item[]): Stretch[] {
    const kinds = items.map((item) => (item.kind === "call" ? this.likenessOf(item.node) : undefined));
    const stretches: Stretch[] = [];
    for (let from = 0; from < items.length;) {
      const found = repeatAt(kinds, from);
      if (found) stretches.push(found);
      from = found?.to ?? from + 1;
    }
    return stretches;
  }

  /** The same number for two calls that do the same, their parameters aside. */
  private likenessOf(node: Node): number {
    const known = this.likeness.get(node.id);
    if (known !== undefined) return known;
    const inner = node.children.map((id) => this.likenessOf(this.graph.node(id)));
    const shapes = [...node.inputs, ...node.outputs].map((spec) => spec.shape);
    const what = node.kind === "call" ? this.classOf(node.path) : node.name;
    const text = JSON.stringify([node.kind, what, node.facts, shapes, inner]);
    const number = this.kinds.get(text) ?? this.kinds.size;
    this.kinds.set(text, number);
    this.likeness.set(node.id, number);
    return number;
  }

  /**
   * The level with each stretch as one item. Items stand in the order in which they ran, so links never
   * lead backwards, and joining neighbours makes no circle.
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
        this.known.set(item.key, { items: members, links: linksWithin(level.links, at, end) });
        items.push(item);
      } else items.push(members[0]!);
      at = end;
    }
    const links = level.links.map((link) => ({ ...link, from: newPlace[link.from]!, to: newPlace[link.to]! }));
    return { items, links: joined(links) };
  }
}

/** The shortest pattern that begins at a place and is repeated often enough, as far as it goes. */
function repeatAt(kinds: readonly (number | undefined)[], from: number): Stretch | undefined {
  for (let period = 1; period <= LONGEST_PATTERN; period++) {
    let same = from + period;
    while (same < kinds.length && kinds[same] !== undefined && kinds[same] === kinds[same - period]) same++;
    const times = Math.floor((same - from) / period);
    if (times >= FEWEST_FOLDED) return { from, to: from + times * period, period };
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
