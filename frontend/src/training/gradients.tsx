/** How large gradients are along the depth of the model: a line for each step, one behind the other. */

import { useEffect, useRef } from "preact/hooks";
import { formatExact, formatNumber } from "../data/formats";
import { readNumber } from "../data/points";
import type { FlowPayload } from "../data/records";
import { isDark, resolve } from "../frame/theme";
import { useFlow } from "../state/live";
import { jumpToGraph } from "../state/places";
import { model, shown } from "../state/state";
import { step } from "../state/time";
import { ridge, type Ridge } from "./ridge";

const MOST_LINES = 40;

export function Gradients() {
  const flow = useFlow(shown.value!);
  const drawn = ridge(flow, step.value, MOST_LINES);
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const element = canvas.current;
    if (!element) return undefined;
    const draw = () => paint(element, drawn);
    draw();
    const watcher = new ResizeObserver(draw);
    watcher.observe(element);
    return () => watcher.disconnect();
  }, [flow, step.value, isDark.value]);
  return (
    <section class="training gradients" aria-label="Gradients">
      <p class="dim">
        The norm of the gradients of each layer, from the first at the left to the last at the right, on a logarithmic
        scale. Each line is a step, the latest in front.
      </p>
      <canvas
        ref={canvas}
        role="img"
        aria-label={`Gradient norms of ${flow.layers.length} layers over ${flow.steps.length} steps`}
      />
      <Layers flow={flow} />
    </section>
  );
}

function paint(canvas: HTMLCanvasElement, { lines, layers, low, high, current }: Ridge): void {
  const unit = devicePixelRatio;
  const [w, h] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = w * unit;
  canvas.height = h * unit;
  const context = canvas.getContext("2d")!;
  context.scale(unit, unit);
  if (!lines.length || layers < 1) return;
  const [left, right, bottom] = [54, 14, 20];
  const rise = (h - bottom) * 0.4;
  const top = rise;
  const x = (layer: number) => left + (layers > 1 ? (layer * (w - left - right)) / (layers - 1) : 0);
  const base = (line: number) => top + ((line + 1) * (h - top - bottom)) / lines.length;
  const share = (norm: number) =>
    high > low ? (Math.log(norm) - Math.log(low)) / (Math.log(high) - Math.log(low)) : 0.5;
  const [ground, ink, accent, dim] = [resolve("panel"), resolve("bar"), resolve("accent"), resolve("dim")];
  lines.forEach(({ norms, first }, at) => {
    const line = new Path2D();
    norms.forEach((norm, layer) => {
      const y = base(at) - (Number.isFinite(norm) && norm > 0 ? Math.max(0, share(norm)) * (rise - 8) : 0);
      if (layer) line.lineTo(x(layer), y);
      else line.moveTo(x(layer), y);
    });
    const isCurrent = at === current;
    const area = new Path2D(line);
    area.lineTo(x(layers - 1), base(at));
    area.lineTo(x(0), base(at));
    context.fillStyle = ground;
    context.globalAlpha = 0.78;
    context.fill(area);
    context.globalAlpha = 1;
    context.strokeStyle = isCurrent ? accent : ink;
    context.lineWidth = isCurrent ? 2.2 : 1;
    context.stroke(line);
    if (isCurrent || at === 0 || at === lines.length - 1) {
      context.fillStyle = isCurrent ? accent : dim;
      context.font = "11px system-ui, sans-serif";
      context.textAlign = "right";
      context.fillText(formatExact(first), left - 8, base(at));
    }
  });
}

/** The norms at the step that is shown, as bars that lead to their modules. */
function Layers({ flow }: { flow: FlowPayload }) {
  const column = Math.max(
    0,
    flow.steps.findLastIndex(([first]) => first <= step.value),
  );
  const norms = flow.layers.map((layer) => readNumber(layer.norms[column] ?? NaN));
  const finite = norms.filter((norm) => norm > 0 && Number.isFinite(norm));
  const [low, high] = [Math.log10(Math.min(...finite)) - 0.3, Math.log10(Math.max(...finite))];
  const shareOf = (norm: number) =>
    norm > 0 && Number.isFinite(norm) ? (Math.log10(norm) - low) / (high - low || 1) : 0;
  return (
    <table class="layers">
      <caption>
        {flow.steps[column]
          ? `Gradient norms at step ${formatExact(flow.steps[column][0])}`
          : "No gradient was recorded yet."}
      </caption>
      <tbody>
        {flow.layers.map((layer, at) => (
          <tr key={layer.path}>
            <th scope="row">
              <button type="button" class="jump" onClick={() => jumpToGraph(layer.path)}>
                <bdi>{layer.path || model.value?.name}</bdi>
              </button>
            </th>
            <td class="bar">
              <i style={{ width: `${100 * shareOf(norms[at]!)}%` }} />
            </td>
            <td class="number">
              <span class={Number.isFinite(norms[at]) ? "" : "flag"}>{formatNumber(norms[at]!)}</span>
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
