/** The table of a folder of runs: what is asked for, what was sent, and which rows are selected. */

import { batch, effect, signal } from "@preact/signals";
import type { RunsTable } from "../data/records";
import { addRuns, hasTable, source, stores, tellFailure } from "../state/live";
import { comparedRuns, shownRun } from "../state/state";

const POLL_MS = 1000;
export const PAGE_ROWS = 200;

/** Whether the table is shown in place of a run. */
export const showsTable = signal(false);
export const where = signal("");
/** A column, with "-" for the highest first; "" for the latest runs first. */
export const sort = signal("");
export const count = signal(PAGE_ROWS);
export const table = signal<RunsTable | null>(null);
/** What is wrong with the filter; "" if nothing is. */
export const problem = signal("");
/** The paths of the rows that are selected, in the order of selection. */
export const chosen = signal<readonly string[]>([]);

/** The most runs that are overlaid at once. */
export const MOST_OVERLAID = 1000;
/** The paths of the runs whose loss is shown in one chart. */
export const overlaid = signal<readonly string[]>([]);

/** Overlays the loss of the selected runs; of the first ones of the table if none is selected. */
export async function overlay(): Promise<void> {
  if (chosen.value.length) {
    overlaid.value = chosen.value;
    return;
  }
  try {
    const sent = await source.value!.table!({ where: where.value, sort: sort.value, count: MOST_OVERLAID });
    overlaid.value = sent.table?.rows.map(({ path }) => path) ?? [];
  } catch (error) {
    tellFailure(error);
  }
}

export function toggleChosen(path: string): void {
  const all = chosen.value;
  chosen.value = all.includes(path) ? all.filter((one) => one !== path) : [...all, path];
}

/** Sorts by a column: lowest first, then highest first, then as at the start. */
export function sortBy(key: string): void {
  sort.value = sort.value === key ? `-${key}` : sort.value === `-${key}` ? "" : key;
}

/** Shows runs of the table: the first one, compared with the others. */
export async function showRuns(paths: readonly string[]): Promise<void> {
  const from = source.value;
  if (!from?.open || !paths.length) return;
  try {
    const numbers: number[] = [];
    for (const path of paths) numbers.push((await from.open(path)).number);
    if (Math.max(...numbers) >= stores.value.length) await addRuns(from);
    batch(() => {
      shownRun.value = numbers[0]!;
      comparedRuns.value = numbers.slice(1);
      showsTable.value = false;
    });
  } catch (error) {
    tellFailure(error);
  }
}

/** Reads the table while it is shown, again and again: runs go on, and new ones come. */
export function keepTable(): void {
  let timer = 0;
  let asked = 0;
  effect(() => {
    clearTimeout(timer);
    if (!showsTable.value || !hasTable.value) return;
    const query = { where: where.value, sort: sort.value, count: count.value };
    const mine = ++asked;
    const read = async (): Promise<void> => {
      const from = source.peek();
      try {
        const sent = await from!.table!(query);
        if (mine !== asked) return;
        batch(() => {
          problem.value = sent.problem ?? "";
          if (sent.table) table.value = sent.table;
        });
      } catch (error) {
        tellFailure(error);
      }
      if (mine === asked) timer = window.setTimeout(() => void read(), POLL_MS);
    };
    void read();
  });
}
