/** One series over steps, as a heat map, as percentile bands or as lines. */

import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import uPlot from "uplot";
import { formatExact, formatNumber } from "../data/formats";
import { binAt, columnOf, type Heat, quantiles } from "../data/histograms";
import type { Points } from "../data/points";
import type { Series } from "../data/records";
import type { RunStore } from "../data/store";
import { isDark, resolve } from "../frame/theme";
import { useHeat, usePoints } from "../state/live";
import { chosenStep, goToStep, step } from "../state/time";
import { type Drawing, drawingFor, OTHERS } from "./drawings";
import { valueAt } from "./heatmap";
import { nameOfRun, shown } from "../state/state";
import { logarithmic, type Mode, mode, rejected, smoothing, sought } from "./state";

export const PLOT_HEIGHT = 118;

export interface PlotProps {
  readonly store: RunStore;
  readonly series: Series;
  readonly title: string;
  readonly color?: string | undefined;
  /** The same series of other runs, drawn over this one. */
  readonly others?: readonly { readonly store: RunStore; readonly series: Series }[];
  readonly height?: number;
  /** The width of the value axis. */
  readonly gutter?: number;
  /** The range of steps, if other parts of the page share the axis. */
  readonly span?: Span;
}

type Span = readonly [number, number] | undefined;

const NO_OTHERS: NonNullable<PlotProps["others"]> = [];

/** A plot with other runs beside it is a new component: each run needs its own hook. */
export function Plot(props: PlotProps) {
  return <PlotBeside key={props.others?.length ?? 0} {...props} />;
}

function PlotBeside({
  store,
  series,
  title,
  color = "var(--accent)",
  others = NO_OTHERS,
  height = PLOT_HEIGHT,
  gutter = 52,
  span,
}: PlotProps) {
  const drawn: Mode = series.kind === "histogram" ? mode.value : "lines";
  const isSpread = drawn !== "lines";
  const card = useRef<HTMLElement>(null);
  const isSeen = useSeen(card);
  const isSought = sought.value?.series === series.id && store === shown.value;
  useEffect(() => {
    if (isSought) card.current!.scrollIntoView({ block: "center" });
  }, [isSought && sought.value]);
  const heat = useHeat(store, isSeen && isSpread ? series.id : undefined);
  const points = usePoints(store, !isSeen || isSpread ? undefined : series.id);
  const overlaid = others.map((other) => usePoints(other.store, !isSeen || isSpread ? undefined : other.series.id));
  const besides = others.map((other) => useHeat(other.store, isSeen && isSpread ? other.series.id : undefined));
  const cursor = useSignal<{ step: number; share: number } | null>(null);
  const drawing = useMemo(
    () =>
      drawingFor({
        mode: drawn,
        heat,
        points,
        others: overlaid.filter((one) => one !== undefined),
        besides: besides.filter((one) => one !== undefined),
        smoothing: smoothing.value,
        series,
        color: resolve(color),
        logarithmic: logarithmic.value,
        rejected: rejected.value,
        isLive: !store.finished.value,
      }),
    [store.finished.value, drawn, heat, points, ...overlaid, ...besides, smoothing.value, series, color, logarithmic.value, rejected.value, isDark.value],
  );
  const box = useUplot(drawing, { height, gutter, span }, (at) => (cursor.value = at), title);
  return (
    <figure ref={card} class={`plot-card ${isSought ? "sought" : ""}`} data-testid="chart" data-mode={drawn}>
      <figcaption>
        <b title={`${series.path}.${series.name}`}>
          <bdi>{title}</bdi>
        </b>
        <Reading drawing={drawing} heat={heat} points={points} series={series} at={cursor.value} />
        {!isSpread && others.length > 0 && (
          <span class="runs">
            <Named store={store} color={color} />
            {others.map((other, at) => (
              <Named
                key={other.store.number}
                store={other.store}
                color={`var(--${OTHERS[at % OTHERS.length]})`}
                points={overlaid[at]}
                series={other.series}
                at={cursor.value?.step}
              />
            ))}
          </span>
        )}
      </figcaption>
      <div
        ref={box}
        class="plot"
        style={{ height: `${height}px` }}
        role="img"
        aria-label={describe(title, series, points, heat)}
      />
    </figure>
  );
}

interface NamedProps {
  readonly store: RunStore;
  readonly color: string;
  readonly points?: Points | undefined;
  readonly series?: Series;
  readonly at?: number | undefined;
}

