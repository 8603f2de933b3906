/** The table of a folder of runs: what was sent of it, and which rows are selected. */

import { batch, computed, effect, signal } from "@preact/signals";
import type { CurvesQuery, RunCurve, RunsTable, TablePayload, TableQuery } from "../data/records";

const POLL_MS = 1000;
export const PAGE_ROWS = 200;

/** What the page around the table gives it. */
export interface RunsProps {
  readonly where: string;
  /** A column, with "-" for the highest first; "" for the latest runs first. */
  readonly sort: string;
  readonly isDark: boolean;
  ask(where: string, sort: string): void;
  table(query: TableQuery): Promise<TablePayload>;
  curves(query: CurvesQuery): Promise<{ readonly curves: readonly RunCurve[] }>;
  show(paths: readonly string[]): void;
  tellFailure(error: unknown): void;
}

export const page = signal<RunsProps | null>(null);
export const where = computed(() => page.value?.where ?? "");
export const sort = computed(() => page.value?.sort ?? "");
export const isDark = computed(() => !!page.value?.isDark);
export const count = signal(PAGE_ROWS);
export const table = signal<RunsTable | null>(null);
/** What is wrong with the filter; "" if nothing is. */
export const problem = signal("");
/** The paths of the rows that are selected, in the order of selection. */
export const chosen = signal<readonly string[]>([]);

/** The most runs that are overlaid at once. */
const MOST_OVERLAID = 1000;
/** Paths of one request, which are part of its address. */
const PATHS_AT_ONCE = 200;

/** The loss of a run. */
export interface Curve {
  readonly path: string;
  readonly steps: Float32Array;
  readonly values: Float32Array;
}

/** The curves that are shown in one chart. */
export const overlaid = signal<readonly Curve[]>([]);

/** Overlays the loss of the selected runs; of the first ones of the table if none is selected. */
export async function overlay(): Promise<void> {
  const paths = chosen.value;
  const queries: CurvesQuery[] = [];
  for (let at = 0; at < paths.length; at += PATHS_AT_ONCE) queries.push({ path: paths.slice(at, at + PATHS_AT_ONCE) });
  if (!paths.length) queries.push({ where: where.value, sort: sort.value, count: MOST_OVERLAID });
  try {
    const sent = await Promise.all(queries.map((query) => page.value!.curves(query)));
    overlaid.value = sent.flatMap(({ curves }) => curves.map(readCurve));
  } catch (error) {
    page.value!.tellFailure(error);
  }
}

function readCurve({ path, points }: RunCurve): Curve {
  const numbers = new Float32Array(Uint8Array.from(atob(points), (letter) => letter.charCodeAt(0)).buffer);
  return { path, steps: numbers.subarray(0, numbers.length / 2), values: numbers.subarray(numbers.length / 2) };
}

export function toggleChosen(path: string): void {
  const all = chosen.value;
  chosen.value = all.includes(path) ? all.filter((one) => one !== path) : [...all, path];
}

/** Sorts by a column: lowest first, then highest first, then as at the start. */
export function sortBy(key: string): void {
  page.value!.ask(where.value, sort.value === key ? `-${key}` : sort.value === `-${key}` ? "" : key);
}

/** Reads the table while it is shown, again and again: runs go on, and new ones come. */
export function keepTable(): () => void {
  let timer = 0;
  let asked = 0;
  const stop = effect(() => {
    clearTimeout(timer);
    const query = { where: where.value, sort: sort.value, count: count.value };
    const mine = ++asked;
    const read = async (): Promise<void> => {
      try {
        const sent = await page.peek()!.table(query);
        if (mine !== asked) return;
        batch(() => {
          problem.value = sent.problem ?? "";
          if (sent.table) table.value = sent.table;
        });
      } catch (error) {
        page.peek()!.tellFailure(error);
      }
      if (mine === asked) timer = window.setTimeout(() => void read(), POLL_MS);
    };
    void read();
  });
  return () => {
    stop();
    clearTimeout(timer);
    asked++;
  };
}
