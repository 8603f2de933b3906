/** Syncs the view with the address, in both directions. */

import { batch, computed, effect, signal, type Signal } from "@preact/signals";
import { coloring, COLORINGS } from "../graph/colors";
import type { Node } from "../graph/calls";
import { chosenOps, entered, folds, opened, showModule, showNode, thick } from "../graph/state";
import { chosenRejection, columns, logarithmic, mode, MODES } from "../panels/state";
import { type Place, readList, readLists, readPlace, writeList, writeLists, writePlace } from "./address";
import { readNumber } from "../data/points";
import { addRuns, failure, hasTable, source, stores, tellFailure, use, usualCompared } from "./live";
import { showsTable, sort, where } from "../runs/state";
import {
  compared,
  comparedAll,
  comparedRuns,
  distances,
  model,
  nameOfRun,
  openFirst,
  query,
  reveal,
  selected,
  shown,
  shownRun,
  chosenView,
  theme,
  usualView,
  view,
  type View,
  VIEWS,
} from "./state";
import { chosenStep, referenceStep } from "./time";

const ADDRESS_DELAY_MS = 200;

/** One part of the view and its text in the address; "" is its default. */
interface Held {
  write(): string;
  read(text: string): void;
}

function held<T>(signal: Signal<T>, write: (value: T) => string, read: (text: string) => T): Held {
  return {
    write: () => write(signal.value),
    read: (text) => {
      const next = read(text);
      if (write(next) !== write(signal.peek())) signal.value = next;
    },
  };
}

const flag = (signal: Signal<boolean>, usual: boolean) =>
  held(
    signal,
    (on) => (on === usual ? "" : on ? "1" : "0"),
    (text) => (text ? text === "1" : usual),
  );

const oneOf = <T extends string>(signal: Signal<T>, all: readonly T[]) =>
  held<T>(
    signal,
    (one) => (one === all[0] ? "" : one),
    (text) => all.find((one) => one === text) ?? all[0]!,
  );

const numbered = (signal: Signal<number | null>) =>
  held(
    signal,
    (value) => (value === null ? "" : String(value)),
    (text) => (/^\d+$/.test(text) ? Number(text) : null),
  );

const text = (signal: Signal<string>) => held(signal, String, String);

/** A run by its id, which does not change when runs are added; by its index if it has none. */
function writeRun(at: number): string {
  return stores.value[at]?.run.value?.id ?? String(at);
}

/** The index of a run; -1 if it does not exist. */
function readRun(text: string): number {
  const at = stores.value.findIndex((store) => store.run.value?.id === text);
  return at < 0 && /^\d{1,4}$/.test(text) ? Number(text) : at;
}

const HELD: Readonly<Record<string, Held>> = {
  run: held(shownRun, (at) => (stores.value.length > 1 ? writeRun(at) : ""), (text) => (text ? Math.max(0, readRun(text)) : 0)),
  compare: held(
    comparedRuns,
    (all) => (all.join() === usualCompared.value.join() ? "" : all.map(writeRun).join(",") || "none"),
    (text) => (text ? text.split(",").map(readRun).filter((at) => at >= 0) : usualCompared.value),
  ),
  view: { write: () => view.value, read: () => (chosenView.value = viewOf(readPlace(location.hash))) },
  module: {
    write: () => model.value?.modules[selected.value]?.path ?? "",
    read: (path) => reveal(model.value?.find(path) ?? 0),
  },
  search: text(query),
  in: text(entered),
  open: held(
    opened,
    (keys) => writeList([...keys]),
    (written) => new Set(readList(written)),
  ),
  ops: held(
    chosenOps,
    (on) => (on === null ? "" : on ? "1" : "0"),
    (text) => (text ? text === "1" : null),
  ),
  fold: flag(folds, true),
  thick: flag(thick, false),
  color: oneOf(coloring, COLORINGS),
  step: numbered(chosenStep),
  reference: numbered(referenceStep),
  columns: held(columns, writeLists, readLists),
  mode: oneOf(mode, MODES),
  log: flag(logarithmic, false),
  outliers: held(
    chosenRejection,
    (share) => (share === null ? "" : String(share)),
    (written) => (written && Number.isFinite(Number(written)) ? Number(written) : null),
  ),
  theme: oneOf(theme, ["", "light", "dark"]),
  list: flag(showsTable, false),
  where: text(where),
  order: text(sort),
};

/** The parts of the address of the table of runs, which has no others. */
const OF_TABLE = ["list", "where", "order", "theme"];

/** The view of an address; the graph if it has only other parts. */
function viewOf(place: Place): View | null {
  const isOfRun = Object.keys(place).some((name) => !OF_TABLE.includes(name));
  return VIEWS.find((one) => one === place["view"]) ?? (isOfRun ? "graph" : null);
}

/** Whether runs of the address are still being opened; until then the address must not change. */
const isOpening = signal(false);

const address = computed(() => {
  const isOfTable = showsTable.value;
  if (isOpening.value || (!model.value && !isOfTable)) return location.hash;
  const parts = Object.entries(HELD).filter(([name]) => name === "theme" || OF_TABLE.includes(name) === isOfTable);
  const place = Object.fromEntries(parts.map(([name, one]) => [name, one.write()]));
  if (isOfTable) return writePlace(place);
  const isAlone = Object.entries(place).every(([name, text]) => name === "view" || !text);
  const isUsual = view.value === (isAlone ? usualView.value : "graph");
  return writePlace(isUsual ? { ...place, view: "" } : place);
});

