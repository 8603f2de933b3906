import { signal, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { formatExact, formatNumber } from "./formats";
import { points } from "./live";
import type { Points } from "./points";
import type { Series } from "./records";

const HEIGHT = 150;
/** One key for all charts, so that the cursor in one shows the same step in the others. */
const SYNC = "step";

const darkScheme = matchMedia("(prefers-color-scheme: dark)");
const isDark = signal(darkScheme.matches);
darkScheme.addEventListener("change", () => (isDark.value = darkScheme.matches));

export function Chart({ series, title }: { series: Series; title: string }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const cursor = useSignal<number | null>(null);
  const known = points.value.get(series.id);
  useEffect(() => {
    const element = box.current!;
    const drawn = new uPlot(optionsFor(series, (at) => (cursor.value = at)), dataFor(series, known), element);
    plot.current = drawn;
    const watcher = new ResizeObserver(() => drawn.setSize({ width: element.clientWidth, height: HEIGHT }));
    watcher.observe(element);
    return () => {
      watcher.disconnect();
      drawn.destroy();
    };
  }, [series.id, isDark.value]);
  useEffect(() => plot.current?.setData(dataFor(series, known)), [known]);
  return (
    <figure data-testid="chart">
      <figcaption>
        <b>
          <bdi>{title}</bdi>
        </b>
        <Reading series={series} known={known} at={cursor.value} />
      </figcaption>
      <div ref={box} class="plot" role="img" aria-label={describe(title, series, known)} />
    </figure>
  );
}

/** The numbers under the cursor, or the last ones. */
function Reading({ series, known, at }: { series: Series; known: Points | undefined; at: number | null }) {
  const index = at ?? (known?.steps.length ?? 0) - 1;
  const step = known?.steps[index];
  if (!known || step === undefined) return <span class="reading">no point yet</span>;
  const read = (field: string) => known.columns[field]?.[index] ?? NaN;
  const fields = series.kind === "stats" ? ["mean", "std", "min", "max"] : ["value"];
  const broken = ["nan", "inf"].filter((field) => known.columns[field] && read(field) > 0);
  return (
    <span class="reading">
      <span class="dim">step {formatExact(step)}</span>
      {fields.map((field) => (
        <span key={field}>
          {field !== "value" && <span class="dim">{field} </span>}
          {formatNumber(read(field))}
        </span>
      ))}
      {broken.map((field) => (
        <span key={field} class="flag">
          {formatExact(read(field))} {field === "nan" ? "NaN" : "Inf"}
        </span>
      ))}
    </span>
  );
}

function describe(title: string, series: Series, known: Points | undefined): string {
  if (!known?.steps.length) return `${title}: no point yet`;
  const field = series.kind === "stats" ? "mean" : "value";
  const values = known.columns[field] ?? [];
  const finite = values.filter(Number.isFinite);
  const range = `${formatNumber(Math.min(...finite))} to ${formatNumber(Math.max(...finite))}`;
  const steps = `steps ${known.steps[0]} to ${known.steps.at(-1)}`;
  return `${title}, ${field} over ${steps}: ${range}, last ${formatNumber(values.at(-1) ?? NaN)}`;
}

function dataFor(series: Series, known: Points | undefined): uPlot.AlignedData {
  const fields = series.kind === "stats" ? ["mean", "min", "max"] : ["value"];
  if (!known) return [[], ...fields.map(() => [])];
  return [[...known.steps], ...fields.map((field) => (known.columns[field] ?? []).map(orGap))];
}

/** uPlot leaves a gap at null; NaN and infinities would spoil its scale. */
function orGap(value: number): number | null {
  return Number.isFinite(value) ? value : null;
}

function optionsFor(series: Series, onCursor: (at: number | null) => void): uPlot.Options {
  const style = getComputedStyle(document.documentElement);
  const colour = (name: string) => style.getPropertyValue(`--${name}`).trim();
  const axis: uPlot.Axis = {
    stroke: colour("dim"),
    grid: { stroke: colour("line"), width: 1 },
    ticks: { show: false },
    font: "11px system-ui, sans-serif",
  };
  const line: uPlot.Series = { stroke: colour("accent"), width: 1.6, points: { size: 5 } };
  const edge: uPlot.Series = { stroke: colour("accent"), width: 0, points: { show: false } };
  const isStats = series.kind === "stats";
  return {
    width: 300,
    height: HEIGHT,
    scales: { x: { time: false } },
    legend: { show: false },
    cursor: { sync: { key: SYNC }, points: { size: 6 }, y: false },
    series: isStats ? [{}, line, edge, edge] : [{}, line],
    bands: isStats ? [{ series: [3, 2], fill: colour("band") }] : [],
    axes: [
      { ...axis, size: 26, values: (_, steps) => steps.map((step) => (Number.isInteger(step) ? formatExact(step) : "")) },
      { ...axis, size: 62, values: (_, values) => values.map(formatNumber) },
    ],
    hooks: {
      setCursor: [(plot) => onCursor(plot.cursor.idx ?? null)],
      draw: [(plot) => markGaps(plot, colour("alarm"))],
    },
  };
}

/** A tick on the axis for each step whose value is no number: a gap alone is easily overlooked. */
function markGaps(plot: uPlot, colour: string): void {
  const [steps, values] = plot.data;
  const unit = devicePixelRatio;
  const bottom = plot.bbox.top + plot.bbox.height;
  plot.ctx.fillStyle = colour;
  values?.forEach((value, at) => {
    if (value === null) plot.ctx.fillRect(plot.valToPos(steps[at]!, "x", true) - unit, bottom - 7 * unit, 2 * unit, 7 * unit);
  });
}
