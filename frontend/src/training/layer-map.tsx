/** A heat map of layers × steps: where and when a training went wrong. */

import { batch, signal, useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { formatExact, formatNumber, formatShort } from "../data/formats";
import { columnOfStep, type LayerHeat, scaleOf } from "../data/layer-heat";
import { type LayerStatistic, LAYER_STATISTICS } from "../data/records";
import { useLayerHeat } from "../state/live";
import { jumpToGraph } from "../state/places";
import { model, shown } from "../state/state";
import { chosenStep, goToStep, step } from "../state/time";
import { pixelsOf, RAMP_CSS } from "./heat-pixels";

const NAMES: Record<LayerStatistic, string> = {
  gradient: "Gradient norm",
  activation: "Activation scale",
  update: "Update ratio",
  dead: "Dead share",
};

const chosen = signal<LayerStatistic | null>(null);

const [MOST_ROW, MAP_HEIGHT, LABEL_HEIGHT] = [18, 420, 14];

interface Cell {
  readonly row: number;
  readonly column: number;
}

export function LayerMap({ span }: { span: readonly [number, number] }) {
  const store = shown.value!;
  const offered = LAYER_STATISTICS.filter((one) => store.layerStatistics.value.includes(one));
  const statistic = chosen.value && offered.includes(chosen.value) ? chosen.value : offered[0];
  const heat = useLayerHeat(store, statistic);
  const cell = useSignal<Cell | null>(null);
  if (!statistic) return null;
  return (
    <div class="card layer-map">
      <div class="card-head">
        <h2>Layers × steps</h2>
        <span class="buttons" role="group" aria-label="Statistic">
          {offered.map((one) => (
            <button
              key={one}
              type="button"
              class={one === statistic ? "on" : ""}
              aria-pressed={one === statistic}
              onClick={() => (chosen.value = one)}
            >
              {NAMES[one]}
            </button>
          ))}
        </span>
        {heat && <Legend heat={heat} />}
      </div>
      {heat?.paths.length ? <Map heat={heat} span={span} cell={cell} /> : <p class="empty">No values yet.</p>}
    </div>
  );
}

function Legend({ heat }: { heat: LayerHeat }) {
  const { low, high, isLogarithmic, hasZero, hasNonfinite } = useMemo(() => scaleOf(heat), [heat]);
  return (
    <span class="scale" data-testid="scale">
      {hasNonfinite && (
        <span>
          <i class="swatch nonfinite" /> NaN or Inf
        </span>
      )}
      {hasZero && (
        <span>
          <i class="swatch zero" /> 0
        </span>
      )}
      <span>
        {formatShort(low)} <i class="ramp" style={{ background: RAMP_CSS }} /> {formatShort(high)}
        {isLogarithmic && " (log)"}
      </span>
    </span>
  );
}

function nameOf(path: string): string {
  return path || model.value?.name || "model";
}

interface MapProps {
  readonly heat: LayerHeat;
  readonly span: readonly [number, number];
  readonly cell: { value: Cell | null };
}

function Map({ heat, span, cell }: MapProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const rows = heat.paths.length;
  const each = Math.max(1, Math.min(MOST_ROW, MAP_HEIGHT / rows));
  const height = Math.round(each * rows);
  useEffect(() => {
    const element = canvas.current!;
    // It is called at once, too.
    const watcher = new ResizeObserver(() => paint(element, heat, span));
    watcher.observe(element);
    return () => watcher.disconnect();
  }, [heat, span[0], span[1], height]);
  const place = (at: number) => `${(100 * (at - span[0])) / (span[1] - span[0])}%`;
  const under = cell.value;
  const end = (column: number) => heat.starts[column + 1] ?? heat.ends.at(-1)! + 1;
  return (
    <>
      <p class="dim reading" role="status" data-testid="cell">
        {under ? <Reading heat={heat} cell={under} /> : "Layers in execution order. Click a cell to open its layer at that step."}
      </p>
      <div class="map-box" style={{ maxHeight: `${MAP_HEIGHT + 20}px` }}>
        <Labels heat={heat} each={each} height={height} cell={under} />
        <div class="cells">
          <canvas
            ref={canvas}
            style={{ height: `${height}px` }}
            tabIndex={0}
            role="application"
            aria-label={`${heat.title} of ${formatExact(rows)} layers over ${formatExact(heat.starts.length)} columns of steps. Arrow keys move, Enter opens the layer.`}
            onPointerMove={(event) => (cell.value = cellAt(event, heat, span))}
            onPointerLeave={() => (cell.value = null)}
            onBlur={() => (cell.value = null)}
            onClick={(event) => open(heat, cellAt(event, heat, span))}
            onKeyDown={(event) => walk(event, heat, cell)}
          />
          {under && (
            <i
              class="cursor"
              style={{
                top: `${under.row * each}px`,
                height: `${Math.max(3, each)}px`,
                insetInlineStart: place(heat.starts[under.column]!),
                width: `calc(${place(end(under.column))} - ${place(heat.starts[under.column]!)})`,
              }}
            />
          )}
          {chosenStep.value !== null && <i class="now" style={{ insetInlineStart: place(step.value + 0.5), height: `${height}px` }} />}
        </div>
      </div>
      <div class="axis" aria-hidden="true">
        <span>step {formatExact(span[0])}</span>
        <span>{formatExact(Math.round((span[0] + span[1] - 1) / 2))}</span>
        <span>{formatExact(span[1] - 1)}</span>
      </div>
    </>
  );
}

function Reading({ heat, cell: { row, column } }: { heat: LayerHeat; cell: Cell }) {
  const value = heat.columns[column]![row]!;
  const [first, last] = [heat.starts[column]!, heat.ends[column]!];
  return (
    <>
      {first === last ? `step ${formatExact(first)}` : `steps ${formatExact(first)}–${formatExact(last)}`} ·{" "}
      <b>
        <bdi>{nameOf(heat.paths[row]!)}</bdi>
      </b>{" "}
      · {heat.title}{" "}
      {Number.isNaN(value) ? "not recorded" : value === Infinity ? <span class="flag">NaN or Inf</span> : <b>{formatNumber(value)}</b>}
      {first !== last && Number.isFinite(value) && " at most"}
    </>
  );
}

/** The names of as many rows as there is room for. */
function Labels({ heat, each, height, cell }: { heat: LayerHeat; each: number; height: number; cell: Cell | null }) {
  const every = Math.ceil(LABEL_HEIGHT / each);
  return (
    <div class="labels" style={{ height: `${height}px` }}>
      {heat.paths.map((path, row) =>
        row % every ? null : (
          <button
            key={path}
            type="button"
            tabIndex={-1}
            class={cell?.row === row ? "on" : ""}
            title={nameOf(path)}
            style={{ top: `${Math.min(Math.max((row + 0.5) * each, LABEL_HEIGHT / 2), height - LABEL_HEIGHT / 2)}px` }}
            onClick={() => jumpToGraph(path)}
          >
            <bdi>{nameOf(path)}</bdi>
          </button>
        ),
      )}
    </div>
  );
}

function cellAt(event: MouseEvent, heat: LayerHeat, [from, to]: readonly [number, number]): Cell {
  const { left, top, width, height } = (event.currentTarget as Element).getBoundingClientRect();
  const row = Math.floor(((event.clientY - top) / height) * heat.paths.length);
  const at = from + ((event.clientX - left) / width) * (to - from);
  return { row: Math.max(0, Math.min(row, heat.paths.length - 1)), column: columnOfStep(heat, at) };
}

/** Shows a layer in the graph, at the step of a cell. */
function open(heat: LayerHeat, { row, column }: Cell): void {
  batch(() => {
    jumpToGraph(heat.paths[row]!);
    goToStep(heat.starts[column]!);
  });
}

function walk(event: KeyboardEvent, heat: LayerHeat, cell: { value: Cell | null }): void {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { row, column } = cell.value ?? { row: 0, column: columnOfStep(heat, step.value) };
  const go = (nextRow: number, nextColumn: number) => {
    cell.value = {
      row: Math.max(0, Math.min(nextRow, heat.paths.length - 1)),
      column: Math.max(0, Math.min(nextColumn, heat.starts.length - 1)),
    };
  };
  const keys: Record<string, () => void> = {
    ArrowUp: () => go(row - 1, column),
    ArrowDown: () => go(cell.value ? row + 1 : row, column),
    ArrowLeft: () => go(row, column - 1),
    ArrowRight: () => go(row, column + 1),
    Home: () => go(row, 0),
    End: () => go(row, heat.starts.length - 1),
    PageUp: () => go(row - 10, column),
    PageDown: () => go(row + 10, column),
    Enter: () => open(heat, { row, column }),
  };
  const act = keys[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

function paint(canvas: HTMLCanvasElement, heat: LayerHeat, span: readonly [number, number]): void {
  const unit = devicePixelRatio;
  const [width, height] = [Math.round(canvas.clientWidth * unit), Math.round(canvas.clientHeight * unit)];
  if (!width || !height) return;
  canvas.width = width;
  canvas.height = height;
  canvas.getContext("2d")!.putImageData(pixelsOf(heat, scaleOf(heat), span, width, height, unit), 0, 0);
}
