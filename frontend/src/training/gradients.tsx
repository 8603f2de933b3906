/** Gradient norms along the depth of the model: one line per step, one behind the other. */

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { formatExact, formatNumber } from "../data/formats";
import { columnOfStep, type LayerHeat } from "../data/layer-heat";
import { isDark, resolve } from "../frame/theme";
import { useLayerHeat } from "../state/live";
import { jumpToGraph } from "../state/places";
import { compared, model, nameOfRun, shown } from "../state/state";
import { step } from "../state/time";
import { ridge, type Ridge } from "./ridge";

const MOST_LINES = 40;

const NONE: LayerHeat = { title: "", isLogarithmic: true, paths: [], starts: [], ends: [], columns: [] };

/** Margins for the steps and the names of layers. */
const EDGE = { left: 54, right: 14, bottom: 84 };

export function Gradients() {
  const other = compared.value ?? shown.value!;
  const [heat = NONE, second = NONE] = [useLayerHeat(shown.value!, "gradient"), useLayerHeat(other, "gradient")];
  const drawn = ridge(heat, step.value, MOST_LINES);
  const beside = other === shown.value ? null : normsOf(second, step.value);
  const canvas = useRef<HTMLCanvasElement>(null);
  const mouse = useSignal<{ x: number; y: number } | null>(null);
  const names = heat.paths.map((path) => path || model.value!.name);
  const others = beside && heat.paths.map((path) => beside.get(path) ?? NaN);
  // Computed at each drawing, not at each mouse move: steps arrive while the mouse rests.
  const under = mouse.value && canvas.current && nearest(canvas.current, drawn, mouse.value);
  const read = under && drawn.lines[under.line];
  useEffect(() => {
    const element = canvas.current;
    if (!element) return undefined;
    const draw = () => paint(element, drawn, names, others);
    draw();
    const watcher = new ResizeObserver(draw);
    watcher.observe(element);
    return () => watcher.disconnect();
  }, [heat, second, step.value, isDark.value]);
  return (
    <section class="training gradients" aria-label="Gradients">
      <p class="dim" role="status">
        {read ? (
          <>
            step {formatExact(read.first)} · <b>{names[under.layer]}</b> · gradient norm{" "}
            {formatNorm(read.norms[under.layer] ?? NaN)}
          </>
        ) : (
          <>
            Gradient norm per layer (log scale), in the order in which layers run. One line per step, the latest in
            front. Red dots: NaN or Inf.
            {others && (
              <>
                {" "}
                Blue: {nameOfRun(shown.value!)}. Amber: {nameOfRun(other)}.
              </>
            )}
          </>
        )}
      </p>
      <canvas
        ref={canvas}
        role="img"
        aria-label={`Gradient norms of ${heat.paths.length} layers over ${heat.starts.length} steps`}
        onMouseMove={({ clientX: x, clientY: y }) => (mouse.value = { x, y })}
        onMouseLeave={() => (mouse.value = null)}
      />
      <Layers heat={heat} beside={beside} />
    </section>
  );
}

/** The line and the layer that are nearest to a point of the window. */
function nearest(canvas: HTMLCanvasElement, drawn: Ridge, mouse: { x: number; y: number }) {
  const { left, top, width, height } = canvas.getBoundingClientRect();
  const { x, base } = axesOf(width, height, drawn);
  return {
    layer: nearestOf(drawn.layers, (at) => Math.abs(x(at) + left - mouse.x)),
    line: nearestOf(drawn.lines.length, (at) => Math.abs(base(at) - 8 + top - mouse.y)),
  };
}

function nearestOf(count: number, far: (at: number) => number): number {
  return Array.from({ length: count }, (_, at) => at).reduce((best, at) => (far(at) < far(best) ? at : best), 0);
}

/** The norm of each layer at a step, or at the last one before it that has any. */
function normsOf(heat: LayerHeat, at: number): ReadonlyMap<string, number> {
  const norms = heat.columns[columnOfStep(heat, at)] ?? [];
  return new Map(heat.paths.map((path, row) => [path, norms[row] ?? NaN]));
}

function formatNorm(norm: number): string {
  return norm === Infinity ? "NaN or Inf" : Number.isNaN(norm) ? "–" : formatNumber(norm);
}

function axesOf(w: number, h: number, { lines, layers }: Ridge) {
  const { left, right, bottom } = EDGE;
  const rise = (h - bottom) * 0.4;
  return {
    rise,
    x: (layer: number) => left + (layers > 1 ? (layer * (w - left - right)) / (layers - 1) : 0),
    base: (line: number) => rise + ((line + 1) * (h - rise - bottom)) / lines.length,
  };
}

