/** The size of the weights or outputs of modules at the shown step and at the compared one. */

import { batch, computed, effect, signal } from "@preact/signals";
import type { Column } from "../data/histograms";
import type { Model } from "../data/model";
import { isFlow, readName } from "../data/names";
import type { Series } from "../data/records";
import { oneAtATime } from "../state/one-at-a-time";
import { model, series } from "../state/state";
import { referenceStep, step } from "../state/time";
import { columnsAt } from "./latest-histograms";

export type Sized = "weights" | "outputs";

/** Which of them is shown, if any. */
export const sized = signal<Sized | null>(null);

/** Sums of squares by path; those of weights include modules below. */
export type Squares = ReadonlyMap<string, number>;
export const squaresNow = signal<Squares>(new Map());
export const squaresMarked = signal<Squares>(new Map());

export function isOf(what: Sized, one: Series, known: Model | null): boolean {
  const name = readName(one.name);
  if (one.kind !== "histogram" || name.isEvaluation || name.aspect) return false;
  if (what === "outputs") return isFlow(name, "output");
  const slots = known?.modules[known.find(one.path) ?? -1]?.slots ?? [];
  return slots.some((slot) => slot.role === "parameter" && slot.name === name.what);
}

const wanted = computed<readonly Series[]>(() => {
  const what = sized.value;
  return what && referenceStep.value !== null ? series.value.filter((one) => isOf(what, one, model.value)) : [];
});

const read = oneAtATime(async () => {
  const [all, at, marked] = [wanted.peek(), step.peek(), referenceStep.peek()];
  if (!all.length || at < 0 || marked === null) return;
  const ids = all.map((one) => one.id);
  const sum = sized.peek() === "weights" ? addUpwards : add;
  const [now, before] = await Promise.all([columnsAt(ids, at), columnsAt(ids, marked)]);
  batch(() => {
    squaresNow.value = squaresOf(all, now, sum);
    squaresMarked.value = squaresOf(all, before, sum);
  });
});

effect(() => {
  void [wanted.value, step.value, referenceStep.value];
  void read();
});

type Sum = (squares: Map<string, number>, path: string, square: number) => void;

function squaresOf(all: readonly Series[], columns: ReadonlyMap<number, Column>, sum: Sum): Squares {
  const squares = new Map<string, number>();
  for (const { id, path } of all) {
    const column = columns.get(id);
    if (column) sum(squares, path, squareOf(column));
  }
  return squares;
}

/** Assumes that all values of a bin are in its middle. */
function squareOf({ counts, first, width }: Column): number {
  return counts.reduce((sum, count, at) => sum + count * ((first + at + 0.5) * width) ** 2, 0);
}

function add(squares: Map<string, number>, path: string, square: number): void {
  squares.set(path, (squares.get(path) ?? 0) + square);
}

/** Adds to a module and to all modules around it. */
export function addUpwards(squares: Map<string, number>, path: string, square: number): void {
  for (let end: number = path.length; ; end = path.lastIndexOf(".", end - 1)) {
    add(squares, path.slice(0, Math.max(0, end)), square);
    if (end <= 0) break;
  }
}
