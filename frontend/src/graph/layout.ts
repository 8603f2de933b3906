/** Positions of boxes: each open level is laid out separately, and equal levels only once. */

import { Graph, layout } from "@dagrejs/dagre";
import { PADDING, TITLE } from "./sizes";

export interface Box {
  readonly w: number;
  readonly h: number;
  /** Set if it is open: its size then depends on its contents. */
  readonly inside?: Boxes;
}

export interface Boxes {
  readonly boxes: readonly Box[];
  readonly links: readonly (readonly [number, number])[];
}

/** A level with all positions, in its own coordinates. */
export interface Placed {
  readonly w: number;
  readonly h: number;
  readonly boxes: readonly { readonly x: number; readonly y: number; readonly w: number; readonly h: number }[];
  /** The corners of each link, x and y in turn. */
  readonly routes: readonly (readonly number[])[];
  /** The contents of each open box. */
  readonly inside: readonly (Placed | null)[];
}

const GAP = { node: 22, rank: 30, edge: 10 };
/** Above this the usual ranking takes too long. */
const MANY_BOXES = 120;

type Flat = Omit<Placed, "inside">;

const memo = new Map<string, Flat>();
const MOST_REMEMBERED = 2000;

export function place(level: Boxes): Placed {
  const inside = level.boxes.map((box) => (box.inside ? place(box.inside) : null));
  const sizes = level.boxes.map((box, at) => sizeOf(box, inside[at]!));
  const key = JSON.stringify([sizes, level.links]);
  let flat = memo.get(key);
  if (!flat) {
    flat = level.links.length ? flowing(sizes, level.links) : gridded(sizes);
    if (memo.size >= MOST_REMEMBERED) memo.clear();
    memo.set(key, flat);
  }
  return { ...flat, inside };
}

function sizeOf(box: Box, inside: Placed | null): readonly [number, number] {
  if (!inside) return [box.w, box.h];
  return [Math.max(box.w, inside.w + 2 * PADDING), inside.h + TITLE + PADDING];
}

function flowing(sizes: readonly (readonly [number, number])[], links: Boxes["links"]): Flat {
  const graph = new Graph();
  graph.setGraph({
    rankdir: "TB",
    nodesep: GAP.node,
    ranksep: GAP.rank,
    edgesep: GAP.edge,
    ranker: sizes.length > MANY_BOXES ? "longest-path" : "network-simplex",
  });
  graph.setDefaultEdgeLabel(() => ({}));
  sizes.forEach(([width, height], at) => graph.setNode(String(at), { width, height }));
  for (const [from, to] of links) graph.setEdge(String(from), String(to));
  layout(graph);
  const boxes = sizes.map(([w, h], at) => {
    const { x, y } = graph.node(String(at)) as { x: number; y: number };
    return { x: x - w / 2, y: y - h / 2, w, h };
  });
  const routes = links.map(([from, to]) => {
    const { points } = graph.edge(String(from), String(to)) as { points: { x: number; y: number }[] };
    return points.flatMap(({ x, y }) => [Math.round(x), Math.round(y)]);
  });
  return wrapped(fromZero(boxes, routes), links);
}

/** A chain that is taller than this, with this ratio of height to width, is wrapped into columns. */
const [TALL, SLENDER] = [1500, 2.5];
/** Between columns, where the links from one to the next run. */
const LANE = 70;