function paint(
  canvas: HTMLCanvasElement,
  drawn: Ridge,
  names: readonly string[],
  others: readonly number[] | null,
): void {
  const { lines, layers, low, high, current } = drawn;
  const unit = devicePixelRatio;
  const [w, h] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = w * unit;
  canvas.height = h * unit;
  const context = canvas.getContext("2d")!;
  context.scale(unit, unit);
  if (!lines.length || layers < 1) return;
  const { rise, x, base } = axesOf(w, h, drawn);
  const share = (norm: number) =>
    high > low ? (Math.log(norm) - Math.log(low)) / (Math.log(high) - Math.log(low)) : 0.5;
  const [ground, ink, accent, dim, alarm] = ["panel", "bar", "accent", "dim", "alarm"].map(resolve);
  context.font = "11px system-ui, sans-serif";
  const trace = (norms: readonly number[], at: number) => {
    const line = new Path2D();
    norms.forEach((norm, layer) => {
      const y = base(at) - (Number.isFinite(norm) && norm > 0 ? Math.min(1, Math.max(0, share(norm))) * (rise - 8) : 0);
      if (layer) line.lineTo(x(layer), y);
      else line.moveTo(x(layer), y);
    });
    return line;
  };
  lines.forEach(({ norms, first }, at) => {
    const line = trace(norms, at);
    const isCurrent = at === current;
    const area = new Path2D(line);
    area.lineTo(x(layers - 1), base(at));
    area.lineTo(x(0), base(at));
    context.fillStyle = ground!;
    context.globalAlpha = 0.78;
    context.fill(area);
    context.globalAlpha = 1;
    context.strokeStyle = isCurrent ? accent! : ink!;
    context.lineWidth = isCurrent ? 2.2 : 1;
    context.stroke(line);
    if (isCurrent && others) {
      context.strokeStyle = resolve("warning");
      context.stroke(trace(others, at));
    }
    context.fillStyle = alarm!;
    norms.forEach((norm, layer) => {
      if (norm === Infinity) context.fillRect(x(layer) - 2, base(at) - 4, 4, 4);
    });
    if (isCurrent || at === 0 || at === lines.length - 1) {
      context.fillStyle = isCurrent ? accent! : dim!;
      context.textAlign = "right";
      context.fillText(formatExact(first), EDGE.left - 8, base(at));
    }
  });
  context.fillStyle = dim!;
  context.textAlign = "left";
  context.fillText("step", 8, 12);
  context.textAlign = "right";
  // As many names as there is room for.
  const each = Math.ceil((names.length * 15) / (w - EDGE.left - EDGE.right));
  names.forEach((name, layer) => {
    if (layer % each) return;
    context.save();
    context.translate(x(layer) + 3, h - EDGE.bottom + 12);
    context.rotate(-Math.PI / 3);
    context.fillText(name.length > 16 ? `…${name.slice(-15)}` : name, 0, 0);
    context.restore();
  });
}

/** The norms at the shown step, as bars that link to their modules. */
function Layers({ heat, beside }: { heat: LayerHeat; beside: ReadonlyMap<string, number> | null }) {
  const column = columnOfStep(heat, step.value);
  const norms = heat.columns[column] ?? [];
  const finite = norms.filter((norm) => norm > 0 && Number.isFinite(norm));
  const [low, high] = [Math.log10(Math.min(...finite)) - 0.3, Math.log10(Math.max(...finite))];
  const shareOf = (norm: number) =>
    norm > 0 && Number.isFinite(norm) ? (Math.log10(norm) - low) / (high - low || 1) : 0;
  return (
    <table class="layers">
      <caption>
        {heat.starts.length
          ? `Gradient norms at step ${formatExact(heat.starts[column]!)}`
          : "No gradients recorded yet."}
      </caption>
      <tbody>
        {heat.paths.map((path, at) => (
          <tr key={path}>
            <th scope="row">
              <button type="button" class="jump" onClick={() => jumpToGraph(path)}>
                <bdi>{path || model.value?.name}</bdi>
              </button>
            </th>
            <td class="bar">
              <i style={{ width: `${100 * shareOf(norms[at]!)}%` }} />
            </td>
            <td class="number">
              <span class={norms[at] === Infinity ? "flag" : ""}>{formatNorm(norms[at] ?? NaN)}</span>
            </td>
            {beside && <td class="number">{formatNorm(beside.get(path) ?? NaN)}</td>}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
