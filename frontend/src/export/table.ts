/** Series as CSV. */

import type { Points } from "../data/points";
import type { Series } from "../data/records";

/** A line per point of each series: path, name, step, and its fields. */
export function toCsv(rows: readonly { readonly series: Series; readonly points: Points }[]): string {
  const fields = [...new Set(rows.flatMap(({ points }) => Object.keys(points.columns)))];
  const lines = rows.flatMap(({ series, points }) =>
    points.steps.map((step, at) =>
      [series.path, series.name, step, ...fields.map((field) => points.columns[field]?.[at] ?? "")].map(cell).join(","),
    ),
  );
  return [["path", "name", "step", ...fields].join(","), ...lines, ""].join("\r\n");
}

/** A spreadsheet would run a text that begins like a formula, so it gets a prefix. */
function cell(value: string | number): string {
  if (typeof value === "number") return String(value);
  const harmless = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
}
