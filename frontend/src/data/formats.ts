/** Formats numbers like `torchglass.tables.text`. */

// Created once: creating a formatter takes far longer than using it.
const EXACT = new Intl.NumberFormat("en");
const FOUR_DIGITS = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const THREE_DIGITS = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export function formatCount(count: number): string {
  if (count < 1e3) return String(count);
  if (count < 1e6) return `${(count / 1e3).toFixed(1)}K`;
  if (count < 1e9) return `${(count / 1e6).toFixed(1)}M`;
  return `${(count / 1e9).toFixed(1)}B`;
}

export function formatExact(count: number): string {
  return EXACT.format(count);
}

export function formatBytes(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  for (const unit of ["KB", "MB", "GB"]) {
    bytes /= 1024;
    if (bytes < 1024) return `${bytes.toFixed(1)} ${unit}`;
  }
  return `${(bytes / 1024).toFixed(1)} TB`;
}

export function formatShape(shape: readonly number[] | null): string {
  if (shape === null) return "unknown";
  return shape.length ? shape.join("×") : "scalar";
}

export function formatShare(part: number, whole: number): string {
  if (!whole || !part) return "";
  const percent = (100 * part) / whole;
  return percent < 1 ? "<1%" : `${percent.toFixed(0)}%`;
}

/** A measured number in four digits: 0.01234, 1.23e-7, 12,350. */
export function formatNumber(value: number): string {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2).replace("e+", "e");
  return FOUR_DIGITS.format(value);
}

/** The same in three digits, for axes. */
export function formatShort(value: number): string {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-2 || size >= 1e5)) return value.toExponential(1).replace("e+", "e");
  return THREE_DIGITS.format(value);
}

export function formatDuration(seconds: number): string {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  return seconds < 3600 ? `${Math.floor(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h`;
}

const TIME = new Intl.DateTimeFormat("en", { timeStyle: "short", hour12: false });
const DAY = new Intl.DateTimeFormat("en", { day: "numeric", month: "short" });

/** When something happened, in the reader's time zone; with the day if it is not today. */
export function formatMoment(ms: number, now = Date.now()): string {
  return DAY.format(ms) === DAY.format(now) ? TIME.format(ms) : `${DAY.format(ms)} ${TIME.format(ms)}`;
}
