/** When modules and ops of the traced pass ran, as a flame chart: inner calls are below. */

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { kindOf } from "../data/model";
import type { Span } from "../data/records";
import { isDark, resolve } from "../frame/theme";
import { classColor, formatTime } from "../graph/colors";
import { cut } from "../graph/text-width";
import { jumpToGraph } from "../state/places";
import { model, shown } from "../state/state";

const ROW = 20;
/** The time axis is below the bars. */
const AXIS = 20;
const TICKS = 6;

export function Flame() {
  const spans = shown.value!.spans.value;
  const canvas = useRef<HTMLCanvasElement>(null);
  const range = useSignal<[number, number] | null>(null);
  const under = useSignal<Span | null>(null);
  const start = Math.min(...spans.map((span) => span[3]));
  const end = Math.max(...spans.map((span) => span[4]));
  const [from, to] = range.value ?? [start, end];
  const depth = Math.max(...spans.map((span) => span[2])) + 1;
  useEffect(() => {
    const element = canvas.current!;
    const draw = () => paint(element, spans, from, to);
    draw();
    const watcher = new ResizeObserver(draw);
    watcher.observe(element);
    return () => watcher.disconnect();
  }, [spans, from, to, isDark.value]);
  const find = (event: MouseEvent) => {
    const around = canvas.current!.getBoundingClientRect();
    const at = from + ((event.clientX - around.left) / around.width) * (to - from);
    const row = Math.floor((event.clientY - around.top) / ROW);
    return spans.find((span) => span[2] === row && span[3] <= at && at < span[4]) ?? null;
  };
  const open = (event: MouseEvent) => {
    const span = find(event);
    range.value = span ? [span[3], span[4]] : null;
  };
  return (
    <section class="training" aria-label="Time">
      <p class="reading" role="status">
        {under.value ? (
          <Words span={under.value} whole={end - start} />
        ) : (
          <span class="dim">
            {shown.value!.profiled.value
              ? `Forward, median of the timed runs: ${formatTime(end - start)}. Modules in the order of the model.`
              : `One traced pass, first run: ${formatTime(end - start)} including the cost of tracing.`}{" "}
            Click a bar to zoom.
          </span>
        )}
        {range.value && (
          <button type="button" class="jump" onClick={() => (range.value = null)}>
            Show all
          </button>
        )}
      </p>
      <canvas
        ref={canvas}
        class="flame"
        role="img"
        aria-label={`${spans.length} spans of one pass`}
        style={{ height: `${depth * ROW + AXIS}px` }}
        onMouseMove={(event) => (under.value = find(event))}
        onMouseLeave={() => (under.value = null)}
        onClick={open}
        onDblClick={(event) => goTo(find(event))}
      />
    </section>
  );
}

function Words({ span: [kind, name, , from, to], whole }: { span: Span; whole: number }) {
  return (
    <>
      <b>
        <bdi>{name || model.value?.name}</bdi>
      </b>
      <span class="dim">{kind}</span> {formatTime(to - from)}{" "}
      <span class="dim">{((100 * (to - from)) / whole).toFixed(1)}%</span>
    </>
  );
}

function goTo(span: Span | null): void {
  if (span?.[0] === "call") jumpToGraph(span[1]);
}

/** The parent is above, so the last part of a path is enough, unless it is only a number. */
function labelOf(name: string): string {
  return /[^.]+(\.\d+)?$/.exec(name)?.[0] ?? model.value?.name ?? "";
}

/** Modules have the colors of their classes, as in the graph. */
function colorOf(kind: string, path: string): string {
  const known = model.value;
  const module = kind === "call" ? known?.modules[known.find(path) ?? -1] : undefined;
  return resolve(module ? classColor(kindOf(module)) : "hover");
}

function paint(canvas: HTMLCanvasElement, spans: readonly Span[], from: number, to: number): void {
  const unit = devicePixelRatio;
  const [w, h] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = w * unit;
  canvas.height = h * unit;
  const context = canvas.getContext("2d")!;
  context.scale(unit, unit);
  context.font = "11.5px system-ui, sans-serif";
  const ink = resolve("text");
  const x = (at: number) => ((at - from) / (to - from)) * w;
  const origin = spans.reduce((least, span) => Math.min(least, span[3]), Infinity);
  context.fillStyle = resolve("dim");
  for (let tick = 0; tick < TICKS; tick++) {
    const at = from + (tick * (to - from)) / (TICKS - 1);
    context.textAlign = tick === TICKS - 1 ? "right" : tick ? "center" : "left";
    context.fillText(formatTime(at - origin), x(at), h - 4);
  }
  context.textAlign = "left";
  for (const [kind, name, depth, start, end] of spans) {
    if (end < from || start > to) continue;
    const [left, right] = [Math.max(0, x(start)), Math.min(w, x(end))];
    const wide = right - left;
    if (wide < 0.3) continue;
    context.fillStyle = colorOf(kind, name);
    context.fillRect(left, depth * ROW, Math.max(0.5, wide - 1), ROW - 1);
    if (wide < 26) continue;
    context.fillStyle = ink;
    context.fillText(cut(labelOf(name), (wide - 8) / 6.4), left + 4, depth * ROW + 14);
  }
}