/** A run in the legend, with its value at the hovered step, or at the last logged step before it. */
function Named({ store, color, points, series, at = step.value }: NamedProps) {
  const index = points?.steps.findLastIndex((one) => one <= Math.round(at)) ?? -1;
  return (
    <span>
      <i class="swatch" style={{ background: color }} /> <bdi>{nameOfRun(store)}</bdi>{" "}
      {index >= 0 && (
        <>
          {formatNumber(points!.columns[series!.kind ? "mean" : "value"]?.[index] ?? NaN)}
          {points!.steps[index] !== Math.round(at) && <span class="dim"> (step {formatExact(points!.steps[index]!)})</span>}
        </>
      )}
    </span>
  );
}

/** Whether an element is on the screen or close to it; others are not read or drawn. */
function useSeen(element: { current: HTMLElement | null }): boolean {
  const isSeen = useSignal(false);
  useEffect(() => {
    const watcher = new IntersectionObserver(([entry]) => (isSeen.value = !!entry?.isIntersecting), {
      rootMargin: "200px",
    });
    watcher.observe(element.current!);
    return () => watcher.disconnect();
  }, []);
  return isSeen.value;
}

/** A uPlot that is created again if the kind of drawing changes; otherwise it only gets new data. */
function useUplot(
  drawing: Drawing,
  { height, gutter, span }: { height: number; gutter: number; span: Span },
  onCursor: (at: { step: number; share: number } | null) => void,
  title: string,
) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(drawing);
  latest.current = drawing;
  const reach = useRef(span);
  reach.current = span;
  useEffect(() => {
    const element = box.current!;
    const made = new uPlot(
      { ...optionsFor(drawing, latest, reach, gutter, onCursor), width: Math.max(80, element.clientWidth), height },
      drawing.data,
      element,
    );
    made.root.querySelector("canvas")?.setAttribute("aria-label", title);
    plot.current = made;
    const watcher = new ResizeObserver(() => made.setSize({ width: Math.max(80, element.clientWidth), height }));
    watcher.observe(element);
    return () => {
      watcher.disconnect();
      made.destroy();
    };
  }, [drawing.sort, isDark.value, height, gutter]);
  const drawn = useRef(drawing);
  useEffect(() => {
    const [made, known] = [plot.current, drawn.current];
    drawn.current = drawing;
    if (made && made.data !== drawing.data) made.setData(drawing.data, !drawing.paintNew?.(made, known));
  }, [drawing]);
  useEffect(() => {
    if (span) plot.current?.setData(plot.current.data);
  }, [span?.[0], span?.[1]]);
  useEffect(() => plot.current?.redraw(false, false), [chosenStep.value]);
  return box;
}

const SYNC = "step";

function optionsFor(
  drawing: Drawing,
  latest: { current: Drawing },
  reach: { current: Span },
  gutter: number,
  onCursor: (at: { step: number; share: number } | null) => void,
): Omit<uPlot.Options, "width" | "height"> {
  const axis: uPlot.Axis = {
    stroke: resolve("dim"),
    grid: { show: false },
    ticks: { show: false },
    font: "11px system-ui, sans-serif",
  };
  return {
    scales: {
      x: { time: false, range: (_, low, high) => stepRange(...(reach.current ?? latest.current.span ?? ([low, high] as const))) },
      y: { range: (plot, low, high) => (isZoomed(plot) && low < high ? [low, high] : latest.current.range) },
    },
    padding: [6, 12, 0, 0],
    legend: { show: false },
    cursor: {
      sync: { key: SYNC, setSeries: false },
      points: { show: drawing.sort === "lines", size: 5 },
      y: false,
      drag: { x: true, y: false },
    },
    series: [...drawing.series],
    bands: [...drawing.bands],
    axes: [
      {
        ...axis,
        size: 22,
        space: 60,
        values: (_, steps) => steps.map((one) => (Number.isInteger(one) ? formatStep(one) : "")),
      },
      {
        ...axis,
        size: gutter,
        splits: (plot) => latest.current.splits(plot.scales["y"]!),
        values: (_, values) => values.map((value) => latest.current.label(value)),
      },
    ],
    hooks: {
      setCursor: [
        (plot) => {
          const { left = -1, top = -1 } = plot.cursor;
          if (left < 0) onCursor(null);
          else onCursor({ step: plot.posToVal(left, "x"), share: 1 - top / plot.over.clientHeight });
        },
      ],
      drawClear: [(plot) => latest.current.paint(plot)],
      draw: [markStep, (plot) => latest.current.mark(plot)],
      ready: [(plot) => plot.over.addEventListener("click", () => goToCursor(plot))],
    },
  };
}

function goToCursor(plot: uPlot): void {
  const { left = -1 } = plot.cursor;
  if (left >= 0) goToStep(plot.posToVal(left, "x"));
}

