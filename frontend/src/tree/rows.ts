/** The visible rows of the tree: opened modules, or search matches. */

import { kindOf, type Model } from "../data/model";
import type { Module } from "../data/records";

export interface Row {
  readonly id: number;
  readonly level: number;
  /** Undefined for a module without children. */
  readonly open: boolean | undefined;
  /** Position among its siblings, from 1, and their number. */
  readonly position: number;
  readonly siblings: number;
}

/** The part of a text that a search matched. */
export interface Span {
  readonly start: number;
  readonly end: number;
}

interface Shape {
  isOpen(id: number): boolean;
  children(id: number): readonly number[];
}

/** The lines of a tree whose modules in `open` show their children. */
export function browse(model: Model, open: ReadonlySet<number>): Row[] {
  return flatten({ isOpen: (id) => open.has(id), children: (id) => model.children(id) });
}

/**
 * The rows of search matches and of the modules above them. These are open, the matches are closed;
 * `toggled` are those that the user changed since.
 */
export function browseFound(model: Model, found: Found, toggled: ReadonlySet<number>): Row[] {
  const onTheWay = (id: number) => model.children(id).some((child) => found.kept.has(child));
  return flatten({
    isOpen: (id) => onTheWay(id) !== toggled.has(id),
    children: (id) => (onTheWay(id) ? model.children(id).filter((child) => found.kept.has(child)) : model.children(id)),
  });
}

function flatten(shape: Shape): Row[] {
  const rows: Row[] = [];
  const waiting: Row[] = [row(shape, 0, 1, 1, 1)];
  for (let next = waiting.pop(); next; next = waiting.pop()) {
    rows.push(next);
    if (!next.open) continue;
    const children = shape.children(next.id);
    for (let at = children.length - 1; at >= 0; at--) {
      waiting.push(row(shape, children[at]!, next.level + 1, at + 1, children.length));
    }
  }
  return rows;
}

function row(shape: Shape, id: number, level: number, position: number, siblings: number): Row {
  const open = shape.children(id).length ? shape.isOpen(id) : undefined;
  return { id, level, open, position, siblings };
}

export interface Found {
  readonly matches: ReadonlySet<number>;
  /** The matches and all modules above them. */
  readonly kept: ReadonlySet<number>;
}

export function search(model: Model, query: string): Found {
  const matches = new Set<number>();
  const kept = new Set<number>([0]);
  for (const module of model.modules) {
    if (!nameSpan(module, query) && !kindSpan(module, query)) continue;
    matches.add(module.id);
    for (let at: number | undefined = module.id; at !== undefined && !kept.has(at);) {
      kept.add(at);
      at = model.module(at).parent;
    }
  }
  return { matches, kept };
}

/**
 * The match of the query in the module's name. A query with a dot is searched in the whole path and
 * must reach into the name, so that "layer.0" finds that one module and not all below it.
 */
export function nameSpan(module: Module, query: string): Span | undefined {
  if (!query.includes(".")) return findText(module.name, query);
  const nameStart = module.path.length - module.name.length;
  const start = module.path.toLowerCase().lastIndexOf(query.toLowerCase());
  const end = start + query.length;
  if (start < 0 || end <= nameStart) return undefined;
  return { start: Math.max(0, start - nameStart), end: end - nameStart };
}

export function kindSpan(module: Module, query: string): Span | undefined {
  return findText(kindOf(module), query);
}

function findText(text: string, query: string): Span | undefined {
  const start = query ? text.toLowerCase().indexOf(query.toLowerCase()) : -1;
  return start < 0 ? undefined : { start, end: start + query.length };
}
