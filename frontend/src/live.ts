/** Keeps the page's knowledge fresh: reads once, then what each new step brings to what is shown. */

import { batch, effect, signal } from "@preact/signals";
import { Model } from "./model";
import { extend, MANY_POINTS, type Points, readPoints } from "./points";
import type { Status } from "./records";
import type { Source } from "./source";
import { failure, model, run, series, showModel, shownSeries, status } from "./state";

export const points = signal<ReadonlyMap<number, Points>>(new Map());
export const saved = signal(false);
export const connected = signal(true);
/** When a new step was last heard of, in ms; 0 before the first. */
export const lastNews = signal(0);

/** Up to which step the points of a series were asked for. */
const askedUpTo = new Map<number, number>();

export async function start(source: Source): Promise<void> {
  const [about, structure, list] = await Promise.all([source.run(), source.model(), source.series()]);
  batch(() => {
    saved.value = source.saved;
    run.value = about.run;
    status.value = about.status;
    series.value = list.series;
    if (structure.model) showModel(new Model(structure));
  });
  const refresh = oneAtATime(() => readNewPoints(source));
  effect(() => {
    if (shownSeries.value.length && status.value.last_step >= 0) void refresh();
  });
  if (about.status.finished || source.saved) return;
  const learn = oneAtATime(() => readNewPlaces(source));
  source.follow({
    status: (next) => take(next, learn),
    connected: (now) => {
      connected.value = now;
    },
  });
}

function take(next: Status, learn: () => Promise<void>): void {
  batch(() => {
    if (next.last_step > status.value.last_step) lastNews.value = Date.now();
    connected.value = true;
    status.value = next;
  });
  if (!model.value || next.series > series.value.length) void learn();
}

async function readNewPlaces(source: Source): Promise<void> {
  const structure = model.value ? null : await source.model();
  const list = await source.series();
  batch(() => {
    if (structure?.model) showModel(new Model(structure));
    series.value = list.series;
  });
}

async function readNewPoints(source: Source): Promise<void> {
  const last = status.value.last_step;
  const groups = new Map<number, number[]>();
  for (const { id } of shownSeries.value) {
    const crowded = (points.value.get(id)?.steps.length ?? 0) > MANY_POINTS;
    const after = crowded ? -1 : (askedUpTo.get(id) ?? -1);
    if (after < last) groups.set(after, [...(groups.get(after) ?? []), id]);
  }
  for (const [after, ids] of groups) {
    const sent = await source.points(ids, after);
    const next = new Map(points.value);
    for (const one of sent.points) {
      const known = after < 0 ? undefined : next.get(one.series);
      const read = readPoints(one);
      next.set(one.series, known ? extend(known, read) : read);
    }
    for (const id of ids) askedUpTo.set(id, last);
    points.value = next;
  }
}

/** Runs a task once more after the current time if it was asked for meanwhile, never side by side. */
function oneAtATime(task: () => Promise<void>): () => Promise<void> {
  let busy = false;
  let again = false;
  return async () => {
    again = true;
    if (busy) return;
    busy = true;
    try {
      while (again) {
        again = false;
        await task();
      }
      failure.value = "";
    } catch (problem) {
      failure.value = `Some data could not be read (${String(problem)}). What was read before is shown.`;
    } finally {
      busy = false;
    }
  };
}
