/** Binds what is shown to the address, both ways. */

import { batch, computed, effect, type Signal } from "@preact/signals";
import { colouring, COLOURINGS } from "../graph/colours";
import type { Node } from "../graph/calls";
import { entered, folds, opened, showModule, showNode, showsOps, thick } from "../graph/state";
import { chosenRejection, columns, logarithmic, mode, MODES } from "../panels/state";
import { type Place, readList, readLists, readPlace, writeList, writeLists, writePlace } from "./address";
import { use } from "./live";
import {
  comparedAll,
  comparedRuns,
  model,
  openFirst,
  query,
  reveal,
  selected,
  shown,
  shownRun,
  theme,
  view,
  VIEWS,
} from "./state";
import { chosenStep, referenceStep } from "./time";

const ADDRESS_DELAY_MS = 200;

/** One part of the view, and how it is written; "" is its default. */
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

const HELD: Readonly<Record<string, Held>> = {
  run: held(shownRun, (number) => (number ? String(number) : ""), Number),
  compare: held(
    comparedRuns,
    (all) => all.join(","),
    (written) => (written ? written.split(",").map(Number) : []),
  ),
  view: oneOf(view, VIEWS),
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
  ops: flag(showsOps, false),
  fold: flag(folds, true),
  thick: flag(thick, false),
  colour: oneOf(colouring, COLOURINGS),
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
};

const address = computed(() => {
  if (!model.value) return location.hash;
  return writePlace(Object.fromEntries(Object.entries(HELD).map(([name, one]) => [name, one.write()])));
});

/** Shows what the address asks for. */
function followAddress(): void {
  const place: Place = readPlace(location.hash);
  batch(() => {
    for (const [name, one] of Object.entries(HELD)) one.read(place[name] ?? "");
  });
}

/** Goes to a module wherever it is, and leaves the way back to the browser's back button. */
export function jump(id: number): void {
  keepWayBack();
  revealModule(id);
}

/** The same from another view, whose place is the way back. */
export function jumpToGraph(path: string): void {
  const id = model.value?.find(path);
  if (id === undefined) return;
  keepWayBack();
  batch(() => {
    view.value = "graph";
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

/** One call, or what stands in it. */
export function revealNode(node: Node): void {
  batch(() => {
    query.value = "";
    reveal(model.value?.find(node.path) ?? 0);
    showNode(node);
  });
}

/** What is shown now is where the browser's back button leads to. */
export function keepWayBack(): void {
  writeAddress();
  if (location.protocol !== "about:") history.pushState(null, "", location.href);
}

function writeAddress(): void {
  if (address.value === location.hash) return;
  try {
    history.replaceState(null, "", address.value || location.pathname + location.search);
  } catch {
    // A frame in a notebook has no address of its own.
  }
}

/**
 * Shows what the address asks for, and keeps it up to date from then on, a moment late: browsers
 * refuse when a held key changes it too often.
 */
export function keepAddress(): void {
  followAddress();
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
      // Only now it is known which modules there are; all else may have been changed since.
      if (isFirst) HELD["module"]!.read(readPlace(location.hash)["module"] ?? "");
    });
  });
  addEventListener("popstate", followAddress);
  let timer = 0;
  effect(() => {
    void address.value;
    clearTimeout(timer);
    timer = window.setTimeout(writeAddress, ADDRESS_DELAY_MS);
  });
}