/** What the back button of the browser undoes. */
const VISITED = ["run", "compare", "in", "list"];
const visitOf = (hash: string) => {
  const place = readPlace(hash);
  return [viewOf(place) ?? usualView.peek(), ...VISITED.map((name) => place[name])].join("\n");
};

/** Shows what the address asks for. */
function followAddress(): void {
  const place: Place = readPlace(location.hash);
  batch(() => {
    for (const [name, one] of Object.entries(HELD)) one.read(place[name] ?? "");
  });
  if (visited !== null) visited = visitOf(location.hash);
}

/** Goes to a module; the browser's back button returns. */
export function jump(id: number): void {
  keepWayBack();
  revealModule(id);
}

/** The same from another view, to which the back button returns. */
export function jumpToGraph(path: string): void {
  const id = model.value?.find(path);
  if (id === undefined) return;
  keepWayBack();
  batch(() => {
    chosenView.value = "graph";
    revealModule(id);
  });
}

export function revealModule(id: number): void {
  batch(() => {
    query.value = "";
    reveal(id);
    showModule(id);
  });
}

/** One call, or a node in it. */
export function revealNode(node: Node): void {
  batch(() => {
    query.value = "";
    reveal(model.value?.find(node.path) ?? 0);
    showNode(node);
  });
}

/** The browser's back button returns to the current view. */
export function keepWayBack(): void {
  writeAddress();
  leavesWay = true;
  queueMicrotask(writeAddress);
}

/** Whether the next change of the address adds a history entry. */
let leavesWay = false;

function writeAddress(): void {
  const next = address.value;
  if (next === location.hash) return;
  const now = visitOf(next);
  const isVisit = leavesWay || (visited !== null && now !== visited);
  [leavesWay, visited] = [false, model.value ? now : null];
  try {
    history[isVisit ? "pushState" : "replaceState"](null, "", next || location.pathname + location.search);
  } catch {
    // A frame in a notebook has no address.
  }
}

/** The last visited view; null before anything is shown. */
let visited: string | null = null;

/** The runs in the address that are not open yet. */
function closedRuns(): string[] {
  const { run = "", compare = "" } = readPlace(location.hash);
  return [run, ...compare.split(",")].filter((id) => id && id !== "none" && readRun(id) < 0);
}

/** Shows the runs that the address asks for, also those of the folder that are not open yet. */
function openAsked(): void {
  const from = source.peek()!;
  const closed = closedRuns();
  if (!closed.length || !hasTable.peek()) return showAsked();
  isOpening.value = true;
  // `showAsked` reports one that is not found.
  void Promise.all(closed.map((id) => from.open!(id).catch(() => null)))
    .then(() => addRuns(from))
    .then(showAsked)
    .catch(tellFailure)
    .finally(() => (isOpening.value = false));
}

function showAsked(): void {
  const { run = "", compare = "", color } = readPlace(location.hash);
  if (run && readRun(run) < 0) failure.value = "The run in this link was not found.";
  HELD["run"]!.read(run);
  HELD["compare"]!.read(compare);
  if (comparedRuns.peek().length && !color) coloring.value = "difference";
}

/**
 * Shows what the address asks for, and keeps it up to date from then on, a moment late: browsers
 * refuse when a held key changes it too often.
 */
export function keepAddress(): void {
  followAddress();
  let areRead = false;
  effect(() => {
    // The runs are known only now.
    if (areRead || !stores.value.length) return;
    areRead = true;
    if (hasTable.peek() && !location.hash && stores.value.length > 1) showsTable.value = true;
    openAsked();
  });
  effect(() => {
    const [one, other] = [shown.value, compared.value];
    distances.value = null;
    if (one && other)
      void source
        .peek()!
        .distances(one.number, other.number)
        .then(({ distances: sent }) => {
          if (sent && other === compared.peek() && one === shown.peek())
            distances.value = new Map(Object.entries(sent).map(([name, value]) => [name, readNumber(value)]));
        })
        .catch(tellFailure);
  });
  effect(() => {
    const name = showsTable.value ? "Runs" : shown.value && nameOfRun(shown.value);
    document.title = [name, "Torchglass"].filter(Boolean).join(" – ");
  });
  effect(() => {
    if (shown.value) use(shown.value);
    comparedAll.value.forEach(use);
  });
  let first: unknown = null;
  effect(() => {
    const known = model.value;
    if (!known || first === shown.value) return;
    const isFirst = first === null;
    first = shown.value;
    batch(() => {
      openFirst(known);
      // The modules are known only now; the rest may have changed since.
      if (isFirst) HELD["module"]!.read(readPlace(location.hash)["module"] ?? "");
    });
  });
  effect(() => {
    if (model.value) visited ??= visitOf(address.peek());
  });
  addEventListener("popstate", () => {
    followAddress();
    if (closedRuns().length) openAsked();
  });
  let timer = 0;
  effect(() => {
    void address.value;
    clearTimeout(timer);
    timer = window.setTimeout(writeAddress, ADDRESS_DELAY_MS);
  });
}
