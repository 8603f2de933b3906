/** The loss of many runs in one chart: thin lines on one canvas, the nearest one named. */

import { signal, useSignalEffect } from "@preact/signals";
import { useRef } from "preact/hooks";
import { formatExact } from "../data/formats";
import { isDark, overlaid, type Curve } from "./table-state";

const HEIGHT = 240;
const GUTTER = 64;
const FOOT = 18;
const NEAR = 14;

const logarithmic = signal(false);
const nearest = signal("");

/** Where the values of all curves lie on the canvas. */
function placement(curves: readonly Curve[], width: number, isLog: boolean) {
  const shown = (value: number) => Number.isFinite(value) && (!isLog || value > 0);
  let [low, high, last] = [Infinity, -Infinity, 1];
  for (const { steps, values } of curves) {
    last = Math.max(last, steps.at(-1) ?? 0);
    for (const value of values) {
      if (!shown(value)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  const scale = isLog ? Math.log10 : (value: number) => value;
  const [from, to] = [scale(low), scale(high)];
  const height = HEIGHT - FOOT - 8;
  return {
    low,
    high,
    last,
    shown,
    x: (step: number) => GUTTER + (step / last) * (width - GUTTER - 8),
    y: (value: number) => 8 + (to > from ? (1 - (scale(value) - from) / (to - from)) * height : height / 2),
  };
}

type Placement = ReturnType<typeof placement>;

export function Overlay() {
  const canvas = useRef<HTMLCanvasElement>(null);
  const place = useRef<Placement | null>(null);
  useSignalEffect(() => {
    void isDark.value;
    if (canvas.current) place.current = draw(canvas.current, overlaid.value, logarithmic.value, nearest.value);
  });
  const there = overlaid.value.filter(({ steps }) => steps.length).length;
  return (
    <section class="card overlay" aria-label="Loss">
      <div class="card-head">
        <h2>Loss</h2>
        <label>
          <input type="checkbox" checked={logarithmic.value} onChange={() => (logarithmic.value = !logarithmic.value)} /> Log scale
        </label>
        <span class="dim" data-testid="overlaid">
          {formatExact(there)} of {formatExact(overlaid.value.length)} runs
        </span>
        <b>{nearest.value}</b>
        <button type="button" class="plain" onClick={() => (overlaid.value = [])}>
          Close
        </button>
      </div>
      <canvas
        ref={canvas}
        role="img"
        aria-label={`Loss of ${there} runs over steps`}
        onPointerMove={(event) => (nearest.value = nameAt(event.offsetX, event.offsetY, place.current))}
        onPointerLeave={() => (nearest.value = "")}
      />
    </section>
  );
}

function draw(canvas: HTMLCanvasElement, curves: readonly Curve[], isLog: boolean, marked: string): Placement {
  const width = canvas.clientWidth || 600;
  const ratio = devicePixelRatio || 1;
  [canvas.width, canvas.height] = [width * ratio, HEIGHT * ratio];
  const at = placement(curves, width, isLog);
  const pen = canvas.getContext("2d")!;
  const style = getComputedStyle(canvas);
  pen.scale(ratio, ratio);
  pen.clearRect(0, 0, width, HEIGHT);
  pen.font = `11px ${style.fontFamily}`;
  pen.fillStyle = style.getPropertyValue("--dim");
  pen.textAlign = "right";
  if (at.high >= at.low) {
    pen.fillText(at.high.toPrecision(3), GUTTER - 6, 14);
    pen.fillText(at.low.toPrecision(3), GUTTER - 6, HEIGHT - FOOT);
    pen.fillText(`step ${formatExact(at.last)}`, width - 8, HEIGHT - 4);
  }
  const light = isDark.peek() ? 65 : 42;
  curves.forEach((curve, index) => {
    const isMarked = curve.path === marked;
    // The golden angle: neighbors get hues that are far apart.
    pen.strokeStyle = `hsl(${(index * 137.5) % 360} 65% ${light}%)`;
    pen.globalAlpha = isMarked ? 1 : marked ? 0.25 : Math.max(0.2, Math.min(1, 30 / curves.length));
    pen.lineWidth = isMarked ? 2.5 : 1;
    trace(pen, curve, at);
  });
  return at;
}

function trace(pen: CanvasRenderingContext2D, { steps, values }: Curve, at: Placement): void {
  let isDown = false;
  pen.beginPath();
  steps.forEach((step, index) => {
    const value = values[index]!;
    if (!at.shown(value)) isDown = false;
    else if (isDown) pen.lineTo(at.x(step), at.y(value));
    else {
      pen.moveTo(at.x(step), at.y(value));
      isDown = true;
    }
  });
  pen.stroke();
}

/** The run whose curve is nearest to a point of the canvas; "" if none is near. */
function nameAt(x: number, y: number, at: Placement | null): string {
  let [best, name] = [NEAR * NEAR, ""];
  if (!at) return name;
  for (const { path, steps, values } of overlaid.peek()) {
    steps.forEach((step, index) => {
      const value = values[index]!;
      if (!at.shown(value)) return;
      const distance = (at.x(step) - x) ** 2 + (at.y(value) - y) ** 2;
      if (distance < best) [best, name] = [distance, path];
    });
  }
  return name;
}
