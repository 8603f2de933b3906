/** The state of the page as signals, and functions for the user's actions. */

import { batch, computed, signal } from "@preact/signals";
import type { Model } from "../data/model";
import type { Series } from "../data/records";
import { NOTHING_YET, type RunStore } from "../data/store";
import { beginnings, problemsByPath } from "../training/finding-groups";
import { browse, browseFound, search } from "../tree/rows";
import { allReportKinds, stores } from "./live";

/** Which run is shown, and which ones it is compared with. */
export const shownRun = signal(0);
export const comparedRuns = signal<readonly number[]>([]);
export const shown = computed<RunStore | null>(() => stores.value[shownRun.value] ?? null);
export const comparedAll = computed<readonly RunStore[]>(() =>
  comparedRuns.value.map((number) => stores.value[number]).filter((store) => store !== undefined),
);
/** The run whose graph is merged with that of the shown run. */
export const compared = computed<RunStore | null>(() => comparedAll.value[0] ?? null);

/** The same series in the runs that are compared, where they have it. */
export function twinsOf({ path, name }: Series): readonly { store: RunStore; series: Series }[] {
  return comparedAll.value.flatMap((store) => {
    const series = store.series.value.find((one) => one.path === path && one.name === name);
    return series ? [{ store, series }] : [];
  });
}

/** Distances between the weights of the shown and the compared run, by dotted name; null if unknown. */
export const distances = signal<ReadonlyMap<string, number> | null>(null);

export function nameOfRun(store: RunStore): string {
  const { name = "", file, rank = 0, world_size } = store.run.value ?? {};
  return world_size ? `rank ${rank}` : (file ?? name);
}

export const run = computed(() => shown.value?.run.value ?? null);
export const model = computed<Model | null>(() => shown.value?.model.value ?? null);
export const status = computed(() => shown.value?.status.value ?? NOTHING_YET);
export const series = computed<readonly Series[]>(() => shown.value?.series.value ?? []);

const findings = computed(() => shown.value?.findings.value ?? []);
/** The problems at each module and below it, by path. */
export const problems = computed(() => problemsByPath(findings.value));
/** At which steps problems begin. */
export const problemSteps = computed(() => beginnings(findings.value));

export const VIEWS = ["reports", "overview", "graph", "gradients", "scalars", "findings", "activations", "time", "memory"] as const;
export type View = (typeof VIEWS)[number];
/** The view that was chosen; null until someone chooses one. */
export const chosenView = signal<View | null>(null);
/** The kinds of reports about the shown run, such as "Comparison". */
export const reportKinds = computed(() => (shownRun.value === 0 ? allReportKinds.value : []));
/** What a verb returned comes first; a training opens on its overview, a model without one on its graph. */
export const usualView = computed<View>(() => {
  // A diagram says nothing that the graph does not.
  if (reportKinds.value.some((kind) => kind !== "Diagram")) return "reports";
  return status.value.finished && status.value.last_step < 0 ? "graph" : "overview";
});
export const view = computed<View>(() => chosenView.value ?? usualView.value);

export const theme = signal<"" | "light" | "dark">("");

export const selected = signal(0);
export const query = signal("");
const open = signal<ReadonlySet<number>>(new Set([0]));
const toggledInSearch = signal<ReadonlySet<number>>(new Set());

export const found = computed(() => (model.value && query.value ? search(model.value, query.value) : null));

/** The paths of all matches and of the modules around them. */
export const foundPaths = computed(() => {
  const paths = new Set<string>();
  for (const id of found.value?.matches ?? []) for (const { path } of model.value!.line(id)) paths.add(path);
  return paths;
});

export const rows = computed(() => {
  if (!model.value) return [];
  return found.value ? browseFound(model.value, found.value, toggledInSearch.value) : browse(model.value, open.value);
});

/** The series of each module; those without a module are at the root. */
export const seriesByModule = computed(() => {
  const groups = new Map<number, Series[]>();
  for (const one of series.value) {
    const id = model.value?.find(one.path) ?? 0;
    const known = groups.get(id);
    if (known) known.push(one);
    else groups.set(id, [one]);
  }
  return groups;
});

/** Sets the model of a run, with its first levels open. */
export function openFirst(next: Model): void {
  const opened = new Set([0]);
  for (let id = 0; next.children(id).length === 1;) {
    id = next.children(id)[0]!;
    opened.add(id);
  }
  open.value = opened;
}

export function select(id: number): void {
  selected.value = id;
}

export function toggle(id: number): void {
  const set = found.value ? toggledInSearch : open;
  const next = new Set(set.value);
  if (!next.delete(id)) next.add(id);
  set.value = next;
}

export function lookFor(text: string): void {
  batch(() => {
    if (!text && query.value) reveal(selected.value);
    query.value = text;
    toggledInSearch.value = new Set();
  });
}

/** Opens the tree as far as needed to see a module, and selects it. */
export function reveal(id: number): void {
  const above = model.value?.line(id).slice(0, -1) ?? [];
  const closed = above.filter((module) => !open.value.has(module.id));
  if (closed.length) open.value = new Set([...open.value, ...closed.map((module) => module.id)]);
  selected.value = id;
}
