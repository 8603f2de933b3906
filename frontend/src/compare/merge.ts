/** Merges two graphs: nodes are matched by key; the rest are in one graph only. */

import { CallGraph, type Edge, type Node } from "../graph/calls";

export type Side = "both" | "changed" | "first" | "second";

export interface Merged {
  readonly graph: CallGraph;
  /** By key. */
  readonly sides: ReadonlyMap<string, Side>;
}

export function mergeGraphs(first: CallGraph, second: CallGraph, same: (path: string) => boolean): Merged {
  const sides = new Map<string, Side>();
  const nodes: Node[] = [...first.nodes];
  for (const node of first.nodes) {
    const twin = second.find(node.key);
    sides.set(node.key, twin === undefined ? "first" : alike(node, second.node(twin), same) ? "both" : "changed");
  }
  const places = new Map<number, number>();
  const added = new Map<number, number[]>();
  for (const node of second.nodes) {
    const twin = first.find(node.key);
    const id = twin ?? nodes.length;
    places.set(node.id, id);
    if (twin !== undefined) continue;
    sides.set(node.key, "second");
    const parent = node.parent === undefined ? undefined : places.get(node.parent)!;
    if (parent !== undefined) added.set(parent, [...(added.get(parent) ?? []), id]);
    nodes.push({ ...node, id, parent, children: [] });
  }
  const whole = nodes.map((node) => ({ ...node, children: [...node.children, ...(added.get(node.id) ?? [])] }));
  return { graph: new CallGraph(whole, mergeEdges(first, second, places), first.passes, first.recorded), sides };
}

function alike(one: Node, other: Node, same: (path: string) => boolean): boolean {
  const shapes = (node: Node) =>
    JSON.stringify([node.inputs, node.outputs].map((all) => all.map((spec) => spec.shape)));
  return shapes(one) === shapes(other) && (one.kind !== "call" || same(one.path));
}

function mergeEdges(first: CallGraph, second: CallGraph, places: ReadonlyMap<number, number>): Edge[] {
  const pairs = new Map<string, Edge>();
  const add = (edge: Edge) => {
    const pair = `${edge.source} ${edge.target}`;
    if (!pairs.has(pair)) pairs.set(pair, edge);
  };
  everyEdge(first).forEach(add);
  for (const edge of everyEdge(second))
    add({ ...edge, source: places.get(edge.source)!, target: places.get(edge.target)! });
  return [...pairs.values()];
}

function everyEdge(graph: CallGraph): Edge[] {
  return [undefined, ...graph.nodes.map((node) => node.id)].flatMap((id) => [...graph.edges(id)]);
}
