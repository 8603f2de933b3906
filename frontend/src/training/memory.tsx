/** The memory of one step over time, and what the peak consists of. */

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { formatBytes } from "../data/formats";
import type { MemoryUse, Moment } from "../data/records";
import { isDark, resolve } from "../frame/theme";
import { formatTime } from "../graph/colors";
import { jumpToGraph } from "../state/places";
import { model, shown } from "../state/state";

export function Memory() {
  const use = shown.value!.memory.value!;
  const canvas = useRef<HTMLCanvasElement>(null);
  const under = useSignal<Moment | null>(null);
  const peak = use.moments.reduce((most, one) => Math.max(most, one[1]), use.before_bytes);
  useEffect(() => {
    const element = canvas.current!;
    const draw = () => paint(element, use, peak);
    draw();
    const watcher = new ResizeObserver(draw);
    watcher.observe(element);
    return () => watcher.disconnect();
  }, [use, isDark.value]);
  const find = (event: MouseEvent) => {
    const around = canvas.current!.getBoundingClientRect();
    const at = Math.floor(((event.clientX - around.left) / around.width) * use.moments.length);
    under.value = use.moments[at] ?? null;
  };
  return (
    <section class="training" aria-label="Memory">
      <p class="reading" role="status">
        {under.value ? (
          <Words moment={under.value} />
        ) : (
          <span class="dim">
            One step on {use.device}: at most {formatBytes(peak)}, of which {formatBytes(use.before_bytes)} were there
            before.
          </span>
        )}
      </p>
      <canvas
        ref={canvas}
        class="timeline"
        role="img"
        aria-label={`Memory of one step, at most ${formatBytes(peak)}`}
        onMouseMove={find}
        onMouseLeave={() => (under.value = null)}
      />
      <Holders use={use} />
    </section>
  );
}

function Words({ moment: [time, bytes, phase, path, op] }: { moment: Moment }) {
  return (
    <>
      <b>{formatBytes(bytes)}</b>
      <span>{formatTime(time)}</span>
      <span class="dim">
        {phase} {path} {op}
      </span>
    </>
  );
}

function Holders({ use }: { use: MemoryUse }) {
  const most = use.holders.reduce((most, one) => Math.max(most, one.bytes), 1);
  return (
    <table class="layers">
      <caption>At the peak</caption>
      <tbody>
        {use.holders.map((one, at) => (
          <tr key={at}>
            <th scope="row">
              <button type="button" class="jump" onClick={() => jumpToGraph(one.path)}>
                <bdi>{one.path || model.value?.name}</bdi>
              </button>{" "}
              <span class="dim">
                {one.kind} {one.op}
              </span>
            </th>
            <td class="bar">
              <i style={{ width: `${(100 * one.bytes) / most}%` }} />
            </td>
            <td class="number">{formatBytes(one.bytes)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function paint(canvas: HTMLCanvasElement, use: MemoryUse, peak: number): void {
  const unit = devicePixelRatio;
  const [w, h] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = w * unit;
  canvas.height = h * unit;
  const context = canvas.getContext("2d")!;
  context.scale(unit, unit);
  context.font = "11px system-ui, sans-serif";
  const [top, bottom] = [22, 4];
  // One position per change, not by time: short phases stay visible.
  const x = (at: number) => (at / use.moments.length) * w;
  const y = (bytes: number) => top + (1 - bytes / (peak || 1)) * (h - top - bottom);
  context.beginPath();
  context.moveTo(0, h);
  context.lineTo(0, y(use.before_bytes));
  let height = y(use.before_bytes);
  use.moments.forEach(([, bytes], at) => {
    context.lineTo(x(at), height);
    height = y(bytes);
    context.lineTo(x(at), height);
  });
  context.lineTo(w, height);
  context.lineTo(w, h);
  context.fillStyle = resolve("bar");
  context.fill();
  paintPhases(context, use, x, h);
}

/** A line where each phase begins, and its name where there is room for it. */
function paintPhases(
  context: CanvasRenderingContext2D,
  { moments }: MemoryUse,
  x: (at: number) => number,
  h: number,
): void {
  context.fillStyle = resolve("dim");
  const starts = moments.flatMap(([, , phase], at) => (phase === moments[at - 1]?.[2] ? [] : [at]));
  starts.forEach((at, place) => {
    const phase = moments[at]![2];
    const room = x(starts[place + 1] ?? moments.length) - x(at);
    context.fillRect(x(at), 0, 1, h);
    if (context.measureText(phase).width + 8 <= room) context.fillText(phase, x(at) + 4, 13);
  });
}