/** Whether the plot is zoomed: then the axis fits the visible steps. */
function isZoomed({ data: [steps], scales, series }: uPlot): boolean {
  const { min, max } = scales["x"]!;
  const isLine = series.length > 1 && !!series[1]!.stroke && series[1]!.width !== 0;
  return isLine && (min! > steps[0]! || max! < steps.at(-1)!);
}

function stepRange(low: number | null, high: number | null): [number, number] {
  if (low === null || high === null) return [0, 1];
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

function formatStep(at: number): string {
  return at >= 10_000 ? `${formatNumber(at / 1000)}k` : formatExact(at);
}

/** A thin line at the selected step. */
function markStep(plot: uPlot): void {
  const { min, max } = plot.scales["x"]!;
  const at = step.peek();
  if (chosenStep.peek() === null || min == null || max == null || at <= min || at >= max) return;
  const x = plot.valToPos(at, "x", true);
  plot.ctx.save();
  plot.ctx.fillStyle = resolve("text");
  plot.ctx.fillRect(Math.round(x), plot.bbox.top, devicePixelRatio, plot.bbox.height);
  plot.ctx.restore();
}

interface ReadingProps {
  readonly drawing: Drawing;
  readonly heat: Heat | undefined;
  readonly points: Points | undefined;
  readonly series: Series;
  readonly at: { step: number; share: number } | null;
}

/** The values under the cursor, or at the shown step. */
function Reading({ drawing, heat, points, series, at }: ReadingProps) {
  if (heat) return <HeatReading drawing={drawing} heat={heat} at={at} />;
  if (!points?.steps.length) return <span class="reading dim">no data yet</span>;
  const wanted = at?.step ?? step.value;
  const index = Math.max(
    0,
    points.steps.findLastIndex((one) => one <= Math.round(wanted)),
  );
  const read = (field: string) => points.columns[field]?.[index] ?? NaN;
  const broken = ["nan", "inf"].filter((field) => points.columns[field] && read(field) > 0);
  return (
    <span class="reading">
      {at && <span class="dim">step {formatExact(points.steps[index]!)}</span>}
      {series.kind ? (
        <>
          <span>
            {formatNumber(read("mean"))} <span class="dim">±</span> {formatNumber(read("std"))}
          </span>
          <span>
            {formatNumber(read("min"))} <span class="dim">…</span> {formatNumber(read("max"))}
          </span>
        </>
      ) : (
        <span>{formatNumber(read("value"))}</span>
      )}
      {broken.map((field) => (
        <span key={field} class="flag">
          {formatExact(read(field))} {field === "nan" ? "NaN" : "Inf"}
        </span>
      ))}
    </span>
  );
}

interface HeatReadingProps {
  readonly drawing: Drawing;
  readonly heat: Heat;
  readonly at: { step: number; share: number } | null;
}

/** The bin under the cursor, or the median at the shown step. */
function HeatReading({ drawing, heat, at }: HeatReadingProps) {
  const column = columnOf(heat, at?.step ?? step.value);
  if (!column) return <span class="reading dim">no data yet</span>;
  const broken = column.broken > 0 && <span class="flag">{formatExact(column.broken)} NaN or Inf</span>;
  if (!at || !drawing.axis) {
    const median = quantiles(column, [0.5])?.[0];
    return (
      <span class="reading">
        {median !== undefined && (
          <span>
            <span class="dim">median</span> {formatNumber(median)}
          </span>
        )}
        {broken}
      </span>
    );
  }
  const steps =
    column.firstStep === column.lastStep
      ? `step ${formatExact(column.firstStep)}`
      : `steps ${formatExact(column.firstStep)}–${formatExact(column.lastStep)}`;
  const bin = binAt(column, valueAt(drawing.axis, at.share));
  return (
    <span class="reading" data-testid="bin">
      <span class="dim">{steps}</span>
      <span>
        {formatNumber(bin.low)} … {formatNumber(bin.high)}
      </span>
      <b>{formatExact(bin.count)}</b>
      {broken}
    </span>
  );
}

function describe(title: string, series: Series, points: Points | undefined, heat: Heat | undefined): string {
  if (heat?.columns.length) {
    const [first, last] = [heat.columns[0]!, heat.columns.at(-1)!];
    return `${title}, histograms over steps ${first.firstStep} to ${last.lastStep}`;
  }
  if (!points?.steps.length) return `${title}: no data yet`;
  const field = series.kind ? "mean" : "value";
  const values = points.columns[field] ?? [];
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  const steps = `steps ${points.steps[0]} to ${points.steps.at(-1)}`;
  return `${title}, ${field} over ${steps}: ${formatNumber(low)} to ${formatNumber(high)}, last ${formatNumber(values.at(-1) ?? NaN)}`;
}
