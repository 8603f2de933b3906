/** Series as CSV. */

import type { Points } from "../data/points";
import type { Series } from "../data/records";

/** A line for each point of each series: where, what, when, and each number under its name. */
export function toCsv(rows: readonly { readonly series: Series; readonly points: Points }[]): string {
  const fields = [...new Set(rows.flatMap(({ points }) => Object.keys(points.columns)))];
  const lines = rows.flatMap(({ series, points }) =>
    points.steps.map((step, at) =>
      [series.path, series.name, step, ...fields.map((field) => points.columns[field]?.[at] ?? "")].map(cell).join(","),
    ),
  );
  return [["path", "name", "step", ...fields].join(","), ...lines, ""].join("\r\n");
}

/** A text that begins like a formula would be run by a spreadsheet: it gets a sign before it. */
function cell(value: string | number): string {
  if (typeof value === "number") return String(value);
  const harmless = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
}