/** A long chain as columns from left to right, cut where few links cross. */
function wrapped(flat: Flat, links: Boxes["links"]): Flat {
  const { w, h, boxes, routes } = flat;
  if (h < TALL || h < SLENDER * w) return flat;
  const cuts = cutsOf(flat, links, Math.max(2, Math.round(Math.sqrt((1.4 * h) / (w + LANE)))));
  const tops = [0, ...cuts];
  const bottoms = [...cuts, h];
  const columnOf = (y: number) => cuts.filter((cut) => cut <= y).length;
  const shift = (column: number) => [column * (w + LANE), -tops[column]!] as const;
  const columns = boxes.map((box) => columnOf(box.y));
  const moved = boxes.map((box, at) => {
    const [dx, dy] = shift(columns[at]!);
    return { ...box, x: box.x + dx, y: box.y + dy };
  });
  const lanes = new Map<number, number>();
  const bent = routes.map((route, at) => {
    const [from, to] = links[at]!.map((end) => columns[end]!) as [number, number];
    const [[dx, dy], [ex, ey]] = [shift(from), shift(to)];
    if (from === to) return route.map((value, place) => value + (place % 2 ? dy : dx));
    const lane = (lanes.get(from) ?? 0) % 8;
    lanes.set(from, lane + 1);
    const gap = dx + w + 12 + 6 * lane;
    const below = bottoms[from]! + dy + 8 + 3 * lane;
    const start = [route[0]! + dx, route[1]! + dy] as const;
    const end = [route.at(-2)! + ex, route.at(-1)! + ey] as const;
    const above = -10 - 3 * lane;
    return cornered([start, [start[0], below], [gap, below], [gap, above], [end[0], above], end]);
  });
  return fromZero(moved, bent);
}

/** Where to cut a chain into columns of about equal height: between boxes, where few links cross. */
function cutsOf({ h, boxes }: Flat, links: Boxes["links"], count: number): number[] {
  const cuts: number[] = [];
  for (let at = 1; at < count; at++) {
    const ideal = (at * h) / count;
    const near = boxes.map((box) => box.y).filter((y) => Math.abs(y - ideal) < h / count / 3 && y > (cuts.at(-1) ?? 0));
    const isFree = (y: number) => boxes.every((box) => box.y + box.h <= y || box.y >= y);
    const cost = (y: number) =>
      links.filter(([from, to]) => boxes[from]!.y < y !== boxes[to]!.y < y).length + Math.abs(y - ideal) / h;
    const best = [...new Set(near)].filter(isFree).sort((one, other) => cost(one) - cost(other))[0];
    if (best !== undefined) cuts.push(best);
  }
  return cuts;
}

/** Rounded corners with straight lines between them. */
function cornered(points: readonly (readonly [number, number])[]): number[] {
  return points.flatMap(([x, y], at) => {
    const [before, after] = [points[at - 1], points[at + 1]];
    if (!before || !after) return [x, y];
    const near = ([ox, oy]: readonly [number, number]) => {
      const far = Math.hypot(ox - x, oy - y) || 1;
      const share = Math.min(0.5, 10 / far);
      return [x + (ox - x) * share, y + (oy - y) * share];
    };
    return [...near(before), x, y, ...near(after)].map(Math.round);
  });
}

/** Moved so that everything, links included, starts at zero. */
function fromZero(boxes: Flat["boxes"], routes: Flat["routes"]): Flat {
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  const hold = (x: number, y: number) => {
    [left, top] = [Math.min(left, x), Math.min(top, y)];
    [right, bottom] = [Math.max(right, x), Math.max(bottom, y)];
  };
  for (const { x, y, w, h } of boxes) {
    hold(x, y);
    hold(x + w, y + h);
  }
  for (const route of routes) for (let at = 0; at < route.length; at += 2) hold(route[at]!, route[at + 1]!);
  return {
    w: right - left,
    h: bottom - top,
    boxes: boxes.map((box) => ({ ...box, x: box.x - left, y: box.y - top })),
    routes: routes.map((route) => route.map((value, at) => value - (at % 2 ? top : left))),
  };
}

/** Without known data flow: rows in a square. */
function gridded(sizes: readonly (readonly [number, number])[]): Flat {
  const area = sizes.reduce((sum, [w, h]) => sum + (w + GAP.node) * (h + GAP.node), 0);
  const widest = Math.max(Math.sqrt(area) * 1.3, ...sizes.map(([w]) => w));
  let [x, y, lineHeight] = [0, 0, 0];
  const boxes = sizes.map(([w, h]) => {
    if (x > 0 && x + w > widest) {
      [x, y, lineHeight] = [0, y + lineHeight + GAP.node, 0];
    }
    const box = { x, y, w, h };
    x += w + GAP.node;
    lineHeight = Math.max(lineHeight, h);
    return box;
  });
  return boxes.length ? fromZero(boxes, []) : { w: 0, h: 0, boxes, routes: [] };
}
