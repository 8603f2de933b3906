/** What the colors of boxes mean. */

import { computed, signal } from "@preact/signals";
import { formatBytes, formatCount, formatNumber } from "../data/formats";
import { columnOfStep } from "../data/layer-heat";
import type { Model } from "../data/model";
import type { Measure } from "../data/records";
import { compared, distances, model, problems, shown } from "../state/state";
import { referenceStep, step } from "../state/time";
import type { Item } from "./levels";
import { addUpwards, isOf, type Sized, type Squares, squaresMarked, squaresNow } from "./sizes-by-step";
import { scene, sides } from "./state";
import { classOf } from "./words";

export const COLORINGS = [
  "class",
  "time",
  "memory",
  "flops",
  "parameters",
  "gradients",
  "findings",
  "change",
  "weights",
  "outputs",
  "difference",
] as const;
export type Coloring = (typeof COLORINGS)[number];

export const coloring = signal<Coloring>("class");

export interface Paint {
  readonly fill: string;
  /** The meaning of the color, as text. */
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

/** The squared norm of all gradients in a module and below it, at a step. */
function squaresAt(at: number): ReadonlyMap<string, number> {
  const heat = shown.value?.layers.value.get("gradient");
  const squares = new Map<string, number>();
  heat?.columns[columnOfStep(heat, at)]?.forEach((norm, row) => {
    if (!Number.isNaN(norm)) addUpwards(squares, heat.paths[row]!, norm ** 2);
  });
  return squares;
}

const gradientSquares = computed(() => squaresAt(step.value));
const referenceSquares = computed(() => (referenceStep.value === null ? null : squaresAt(referenceStep.value)));

interface Scale {
  readonly quantity: Quantity;
  readonly format: (value: number) => string;
  readonly logarithmic?: boolean;
}

const SCALES: Partial<Record<Coloring, Scale>> = {
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

/** The colorings that have data. */
export const offered = computed<readonly Coloring[]>(() => {
  const store = shown.value;
  const rows = [...(store?.measures.value.values() ?? [])];
  const all = store?.series.value ?? [];
  const hasGradients = all.some((one) => one.name.endsWith(".grad"));
  const isMarked = referenceStep.value !== null;
  const has = (what: Sized) => all.some((one) => isOf(what, one, store!.model.value));
  const isOffered: Partial<Record<Coloring, boolean>> = {
    class: true,
    parameters: true,
    time: rows.some((row) => row.total_forward_ns !== undefined),
    memory: rows.some((row) => (row.total_activation_bytes ?? row.total_peak_bytes) !== undefined),
    flops: rows.some((row) => row.total_forward_flops !== undefined),
    gradients: hasGradients,
    findings: !!store?.findings.value.length,
    change: isMarked && hasGradients,
    weights: isMarked && has("weights"),
    outputs: isMarked && has("outputs"),
    difference: !!compared.value,
  };
  return COLORINGS.filter((one) => isOffered[one]);
});

export function pathsOf(item: Item): string[] {
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
const extremes = computed<{ low: number; high: number; format: Scale["format"] } | null>(() => {
  const scale = SCALES[coloring.value];
  if (!scale) return null;
  const closed = scene.value.boxes.filter((box) => !box.open);
  const values = closed
    .map((box) => sumOf(box.item, scale.quantity))
    .filter((value) => value !== undefined && value > 0 && value < Infinity);
  if (!values.length) return null;
  return { low: Math.min(...(values as number[])), high: Math.max(...(values as number[])), format: scale.format };
});

export function paint(known: Model, item: Item): Paint {
  if (coloring.value === "findings") return paintFinding(item);
  if (coloring.value === "difference") return paintSide(item);
  const change = CHANGES[coloring.value];
  if (change) return paintChange(item, change);
  const scale = SCALES[coloring.value];
  if (!scale) return paintClass(known, item);
  const value = sumOf(item, scale.quantity);
  const range = extremes.value;
  if (value !== undefined && !Number.isFinite(value))
    return { fill: mixed(SEVERITIES.error, 45), says: "NaN or Inf" };
  if (value === undefined || !range) return { fill: "var(--panel)", says: "" };
  return { fill: heatColor(shareOf(value, range.low, range.high, !!scale.logarithmic)), says: scale.format(value) };
}

function shareOf(value: number, low: number, high: number, logarithmic: boolean): number {
  if (!(value > 0)) return 0;
  if (!logarithmic) return Math.sqrt(value / high);
  return high > low ? (Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low)) : 1;
}

function heatColor(share: number): string {
  return `color-mix(in oklab, var(--hot) ${Math.round(8 + 52 * Math.min(1, Math.max(0, share)))}%, var(--panel))`;
}

const SEVERITIES = { error: "var(--alarm)", warning: "var(--warning)", info: "var(--accent)" };

function paintFinding(item: Item): Paint {
  const finding = pathsOf(item).map((path) => problems.value.get(path)?.worst).find(Boolean);
  // Not every affected module has a finding: after the first hundred they are only counted.
  const norm = sumOf(item, (path) => gradientSquares.value.get(path));
  if (!finding && norm !== undefined && !Number.isFinite(norm))
    return { fill: mixed(SEVERITIES.error, 45), says: "NaN or Inf in gradients" };
  if (!finding) return { fill: "var(--panel)", says: "" };
  return { fill: mixed(SEVERITIES[finding.severity], 45), says: finding.message };
}

/** A color mixed with the background of boxes, in percent. */
function mixed(color: string, strength: number): string {
  return `color-mix(in oklab, ${color} ${strength.toFixed(0)}%, var(--panel))`;
}

interface Change {
  readonly word: string;
  readonly now: { readonly value: Squares };
  readonly before: { readonly value: Squares | null };
}

const CHANGES: Partial<Record<Coloring, Change>> = {
  change: { word: "gradient", now: gradientSquares, before: referenceSquares },
  weights: { word: "weights", now: squaresNow, before: squaresMarked },
  outputs: { word: "outputs", now: squaresNow, before: squaresMarked },
};

export function isChange(one: Coloring): boolean {
  return one in CHANGES;
}

/** The ratio of a value to its value at the compared step. */
function paintChange(item: Item, change: Change): Paint {
  const before = sumOf(item, (path) => change.before.value?.get(path));
  const now = sumOf(item, (path) => change.now.value.get(path));
  if (!before || !now) return { fill: "var(--panel)", says: "" };
  const times = Math.sqrt(now / before);
  const strength = STRONGEST * Math.min(1, Math.abs(Math.log10(times)));
  return { fill: mixed(times > 1 ? GROWN : SHRUNK, strength), says: `${change.word} × ${formatNumber(times)}` };
}

/** A factor of ten has the full color. */
const STRONGEST = 60;
const [GROWN, SHRUNK] = ["var(--hot)", "var(--accent)"];

const SIDES = {
  second: { color: "var(--good)", says: "only in the other run" },
  first: { color: "var(--alarm)", says: "only in this run" },
  changed: { color: "var(--warning)", says: "changed" },
};

/** The largest weight distance between the two runs, in each module and below it. */
const farthest = computed(() => {
  const most = new Map<string, number>();
  for (const [name, distance] of distances.value ?? []) {
    for (let end = name.lastIndexOf("."); ; end = name.lastIndexOf(".", end - 1)) {
      const path = name.slice(0, Math.max(0, end));
      // NaN and Inf count as the largest distance.
      most.set(path, Math.max(most.get(path) ?? 0, Number.isNaN(distance) ? Infinity : distance));
      if (end <= 0) break;
    }
  }
  return most;
});

/** Weights that differ by 0.01 % are faint; those that differ by 100 % have the full color. */
function paintDistance(distance: number): Paint {
  const share = Math.min(1, Math.max(0, 1 + Math.log10(distance) / 4));
  const by = distance < Infinity ? ` by ${formatNumber(100 * distance)} %` : "";
  return { fill: mixed(SIDES.changed.color, 8 + 50 * share), says: `weights differ${by}` };
}

function paintSide(item: Item): Paint {
  const known = sides.value;
  const found = new Set((item.members.length ? item.members : [item]).map((one) => known?.get(one.key) ?? "both"));
  const worstSide = (["second", "first", "changed"] as const).find((side) => found.has(side));
  const apart = pathsOf(item).flatMap((path) => farthest.value.get(path) ?? []);
  const distance = apart.length ? Math.max(...apart) : undefined;
  if (distance && (!worstSide || worstSide === "changed")) return paintDistance(distance);
  if (!worstSide) return { fill: "var(--panel)", says: distance === 0 ? "identical weights" : "" };
  const { color, says } = SIDES[worstSide];
  return { fill: mixed(color, 32), says };
}

export interface Legend {
  /** Colors, each with its meaning. */
  readonly swatches?: readonly (readonly [string, string])[];
  /** A color ramp, and the labels of its ends. */
  readonly ramp?: { readonly low: string; readonly high: string; readonly fills: readonly string[] };
}

/** The legend of the box colors, if they need one. */
export const legend = computed<Legend | null>(() => {
  const [chosen, range] = [coloring.value, extremes.value];
  if (chosen === "difference") {
    const same = distances.value ? "identical" : "same structure, weights not compared";
    const swatches = Object.values(SIDES).map(({ color, says }) => [mixed(color, 32), says] as const);
    return { swatches: [...swatches, ["var(--panel)", same]] };
  }
  if (chosen === "findings")
    return { swatches: Object.entries(SEVERITIES).map(([severity, color]) => [mixed(color, 45), severity]) };
  if (isChange(chosen)) {
    const fills = [mixed(SHRUNK, STRONGEST), "var(--panel)", mixed(GROWN, STRONGEST)];
    return { ramp: { low: "÷ 10", high: "× 10", fills } };
  }
  if (!range) return null;
  const fills = [heatColor(0), heatColor(1)];
  return { ramp: { low: range.format(range.low), high: range.format(range.high), fills } };
});

/** Hues by kind of layer, so that it looks the same in every model. */
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
  return { fill: classColor(name), says: "" };
}

export function classColor(name: string): string {
  if (/dropout|identity/i.test(name)) return "var(--hover)";
  return tint(HUES.find(([pattern]) => pattern.test(name))?.[1] ?? hueOf(name));
}

function tint(hue: number): string {
  return `oklch(var(--tint-light) var(--tint-chroma) ${hue})`;
}

function hueOf(name: string): number {
  let hash = 0;
  for (const letter of name) hash = (hash * 31 + letter.codePointAt(0)!) % 360;
  return hash;
}
