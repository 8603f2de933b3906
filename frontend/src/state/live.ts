/** Keeps the page up to date: reads everything once, then new steps of what is shown. */

import { batch, computed, effect, type Signal, signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { extendHeat, type Heat } from "../data/histograms";
import { extend, MANY_POINTS, type Points, readPoints } from "../data/points";
import { extendLayers, type LayerHeat } from "../data/layer-heat";
import type { LayerStatistic, Run, Status } from "../data/records";
import type { Source } from "../data/source";
import { RunStore } from "../data/store";
import { oneAtATime } from "./one-at-a-time";

export const source = signal<Source | null>(null);
export const stores = signal<readonly RunStore[]>([]);
/** Whether the page shows a folder without runs. */
export const awaitsRuns = computed(() => source.value !== null && !stores.value.length);
export const saved = signal(false);
/** Whether there is a table of all runs of a folder, of which few are open. */
export const hasTable = signal(false);
/** The kinds of reports about the first run. */
export const allReportKinds = signal<readonly string[]>([]);
export const connected = signal(true);
/** The runs that the first one is compared with when the page opens. */
export const usualCompared = signal<readonly number[]>([]);
/** The last read error; "" if there is none. */
export const failure = signal("");

export async function start(from: Source): Promise<void> {
  const { runs, grows = false, compare = [], table = false, reports = [] } = await from.runs();
  const all = runs.map(storeOf);
  const abouts = await Promise.all(all.map((store) => from.read(store.number, "run").catch(() => null)));
  batch(() => {
    source.value = from;
    saved.value = from.saved;
    hasTable.value = table;
    allReportKinds.value = reports;
    usualCompared.value = compare;
    stores.value = all;
    abouts.forEach((about, at) => about && (all[at]!.status.value = { ...about.status, revision: -1 }));
  });
  if (all[0]) await bringUpToDate(all[0], from, abouts[0]?.status);
  if (from.saved || (!grows && abouts.every((about) => about?.status.finished))) return;
  from.follow({
    statuses: (statuses) => {
      statuses.forEach((status, at) => stores.value[at] && take(stores.value[at], from, status));
      if (statuses.length > stores.value.length) void addRuns(from).catch(tellFailure);
    },
    connected: (now) => (connected.value = now),
  }, grows);
}

function storeOf(run: Run, number: number): RunStore {
  const store = new RunStore(number);
  store.run.value = run;
  return store;
}

/** Adds the runs that were started since the page was opened. */
export async function addRuns(from: Source): Promise<void> {
  const { runs } = await from.runs();
  const known = stores.value;
  stores.value = [...known, ...runs.map(storeOf).slice(known.length)];
}

const inUse = new Map<RunStore, () => Promise<void>>();

/** Reads this run from now on, whenever it changes. */
export function use(store: RunStore): void {
  const from = source.value;
  if (from && !inUse.has(store)) {
    void from
      .read(store.number, "run")
      .then((about) => bringUpToDate(store, from, about.status))
      .catch(tellFailure);
  }
}

async function bringUpToDate(store: RunStore, from: Source, status: Status | undefined): Promise<void> {
  if (inUse.has(store) || !status) return;
  inUse.set(
    store,
    oneAtATime(() => readNews(store, from)),
  );
  const [sent] = await Promise.all([from.read(store.number, "series"), store.readDocuments(from)]);
  batch(() => {
    store.takeSeries(sent);
    store.status.value = status;
  });
  effect(() => {
    const wants = store.wantedPoints.value.size + store.wantedHeats.value.size + store.wantedLayers.value.size;
    if (wants && store.status.value.last_step >= 0) void inUse.get(store)!();
  });
}

function take(store: RunStore, from: Source, next: Status): void {
  const known = store.status.value;
  batch(() => {
    if (next.last_step > known.last_step) store.lastNews.value = Date.now();
    connected.value = true;
    store.status.value = inUse.has(store) ? next : { ...next, revision: -1 };
  });
  if (!inUse.has(store)) return;
  const isRevised = next.revision !== known.revision;
  if (isRevised) void store.readDocuments(from).catch(tellFailure);
  if (isRevised || next.series > store.series.value.length) {
    // The order of layers may have changed.
    layersUpTo.delete(store);
    void from
      .read(store.number, "series")
      .then((sent) => batch(() => store.takeSeries(sent)))
      .catch(tellFailure);
  }
}

async function readNews(store: RunStore, from: Source): Promise<void> {
  try {
    await Promise.all([readPointNews(store, from), readHeatNews(store, from), readLayerNews(store, from)]);
    batch(() => {
      failure.value = "";
      connected.value = true;
    });
  } catch (problem) {
    tellFailure(problem);
  }
}

/** The last requested step. */
type UpTo<Key> = WeakMap<RunStore, Map<Key, number>>;
const pointsUpTo: UpTo<number> = new WeakMap();
const heatsUpTo: UpTo<number> = new WeakMap();
const layersUpTo: UpTo<LayerStatistic> = new WeakMap();

async function readPointNews(store: RunStore, from: Source): Promise<void> {
  const last = store.status.value.last_step;
  const upTo = remembered(pointsUpTo, store);
  const crowded = (id: number) => (store.points.value.get(id)?.steps.length ?? 0) > MANY_POINTS;
  for (const [after, ids] of byLastAsked(store.wantedPoints.value.keys(), upTo, last, crowded)) {
    const sent = await from.points(store.number, ids, after);
    const next = new Map<number, Points>(store.points.value);
    for (const one of sent.points) {
      const known = after < 0 ? undefined : next.get(one.series);
      next.set(one.series, known ? extend(known, readPoints(one)) : readPoints(one));
    }
    ids.forEach((id) => upTo.set(id, last));
    store.points.value = next;
  }
}

async function readHeatNews(store: RunStore, from: Source): Promise<void> {
  const last = store.status.value.last_step;
  const upTo = remembered(heatsUpTo, store);
  for (const [after, ids] of byLastAsked(store.wantedHeats.value.keys(), upTo, last)) {
    const sent = await from.histograms(store.number, ids, after);
    const next = new Map<number, Heat>(store.heats.value);
    for (const one of sent.histograms) {
      const heat = extendHeat(after < 0 ? undefined : next.get(one.series), one);
      if (heat) next.set(one.series, heat);
      upTo.set(one.series, heat ? last : -1);
    }
    store.heats.value = next;
    const outdated = ids.filter((id) => upTo.get(id) === -1);
    if (outdated.length) await readHeatNews(store, from);
  }
}

async function readLayerNews(store: RunStore, from: Source): Promise<void> {
  const last = store.status.value.last_step;
  const upTo = remembered(layersUpTo, store);
  for (const statistic of store.wantedLayers.value.keys()) {
    const after = upTo.get(statistic) ?? -1;
    if (after >= last) continue;
    const known = after < 0 ? undefined : store.layers.value.get(statistic);
    const heat =
      extendLayers(known, await from.layers(store.number, statistic, after)) ??
      extendLayers(undefined, await from.layers(store.number, statistic, -1));
    if (!heat) continue;
    store.layers.value = new Map(store.layers.value).set(statistic, heat);
    // Later steps are read next time.
    upTo.set(statistic, heat.ends.at(-1) ?? -1);
  }
}

function remembered<Key>(all: UpTo<Key>, store: RunStore): Map<Key, number> {
  const known = all.get(store) ?? new Map<Key, number>();
  all.set(store, known);
  return known;
}

/** Series with missing steps, grouped by the last requested step. */
function byLastAsked(
  ids: Iterable<number>,
  upTo: ReadonlyMap<number, number>,
  last: number,
  anew: (id: number) => boolean = () => false,
): Map<number, number[]> {
  const groups = new Map<number, number[]>();
  for (const id of ids) {
    const known = upTo.get(id) ?? -1;
    if (known >= last) continue;
    const after = anew(id) ? -1 : known;
    groups.set(after, [...(groups.get(after) ?? []), id]);
  }
  return groups;
}

/** The points of a series for as long as a component shows them. */
export function usePoints(store: RunStore, id: number | undefined): Points | undefined {
  useEffect(() => want(store.wantedPoints, id), [store, id]);
  return id === undefined ? undefined : store.points.value.get(id);
}

export function useHeat(store: RunStore, id: number | undefined): Heat | undefined {
  useEffect(() => want(store.wantedHeats, id), [store, id]);
  return id === undefined ? undefined : store.heats.value.get(id);
}

/** A statistic of layers for as long as a component shows it. */
export function useLayerHeat(store: RunStore, statistic: LayerStatistic | undefined): LayerHeat | undefined {
  useEffect(() => want(store.wantedLayers, statistic), [store, statistic]);
  return statistic && store.layers.value.get(statistic);
}

function want<Key>(wanted: Signal<ReadonlyMap<Key, number>>, id: Key | undefined): (() => void) | undefined {
  if (id === undefined) return undefined;
  const change = (by: number) => {
    const next = new Map(wanted.peek());
    const count = (next.get(id) ?? 0) + by;
    if (count) next.set(id, count);
    else next.delete(id);
    wanted.value = next;
  };
  change(1);
  return () => change(-1);
}

/** Shows a read error; a server that does not answer has its own message. */
export function tellFailure(problem: unknown): void {
  if (problem instanceof TypeError && !saved.value) connected.value = false;
  else failure.value = `Could not load some data: ${String(problem)}`;
}
