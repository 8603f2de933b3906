/** The data flow between the calls of a model, with lookups for the graph view. */

import { kindOf, type Model } from "../data/model";
import type { NodeKind, SentGraph, TensorSpec } from "../data/records";

export interface Node {
  readonly id: number;
  /** Its key in addresses: the same in two recordings of one model. */
  readonly key: string;
  readonly kind: NodeKind;
  readonly parent: number | undefined;
  readonly path: string;
  readonly name: string;
  readonly number: number;
  /** Number of passes in which it was seen. */
  readonly count: number;
  readonly inputs: readonly TensorSpec[];
  readonly outputs: readonly TensorSpec[];
  readonly facts: Readonly<Record<string, string>>;
  readonly children: readonly number[];
}

export interface Edge {
  readonly source: number;
  readonly target: number;
  readonly spec: TensorSpec | undefined;
  readonly count: number;
}

export class CallGraph {
  readonly roots: readonly number[];
  private readonly byKey = new Map<string, number>();
  private readonly byPath = new Map<string, number[]>();
  private readonly inside = new Map<number | undefined, Edge[]>();

  constructor(
    readonly nodes: readonly Node[],
    edges: readonly Edge[],
    readonly passes: number,
    /** False if it comes from the model's tree only, without recorded data flow. */
    readonly recorded: boolean,
  ) {
    this.roots = nodes.filter((node) => node.parent === undefined).map((node) => node.id);
    for (const node of nodes) {
      this.byKey.set(node.key, node.id);
      if (node.kind === "call") push(this.byPath, node.path, node.id);
    }
    for (const edge of edges) push(this.inside, this.node(edge.source).parent, edge);
  }

  node(id: number): Node {
    const node = this.nodes[id];
    if (!node) throw new RangeError(`there is no node ${id}`);
    return node;
  }

  find(key: string): number | undefined {
    return this.byKey.get(key);
  }

  /** The calls of a module, in order. */
  calls(path: string): readonly number[] {
    return this.byPath.get(path) ?? [];
  }

  /** The call of a node: itself, or the call around it. */
  callAround(id: number): Node {
    const node = this.node(id);
    return node.kind === "call" || node.parent === undefined ? node : this.callAround(node.parent);
  }

  /** The edges between the nodes in a call; undefined for the outermost ones. */
  edges(parent: number | undefined): readonly Edge[] {
    return this.inside.get(parent) ?? [];
  }

  children(id: number | undefined): readonly number[] {
    return id === undefined ? this.roots : this.node(id).children;
  }

  /** From the outermost call down to the node itself. */
  line(id: number): Node[] {
    const line: Node[] = [];
    for (let at: number | undefined = id; at !== undefined; at = this.node(at).parent) line.unshift(this.node(at));
    return line;
  }
}

export function readGraph(sent: SentGraph): CallGraph {
  const children = sent.nodes.map((): number[] => []);
  sent.nodes.forEach((node, id) => node.parent !== undefined && children[node.parent]?.push(id));
  const specs = (places: readonly number[] = []) => places.map((place) => sent.specs[place]!);
  const keys: string[] = [];
  const nodes = sent.nodes.map((node, id): Node => {
    const number = node.number ?? 1;
    const name = node.name ?? "";
    keys[id] = keyOf(node.kind, node.path, name, number, node.parent === undefined ? "" : keys[node.parent]!);
    return {
      id,
      key: keys[id],
      kind: node.kind,
      parent: node.parent,
      path: node.path,
      name,
      number,
      count: node.count ?? 1,
      inputs: specs(node.inputs),
      outputs: specs(node.outputs),
      facts: node.facts ?? {},
      children: children[id]!,
    };
  });
  const edges = sent.edges.map(([source, target, spec, count]) => ({ source, target, spec: sent.specs[spec], count }));
  return new CallGraph(nodes, edges, sent.passes, true);
}

function keyOf(kind: NodeKind, path: string, name: string, number: number, parent: string): string {
  return kind === "call" ? `${path}:${number}` : `${parent}/${kind}:${name}${kind === "op" ? `#${number}` : ""}`;
}

/** A graph from the model's tree alone: nesting, and that a Sequential runs in order. */
export function graphOfTree(model: Model): CallGraph {
  const nodes = model.modules.map((module): Node => ({
    id: module.id,
    key: `${module.path}:${module.id === model.find(module.path) ? 1 : `1+${module.id}`}`,
    kind: "call",
    parent: module.parent,
    path: module.path,
    name: module.name,
    number: 1,
    count: 1,
    inputs: [],
    outputs: [],
    facts: {},
    children: module.children ?? [],
  }));
  const inOrder = model.modules.filter((module) => kindOf(module) === "Sequential");
  const edges = inOrder.flatMap(({ children = [] }) =>
    children.slice(1).map((target, at) => ({ source: children[at]!, target, spec: undefined, count: 1 })),
  );
  return new CallGraph(nodes, edges, 1, false);
}

export function push<K, V>(map: Map<K, V[]>, key: K, value: V): void {
  const known = map.get(key);
  if (known) known.push(value);
  else map.set(key, [value]);
}
