/** The node of the graph for a module that was selected elsewhere. */

import type { Module } from "../data/records";
import type { Node } from "../graph/calls";
import { graph, inside, selectedKey } from "../graph/state";
import { seriesByModule } from "../state/state";

/** The selected or opened node, if it belongs to this module; else the module's first call. */
export function nodeOf({ path }: Module): Node | undefined {
  const all = graph.value;
  const chosen = all?.find(selectedKey.value) ?? inside.value?.id;
  const ids = [chosen, ...(all?.calls(path) ?? [])].filter((id) => id !== undefined);
  return ids.map((id) => all!.node(id)).find((node) => node.path === path);
}

/** The key for pinning a module; undefined if it has no series. */
export function pinKeyOf(module: Module): string | undefined {
  if (!seriesByModule.value.has(module.id)) return undefined;
  return nodeOf(module)?.key ?? `${module.path}:1`;
}
