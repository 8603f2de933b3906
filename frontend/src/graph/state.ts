/** What is open in the graph, and where everything is. */

import { batch, computed, effect, signal } from "@preact/signals";
import { mergeGraphs } from "../compare/merge";
import { formatShape } from "../data/formats";
import type { Model } from "../data/model";
import type { Module } from "../data/records";
import { failure } from "../state/live";
import { compared, comparedRuns, model, reveal, select, shown, shownRun, series } from "../state/state";
import type { CallGraph, Node } from "./calls";
import { type Item, Levels } from "./levels";
import { widthOf } from "./text-width";
import { placeBoxes } from "./layout-client";
import { boxesOf, drawScene, EMPTY, type Scene } from "./scene";
import { isSymbol, moduleOf, wordsFor } from "./words";

/** The opened call; "" is the outermost. */
export const entered = signal("");
export const opened = signal<ReadonlySet<string>>(new Set());
/** Whether operations are shown, if the user chose; by default if a pass was traced. */
export const chosenOps = signal<boolean | null>(null);
export const showsOps = computed(() => chosenOps.value ?? (!!shown.value?.spans.value.length && !shown.value.profiled.value));
export const folds = signal(true);
/** Whether the width of links shows tensor sizes. */
export const thick = signal(false);
export const selectedKey = signal("");
export const hovered = signal<{ key: string; x: number; y: number } | null>(null);

const merged = computed(() => {
  const first = shown.value?.graph.value;
  const second = compared.value?.graph.value;
  if (!first || !second) return null;
  const [one, other] = [shown.value!.model.value, compared.value!.model.value];
  return mergeGraphs(first, second, (path) => describe(one, path) === describe(other, path));
});

function describe(model: Model | null, path: string): string {
  const id = model?.find(path);
  if (!model || id === undefined) return "";
  const { class_name, extra, slots = [] }: Module = model.module(id);
  return JSON.stringify([class_name, extra, slots.map((slot) => [slot.name, formatShape(slot.spec.shape)])]);
}

export const sides = computed(() => merged.value?.sides ?? null);
export const graph = computed<CallGraph | null>(() => merged.value?.graph ?? shown.value?.graph.value ?? null);

export const levels = computed(() => {
  const known = model.value;
  if (!graph.value || !known) return null;
  const classes = (path: string) => known.modules[known.find(path) ?? -1]?.class_name ?? "";
  return new Levels(graph.value, { ops: showsOps.value, fold: folds.value }, classes);
});

/** The node whose contents are shown; undefined if there are several outermost calls. */
export const inside = computed<Node | undefined>(() => {
  const all = graph.value;
  if (!all) return undefined;
  const id =
    (entered.value ? all.find(entered.value) : undefined) ?? (all.roots.length === 1 ? all.roots[0] : undefined);
  if (id === undefined) return undefined;
  return all.node(id).children.length ? all.node(id) : undefined;
});

export const level = computed(() => levels.value?.ofCall(inside.value?.id) ?? null);

const hasHistograms = computed(() => series.value.some((one) => one.kind === "histogram"));

/** A longer title or subtitle is cut. */
const WIDEST = 230;
export const MINI = { w: 46, h: 24 };

function sizeOf(known: Model): (item: Item) => { w: number; h: number } {
  return (item) => {
    const { title, subtitle } = wordsFor(known, item);
    if (item.kind === "op" && isSymbol(title)) return { w: 28, h: 28 };
    const isCall = item.kind === "call" || item.kind === "stack" || item.kind === "group";
    const letters = Math.min(WIDEST, Math.max(widthOf(title, "title"), widthOf(subtitle, "subtitle")));
    const w = Math.ceil(letters + 26 + (isCall ? 16 : 0) + (isCall && hasHistograms.value ? MINI.w + 8 : 0));
    return { w: Math.max(w, isCall ? 118 : 74), h: isCall ? 46 : subtitle ? 40 : 28 };
  };
}

export const scene = signal<Scene>(EMPTY);
/** Equal while the same call of the same runs is open: then the view stays as it is. */
export const sceneOf = signal("");
/** Increases when the next scene should be fitted to the view. */
export const wantsFit = signal(0);
let fitsNext = false;

let newest = 0;
effect(() => {
  const [all, known, shownLevel] = [levels.value, model.value, level.value];
  if (!all || !known || !shownLevel) return;
  const boxes = boxesOf(shownLevel, all, opened.value, sizeOf(known));
  const number = ++newest;
  const place = [shownRun.value, comparedRuns.value, inside.value?.key].join("\n");
  placeBoxes(boxes).then(
    (placed) => {
      if (number !== newest) return;
      batch(() => {
        scene.value = drawScene(shownLevel, placed, all);
        sceneOf.value = place;
        if (fitsNext) wantsFit.value++;
        fitsNext = false;
      });
    },
    (problem: unknown) => (failure.value = String(problem)),
  );
});

