/** Marks of modules with problems in them or below them. */

import { formatExact } from "../data/formats";
import type { Finding } from "../data/records";
import { problems } from "../state/state";

/** Distinguishes severities without color. */
export const SIGNS = { error: "✕", warning: "!", info: "i" } as const;

interface Mark {
  readonly severity: Finding["severity"];
  readonly text: string;
  /** Whether all problems are below, hidden by a closed module. */
  readonly isBelow: boolean;
  readonly says: string;
}

/** The mark of modules drawn as one; an open module shows marks below itself. */
export function markAt(paths: readonly string[], isOpen: boolean): Mark | null {
  if (!problems.value.size) return null;
  const found = paths.flatMap((path) => problems.value.get(path) ?? []);
  const count = found.reduce((sum, { here, total }) => sum + (isOpen ? here : total), 0);
  if (!count) return null;
  const worst = found.find(({ worst }) => worst.severity === "error") ?? found.find(({ total }) => total)!;
  const { severity, message } = worst.worst;
  const isBelow = found.every(({ here }) => !here);
  const many = `${formatExact(count)} ${count === 1 ? "problem" : "problems"}${isBelow ? " below" : ""}`;
  return {
    severity,
    text: count > 1 ? formatExact(count) : SIGNS[severity],
    isBelow,
    says: `${many}: ${message}`,
  };
}

/** Behind the name of a module in a line of text. */
export function Badge({ path, isOpen }: { path: string; isOpen: boolean }) {
  const mark = markAt([path], isOpen);
  if (!mark) return null;
  return (
    <span
      class={`sign ${mark.severity} ${mark.isBelow ? "below" : ""}`}
      data-testid="badge"
      role="img"
      aria-label={mark.says}
      title={mark.says}
    >
      {mark.text}
    </span>
  );
}

/** At the corner of a box that is `w` wide. */
export function BoxBadge({ mark, w }: { mark: Mark; w: number }) {
  const half = Math.max(8, 3.6 * mark.text.length + 3);
  return (
    <g class={`box-badge ${mark.severity} ${mark.isBelow ? "below" : ""}`} data-testid="badge" transform={`translate(${w - half + 6},-2)`}>
      <title>{mark.says}</title>
      <rect x={-half} y="-8" width={2 * half} height="16" rx="8" />
      <text y="4" text-anchor="middle">
        {mark.text}
      </text>
    </g>
  );
}
