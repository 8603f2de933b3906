/** What the page knows and what it shows, as signals; the functions are what a person can do. */

import { batch, computed, effect, signal } from "@preact/signals";
import { readPlace, writePlace } from "./address";
import { Model } from "./model";
import type { RunPayload, Series, Status } from "./records";
import { browse, browseFound, search } from "./rows";

const ADDRESS_DELAY_MS = 200;

export const run = signal<RunPayload["run"] | null>(null);
export const model = signal<Model | null>(null);
export const series = signal<readonly Series[]>([]);
export const status = signal<Status>({ last_step: -1, finished: true, series: 0 });
/** What went wrong while reading; "" if nothing did. */
export const failure = signal("");

export const selected = signal(0);
export const query = signal("");
const open = signal<ReadonlySet<number>>(new Set([0]));
const toggledInSearch = signal<ReadonlySet<number>>(new Set());

export const found = computed(() => (model.value && query.value ? search(model.value, query.value) : null));

export const rows = computed(() => {
  if (!model.value) return [];
  return found.value
    ? browseFound(model.value, found.value, toggledInSearch.value)
    : browse(model.value, open.value);
});

/** The series of each module; those of a place that is no module stand at the root. */
const seriesByModule = computed(() => {
  const groups = new Map<number, Series[]>();
  for (const one of series.value) {
    const id = model.value?.find(one.path) ?? 0;
    groups.set(id, [...(groups.get(id) ?? []), one]);
  }
  return groups;
});

export const shownSeries = computed(() => seriesByModule.value.get(selected.value) ?? []);

/** The first few modules below the selected one at which something was measured. */
export const measuredBelow = computed(() => {
  const known = model.value;
  if (!known) return [];
  const above = known.module(selected.value).path;
  const below = (id: number) => id !== selected.value && (!above || known.module(id).path.startsWith(`${above}.`));
  return [...seriesByModule.value.keys()].filter(below).slice(0, 12);
});

/** Takes a model, opened so far that a first look shows something. */
export function showModel(next: Model): void {
  const opened = new Set([0]);
  for (let id = 0; next.children(id).length === 1; ) {
    id = next.children(id)[0]!;
    opened.add(id);
  }
  batch(() => {
    model.value = next;
    open.value = opened;
    followAddress();
  });
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

/** Goes to a module wherever it is, and leaves the way back to the browser's back button. */
export function jump(id: number): void {
  writeAddress();
  history.pushState(null, "", location.href);
  batch(() => {
    query.value = "";
    reveal(id);
  });
}

export function lookFor(text: string): void {
  batch(() => {
    if (!text && query.value) reveal(selected.value);
    query.value = text;
    toggledInSearch.value = new Set();
  });
}

function reveal(id: number): void {
  const above = model.value?.line(id).slice(0, -1) ?? [];
  open.value = new Set([...open.value, ...above.map((module) => module.id)]);
  selected.value = id;
}

/** Shows what the address asks for. */
function followAddress(): void {
  const place = readPlace(location.hash);
  batch(() => {
    query.value = place.search;
    reveal(model.value?.find(place.module) ?? 0);
  });
}

const address = computed(() =>
  model.value ? writePlace({ module: model.value.module(selected.value).path, search: query.value }) : location.hash,
);

function writeAddress(): void {
  if (address.value === location.hash) return;
  history.replaceState(null, "", address.value || location.pathname + location.search);
}

/** Keeps the address up to date, a moment late: browsers refuse when a held key changes it too often. */
export function keepAddress(): void {
  addEventListener("popstate", followAddress);
  let timer = 0;
  effect(() => {
    void address.value;
    clearTimeout(timer);
    timer = window.setTimeout(writeAddress, ADDRESS_DELAY_MS);
  });
}