export const places = computed(() => new Map(scene.value.boxes.map((box, at) => [box.item.key, at])));

export function selectItem(item: Item): void {
  batch(() => {
    selectedKey.value = item.key;
    const module = model.value && moduleOf(model.value, item.node);
    if (module) reveal(module.id);
  });
}

export function toggleItem(key: string): void {
  const next = new Set(opened.value);
  if (!next.delete(key)) next.add(key);
  opened.value = next;
}

/** Opens a call. */
export function enter(key: string): void {
  batch(() => {
    entered.value = key;
    selectedKey.value = "";
    const id = graph.value?.find(key);
    const module = model.value && id !== undefined && moduleOf(model.value, graph.value!.node(id));
    if (module) reveal(module.id);
  });
}

/** Goes up to the call around the opened one. */
export function leave(): void {
  const here = inside.value;
  if (!here || here.parent === undefined) return;
  const above = graph.value!.node(here.parent);
  batch(() => {
    enter(above.parent === undefined && graph.value!.roots.length === 1 ? "" : above.key);
    selectedKey.value = here.key;
  });
}

/** Opens every level down to a depth below the opened call; 0 closes all. */
export function openTo(depth: number): void {
  const all = levels.value;
  const top = level.value;
  if (!all || !top) return;
  const next = new Set<string>();
  let [layer, down] = [top.items, 0];
  while (layer.length && down < depth && next.size < MOST_OPENED) {
    const inner = layer.filter((item) => all.canOpen(item) && (depth < Infinity || !isOfOps(all, item)));
    inner.forEach((item) => next.add(item.key));
    layer = inner.flatMap((item) => all.inside(item).items);
    down++;
  }
  fitsNext = true;
  opened.value = next;
}

/** More open boxes cannot be read. */
const MOST_OPENED = 5000;

/** "Expand all" does not open a Linear into its one op. */
function isOfOps(all: Levels, item: Item): boolean {
  return !showsOps.value && item.kind === "call" && all.inside(item).items.every((one) => one.kind !== "call");
}

/** Makes a module's first call visible, wherever it is, and selects it. */
export function showModule(id: number): void {
  const all = graph.value;
  const known = model.value;
  if (!all || !known) return;
  const path = known.module(id).path;
  const call = all.calls(path)[0];
  batch(() => {
    if (call === undefined) selectedKey.value = "";
    else showNode(all.node(call));
    if (call === undefined) select(id);
  });
}

export function showNode(node: Node): void {
  const all = graph.value!;
  const line = all.line(node.id);
  const here = inside.value;
  if (node.id === here?.id) {
    selectedKey.value = "";
    return;
  }
  const at = here ? line.findIndex((one) => one.id === here.id) : -1;
  const between = line.slice(at + 1, -1);
  const visible = (at >= 0 || !here) && between.every((one) => opened.value.has(one.key));
  const parent = node.parent === undefined ? undefined : all.node(node.parent);
  if (!visible) entered.value = !parent || (parent.parent === undefined && all.roots.length === 1) ? "" : parent.key;
  openStacksAround(node);
  selectedKey.value = node.key;
}

/** Opens the stacks and groups that a node is folded into. */
function openStacksAround(node: Node): void {
  const all = levels.value!;
  const next = new Set(opened.value);
  let items = all.ofCall(node.parent).items;
  for (;;) {
    const around = items.find((item) => item.members.length && holds(item, node.key));
    if (!around) break;
    next.add(around.key);
    items = all.inside(around).items;
  }
  if (next.size !== opened.value.size) opened.value = next;
}

function holds(item: Item, key: string): boolean {
  return item.key === key || item.members.some((member) => holds(member, key));
}

/** From the model down to the opened call. */
export const way = computed<readonly { key: string; label: string }[]>(() => {
  const [all, known, here] = [graph.value, model.value, inside.value];
  if (!all || !known) return [];
  const line = here ? all.line(here.id) : [];
  const several = all.roots.length > 1 ? [{ key: "", label: known.name }] : [];
  const named = line.map((node, at) => ({
    key: at === 0 && !several.length ? "" : node.key,
    label: node.path ? wordsFor(known, { key: "", kind: "call", node, members: [] }).title : known.name,
  }));
  return [...several, ...named];
});
