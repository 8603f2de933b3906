/** Models for tests. */

import { Model } from "../src/data/model";
import type { Module, NodeKind, SentGraph, SentNode, Slot } from "../src/data/records";

/** A model whose modules have these paths, parents before children; the first is the root, "". */
export function makeModel(paths: string[], more: Record<string, Partial<Module>> = {}): Model {
  const modules = paths.map((path, id): Module => {
    const children = paths.map((_, at) => at).filter((at) => at && parentOf(paths[at]!) === path);
    const place = id ? { parent: paths.indexOf(parentOf(path)), children } : { children };
    const name = path.slice(path.lastIndexOf(".") + 1);
    return { id, path, name, class_name: "torch.nn.Linear", ...place, ...more[path] };
  });
  const rows = modules.map((_, at) => [at]);
  return new Model({ model: { name: "Net", modules }, counts: { fields: ["parameters"], own: rows, total: rows } });
}

export function makeSlot(name: string, tensor: number): Slot {
  return { name, role: "parameter", spec: { shape: [2], dtype: "float32" }, tensor };
}

function parentOf(path: string): string {
  return path.includes(".") ? path.slice(0, path.lastIndexOf(".")) : "";
}

/** A graph of nodes given as kind, path, parent and name, and of edges between them. */
export function makeGraph(
  nodes: readonly (readonly [NodeKind, string, number?, string?])[],
  edges: readonly (readonly [number, number])[],
): SentGraph {
  return {
    passes: 1,
    specs: [],
    nodes: nodes.map(([kind, path, parent, name], id): SentNode => {
      const place = parent === undefined ? {} : { parent };
      return { kind, path, ...place, name: name ?? "", ...(kind === "op" ? { number: id } : {}) };
    }),
    edges: edges.map(([source, target]) => [source, target, -1, 1] as const),
  };
}

/** Edges from each node to the next. */
export function chain(first: number, last: number): [number, number][] {
  return Array.from({ length: last - first }, (_, at) => [first + at, first + at + 1]);
}
