/** What the colours of boxes tell. */

import { computed, signal } from "@preact/signals";
import { formatBytes, formatCount, formatNumber } from "../data/formats";
import type { Model } from "../data/model";
import { readNumber } from "../data/points";
import type { Finding, FlowPayload, Measure } from "../data/records";
import { compared, model, shown } from "../state/state";
import { referenceStep, step } from "../state/time";
import type { Item } from "./levels";
import { scene, sides } from "./state";
import { classOf } from "./words";

export const COLOURINGS = [
  "class",
  "time",
  "memory",
  "flops",
  "parameters",
  "gradients",
  "findings",
  "change",
  "difference",
] as const;
export type Colouring = (typeof COLOURINGS)[number];

export const colouring = signal<Colouring>("class");

export interface Paint {
  readonly fill: string;
  /** What the colour stands for, in words. */
  readonly says: string;
}

type Quantity = (path: string) => number | undefined;

export function formatTime(ns: number): string {
  if (ns < 1e3) return `${ns.toFixed(0)} ns`;
  if (ns < 1e6) return `${(ns / 1e3).toFixed(1)} µs`;
  if (ns < 1e9) return `${(ns / 1e6).toFixed(2)} ms`;
  return `${(ns / 1e9).toFixed(2)} s`;
}

const measured = (read: (row: Measure) => number | undefined): Quantity => {
  return (path) => {
    const row = shown.value?.measures.value.get(path);
    return row && read(row);
  };
};

/** The norm of all gradients in a module and below it, at the step that is shown. */
export function normsAt(flow: FlowPayload, at: number): ReadonlyMap<string, number> {
  const column = flow.steps.findLastIndex(([first]) => first <= at);
  const squares = new Map<string, number>();
  if (column < 0) return squares;
  for (const { path, norms } of flow.layers) {
    const square = readNumber(norms[column]!) ** 2;
    for (let end: number = path.length; ; end = path.lastIndexOf(".", end - 1)) {
      const above = path.slice(0, Math.max(0, end));
      squares.set(above, (squares.get(above) ?? 0) + square);
      if (end <= 0) break;
    }
  }
  return squares;
}

const squaresAt = (at: number) => (shown.value ? normsAt(shown.value.flow.value, at) : new Map<string, number>());
const gradientSquares = computed(() => squaresAt(step.value));
const referenceSquares = computed(() => (referenceStep.value === null ? null : squaresAt(referenceStep.value)));

interface Scale {
  readonly quantity: Quantity;
  readonly format: (value: number) => string;
  readonly logarithmic?: boolean;
}

const SCALES: Partial<Record<Colouring, Scale>> = {
  time: { quantity: measured((row) => row.total_forward_ns), format: formatTime },
  memory: { quantity: measured((row) => row.total_activation_bytes ?? row.total_peak_bytes), format: formatBytes },
  flops: { quantity: measured((row) => row.total_forward_flops), format: formatCount },
  parameters: {
    quantity: (path) => {
      const id = model.value?.find(path);
      return id === undefined ? undefined : model.value!.parameters(id);
    },
    format: formatCount,
  },
  gradients: {
    quantity: (path) => {
      const square = gradientSquares.value.get(path);
      return square === undefined ? undefined : Math.sqrt(square);
    },
    format: formatNumber,
    logarithmic: true,
  },
};

/** The colourings for which there is something to show. */
export const offered = computed<readonly Colouring[]>(() => {
  const store = shown.value;
  const rows = [...(store?.measures.value.values() ?? [])];
  const has: Partial<Record<Colouring, boolean>> = {
    class: true,
    parameters: true,
    time: rows.some((row) => row.total_forward_ns !== undefined),
    memory: rows.some((row) => (row.total_activation_bytes ?? row.total_peak_bytes) !== undefined),
    flops: rows.some((row) => row.total_forward_flops !== undefined),
    gradients: !!store?.series.value.some((one) => one.name.endsWith(".grad")),
    findings: !!store?.findings.value.length,
    change: referenceStep.value !== null && !!store?.series.value.some((one) => one.name.endsWith(".grad")),
    difference: !!compared.value,
  };
  return COLOURINGS.filter((one) => has[one]);
});

const worst = computed(() => {
  const rank = { note: 1, warning: 2, error: 3 };
  const found = new Map<string, Finding>();
  for (const finding of shown.value?.findings.value ?? []) {
    const known = found.get(finding.path ?? "");
    if (!known || rank[finding.severity] > rank[known.severity]) found.set(finding.path ?? "", finding);
  }
  return found;
});

/** The worst finding in a module or below it. */
export function findingBelow(path: string): Finding | undefined {
  const below = [...worst.value.values()].filter((one) => isBelow(one.path ?? "", path));
  return below.find((one) => one.severity === "error") ?? below.find((one) => one.severity === "warning") ?? below[0];
}

function isBelow(path: string, above: string): boolean {
  return path === above || !above || path.startsWith(`${above}.`);
}

function pathsOf(item: Item): string[] {
  if (item.members.length) return item.members.flatMap(pathsOf);
  return item.kind === "call" ? [item.node.path] : [];
}

