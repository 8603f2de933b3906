/** The points of a series from the server, which grow while it runs. */

import type { PointsPayload, Sent } from "./records";

/** Above this many points, they are read again, so that the server can thin them out. */
export const MANY_POINTS = 4000;

export interface Points {
  readonly steps: readonly number[];
  readonly columns: Readonly<Record<string, readonly number[]>>;
}

export function readPoints(sent: PointsPayload["points"][number]): Points {
  const columns = Object.entries(sent.columns).map(([field, values]) => [field, values.map(readNumber)]);
  return { steps: sent.steps, columns: Object.fromEntries(columns) };
}

/** `known` with the newer points of `more`; a step that was sent twice is kept once. */
export function extend(known: Points, more: Points): Points {
  const last = known.steps.at(-1) ?? -1;
  const from = more.steps.findIndex((step) => step > last);
  if (from < 0) return known;
  const columns = Object.entries(known.columns).map(([field, values]) => [
    field,
    [...values, ...(more.columns[field]?.slice(from) ?? [])],
  ]);
  return { steps: [...known.steps, ...more.steps.slice(from)], columns: Object.fromEntries(columns) };
}

export function readNumber(sent: Sent): number {
  return typeof sent === "number" ? sent : Number(sent);
}
