/** The modules beside which a report has columns: which are shown, and in which order. */

export interface ModuleRow {
  readonly depth: number;
  readonly path: string;
  readonly name: string;
  readonly class: string;
}

/** The index of the parent of each row; -1 for the root. */
export function parentsOf(tree: readonly { readonly depth: number }[]): number[] {
  const line: number[] = [];
  return tree.map(({ depth }, at) => {
    line[depth] = at;
    return depth ? line[depth - 1]! : -1;
  });
}

/** The modules without those below a closed one. */
export function openRows(parents: readonly number[], closed: ReadonlySet<number>): number[] {
  const hidden = new Set<number>();
  return parents.flatMap((parent, at) => {
    if (!hidden.has(parent) && !closed.has(parent)) return [at];
    hidden.add(at);
    return [];
  });
}

/** The modules without others inside them, the one with the highest value first. */
export function leavesFirst(tree: readonly ModuleRow[], value: (path: string) => number): number[] {
  const leaves = tree.flatMap((row, at) => ((tree[at + 1]?.depth ?? 0) > row.depth ? [] : [at]));
  const known = leaves.filter((at) => value(tree[at]!.path) > -Infinity);
  return known.sort((one, other) => value(tree[other]!.path) - value(tree[one]!.path));
}