function sumOf(item: Item, quantity: Quantity): number | undefined {
  const values = pathsOf(item)
    .map(quantity)
    .filter((value) => value !== undefined);
  return values.length ? values.reduce((sum, value) => sum + value, 0) : undefined;
}

/** The smallest and largest values among the closed boxes on the screen. */
export const extremes = computed<{ low: number; high: number; format: Scale["format"] } | null>(() => {
  const scale = SCALES[colouring.value];
  if (!scale) return null;
  const closed = scene.value.boxes.filter((box) => !box.open);
  const values = closed
    .map((box) => sumOf(box.item, scale.quantity))
    .filter((value) => value !== undefined && value > 0);
  if (!values.length) return null;
  return { low: Math.min(...(values as number[])), high: Math.max(...(values as number[])), format: scale.format };
});

export function paint(known: Model, item: Item): Paint {
  if (colouring.value === "findings") return paintFinding(item);
  if (colouring.value === "difference") return paintSide(item);
  if (colouring.value === "change") return paintChange(item);
  const scale = SCALES[colouring.value];
  if (!scale) return paintClass(known, item);
  const value = sumOf(item, scale.quantity);
  const range = extremes.value;
  if (value === undefined || !range) return { fill: "var(--panel)", says: "" };
  return { fill: heatColour(shareOf(value, range.low, range.high, !!scale.logarithmic)), says: scale.format(value) };
}

function shareOf(value: number, low: number, high: number, logarithmic: boolean): number {
  if (!(value > 0)) return 0;
  if (!logarithmic) return Math.sqrt(value / high);
  return high > low ? (Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low)) : 1;
}

export function heatColour(share: number): string {
  return `color-mix(in oklab, var(--hot) ${Math.round(8 + 52 * Math.min(1, Math.max(0, share)))}%, var(--panel))`;
}

function paintFinding(item: Item): Paint {
  const finding = pathsOf(item).map(findingBelow).find(Boolean);
  if (!finding) return { fill: "var(--panel)", says: "" };
  const colour = { error: "var(--alarm)", warning: "var(--warning)", note: "var(--accent)" }[finding.severity];
  return { fill: `color-mix(in oklab, ${colour} 45%, var(--panel))`, says: finding.message };
}

/** How many times as large the gradients are as at the step that is compared with. */
function paintChange(item: Item): Paint {
  const before = sumOf(item, (path) => referenceSquares.value?.get(path));
  const now = sumOf(item, (path) => gradientSquares.value.get(path));
  if (!before || !now) return { fill: "var(--panel)", says: "" };
  const times = Math.sqrt(now / before);
  const strength = Math.min(60, Math.abs(Math.log2(times)) * 18);
  const colour = times > 1 ? "var(--hot)" : "var(--accent)";
  return {
    fill: `color-mix(in oklab, ${colour} ${strength.toFixed(0)}%, var(--panel))`,
    says: `gradient × ${formatNumber(times)}`,
  };
}

function paintSide(item: Item): Paint {
  const known = sides.value;
  const found = new Set((item.members.length ? item.members : [item]).map((one) => known?.get(one.key) ?? "both"));
  const worstSide = (["second", "first", "changed"] as const).find((side) => found.has(side));
  const words = { second: "only in the other run", first: "only in this run", changed: "changed" };
  const colours = { second: "var(--good)", first: "var(--alarm)", changed: "var(--warning)" };
  if (!worstSide) return { fill: "var(--panel)", says: "" };
  return { fill: `color-mix(in oklab, ${colours[worstSide]} 32%, var(--panel))`, says: words[worstSide] };
}

/** Hues by what a class does, so that the same kind of layer looks the same in every model. */
const HUES: readonly (readonly [RegExp, number])[] = [
  [/conv/i, 215],
  [/norm/i, 45],
  [/relu|gelu|silu|sigmoid|tanh|softmax|activation|swish|mish|elu/i, 345],
  [/attention|attn/i, 275],
  [/pool/i, 150],
  [/embed/i, 25],
  [/lstm|gru|rnn/i, 300],
  [/linear|dense|mlp|feed|conv1d/i, 180],
];

function paintClass(known: Model, item: Item): Paint {
  const name = classOf(known, item.node);
  if (item.kind === "input" || item.kind === "output") return { fill: "var(--ground)", says: "" };
  if (item.kind === "op") return { fill: "var(--panel)", says: "" };
  if (item.kind === "attached") return { fill: tint(100), says: "attached tensor" };
  if (/dropout|identity/i.test(name)) return { fill: "var(--hover)", says: "" };
  const hue = HUES.find(([pattern]) => pattern.test(name))?.[1] ?? hueOf(name);
  return { fill: tint(hue), says: "" };
}

function tint(hue: number): string {
  return `oklch(var(--tint-light) var(--tint-chroma) ${hue})`;
}

function hueOf(name: string): number {
  let hash = 0;
  for (const letter of name) hash = (hash * 31 + letter.codePointAt(0)!) % 360;
  return hash;
}
