/** Whether the table of a folder of runs is shown, and what is asked of it. */

import { batch, signal } from "@preact/signals";
import { addRuns, source, stores, tellFailure } from "../state/live";
import { comparedRuns, shownRun } from "../state/state";

/** Whether the table is shown in place of a run. */
export const showsTable = signal(false);
export const where = signal("");
/** A column, with "-" for the highest first; "" for the latest runs first. */
export const sort = signal("");

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
