/** The view of the graph: pan, zoom, and which part of it must be drawn. */

import { signal } from "@preact/signals";
import { DRAGGABLE } from "./sizes";
import type { DrawnBox, Scene } from "./scene";

export interface Region {
  readonly left: number;
  readonly top: number;
  readonly right: number;
  readonly bottom: number;
  /** The level of detail: only boxes, their titles, or everything. */
  readonly detail: "far" | "middle" | "near";
}

const NEAR = 0.5;
const MIDDLE = 0.22;
/** The margin that is drawn around the visible part, so that a small move redraws nothing. */
const SPARE = 0.25;
const MARGIN = 24;

/** A point of the scene is scaled by k and moved by x and y. */
export interface Transform {
  readonly x: number;
  readonly y: number;
  readonly k: number;
}

/** What is fitted to the view: the whole scene, its width, or the part of it that is not too small to read. */
export type Fit = "all" | "width" | "readable";

const [SMALLEST, LARGEST] = [0.02, 4];
/** A press that moves less than this is a click. */
export const CLICK_DISTANCE = 4;

export class Camera {
  /** The region to draw; it changes only when the view leaves it. */
  readonly region = signal<Region>({ left: 0, top: 0, right: 0, bottom: 0, detail: "near" });
  readonly transform = signal<Transform>({ x: 0, y: 0, k: 1 });
  private svg: SVGSVGElement | null = null;
  /** The scene that is fitted to the view, until the user moves it. */
  private fitted: [Scene, Fit] | null = null;
  private measured = { w: 0, h: 0 };
  private moved: SVGGElement | null = null;

  /** Attaches to the picture; `moved` is the part that pans and zooms. */
  attach(svg: SVGSVGElement, moved: SVGGElement): () => void {
    this.svg = svg;
    this.moved = moved;
    const watcher = new ResizeObserver(() => {
      this.measure();
      if (this.fitted) this.fit(...this.fitted);
      else this.refresh(true);
    });
    watcher.observe(svg);
    this.measure();
    const ending = new AbortController();
    svg.addEventListener("wheel", (event) => this.wheel(event), { passive: false, signal: ending.signal });
    this.followPointers(svg, ending.signal);
    return () => {
      watcher.disconnect();
      ending.abort();
    };
  }

  private wheel(event: WheelEvent): void {
    event.preventDefault();
    // Wheels scroll in pixels, lines or pages; a pinch on a touchpad is a wheel event with Ctrl.
    const unit = event.deltaMode === 1 ? 0.05 : event.deltaMode ? 1 : 0.002;
    this.zoomBy(2 ** (-event.deltaY * unit * (event.ctrlKey ? 10 : 1)), this.onSvg(event));
  }

  /** One finger or the mouse moves the picture, two fingers zoom it. */
  private followPointers(svg: SVGSVGElement, signal: AbortSignal): void {
    const down = new Map<number, readonly [number, number]>();
    let travelled = 0;
    const middle = () => {
      const all = [...down.values()];
      const [x, y] = [0, 1].map((at) => all.reduce((sum, one) => sum + one[at]!, 0) / all.length) as [number, number];
      return { x, y, apart: all.length > 1 ? Math.hypot(all[0]![0] - all[1]![0], all[0]![1] - all[1]![1]) : 0 };
    };
    const start = (event: PointerEvent) => {
      if (event.button || (event.target as Element).closest(DRAGGABLE)) return;
      if (!down.size) travelled = 0;
      down.set(event.pointerId, this.onSvg(event));
    };
    const move = (event: PointerEvent) => {
      if (!down.has(event.pointerId)) return;
      const before = middle();
      down.set(event.pointerId, this.onSvg(event));
      const now = middle();
      travelled += Math.abs(now.x - before.x) + Math.abs(now.y - before.y) + Math.abs(now.apart - before.apart);
      if (travelled < CLICK_DISTANCE) return;
      this.moveBy(now.x - before.x, now.y - before.y);
      if (before.apart && now.apart) this.zoomBy(now.apart / before.apart, [now.x, now.y]);
    };
    const end = (event: PointerEvent) => {
      if (down.delete(event.pointerId) && travelled >= CLICK_DISTANCE) ignoreClick();
    };
    svg.addEventListener("pointerdown", start, { signal });
    addEventListener("pointermove", move, { signal });
    addEventListener("pointerup", end, { signal });
    addEventListener("pointercancel", end, { signal });
  }

  private onSvg({ clientX, clientY }: { clientX: number; clientY: number }): [number, number] {
    const { left, top } = this.svg!.getBoundingClientRect();
    return [clientX - left, clientY - top];
  }

  /** The size of the picture. It is cached, because asking the browser forces a layout. */
  get size(): { readonly w: number; readonly h: number } {
    return this.measured;
  }

  private measure(): void {
    this.measured = { w: this.svg!.clientWidth, h: this.svg!.clientHeight };
  }

  /** Fits the whole scene or its width, or its top if it would be too small to read. */
  fit(scene: Scene, what: Fit): void {
    const { w, h } = this.size;
    if (!w || !scene.w) return;
    this.fitted = [scene, what];
    const width = (w - 2 * MARGIN) / scene.w;
    const all = Math.max(SMALLEST, Math.min(width, (h - 2 * MARGIN) / scene.h, 1.15));
    const scale = what === "all" ? all : Math.max(all, Math.min(0.72, width), what === "readable" ? 0.3 : 0);
    const x = (w - scene.w * scale) / 2;
    const y = scene.h * scale > h ? MARGIN : (h - scene.h * scale) / 2;
    this.set({ x, y, k: scale }, true);
  }

  /** Zooms around a point of the screen, by default the middle. */
  zoomBy(factor: number, [px, py] = [this.size.w / 2, this.size.h / 2]): void {
    this.fitted = null;
    const { x, y, k } = this.transform.peek();
    const next = Math.min(LARGEST, Math.max(SMALLEST, k * factor));
    this.set({ x: px - ((px - x) * next) / k, y: py - ((py - y) * next) / k, k: next });
  }

  /** Centers a point of the scene. */
  moveTo(x: number, y: number): void {
    this.fitted = null;
    const { k } = this.transform.peek();
    this.set({ x: this.size.w / 2 - x * k, y: this.size.h / 2 - y * k, k });
  }

  moveBy(dx: number, dy: number): void {
    this.fitted = null;
    const { x, y, k } = this.transform.peek();
    this.set({ x: x + dx, y: y + dy, k });
  }

  /** The position of a pointer in the scene. */
  placeOf(event: { clientX: number; clientY: number }): [number, number] {
    const [left, top] = this.onSvg(event);
    const { x, y, k } = this.transform.peek();
    return [(left - x) / k, (top - y) / k];
  }

  /** Moves only as far as needed to see a box. */
  show(box: DrawnBox): void {
    const { x, y, k } = this.transform.peek();
    const { w, h } = this.size;
    const by = (from: number, to: number, size: number) =>
      from < MARGIN ? MARGIN - from : to > size - MARGIN ? Math.max(size - MARGIN - to, MARGIN - from) : 0;
    const dx = by(box.x * k + x, (box.x + box.w) * k + x, w);
    const dy = by(box.y * k + y, (box.y + Math.min(box.h, 60)) * k + y, h);
    if (dx || dy) this.moveBy(dx, dy);
  }

  private set(next: Transform, draws = false): void {
    this.moved?.setAttribute("transform", `translate(${next.x},${next.y}) scale(${next.k})`);
    this.transform.value = next;
    this.refresh(draws);
  }

  private refresh(always: boolean): void {
    const { x, y, k } = this.transform.peek();
    const { w, h } = this.size;
    const seen = { left: -x / k, top: -y / k, right: (w - x) / k, bottom: (h - y) / k };
    const detail = k >= NEAR ? "near" : k >= MIDDLE ? "middle" : "far";
    const drawn = this.region.peek();
    const within =
      seen.left >= drawn.left && seen.top >= drawn.top && seen.right <= drawn.right && seen.bottom <= drawn.bottom;
    const tooMuch = drawn.right - drawn.left > 3 * (seen.right - seen.left);
    if (!always && within && !tooMuch && detail === drawn.detail) return;
    const [dx, dy] = [(seen.right - seen.left) * SPARE, (seen.bottom - seen.top) * SPARE];
    this.region.value = {
      left: seen.left - dx,
      top: seen.top - dy,
      right: seen.right + dx,
      bottom: seen.bottom + dy,
      detail,
    };
  }
}

export const camera = new Camera();

/** Ignores the click that ends a drag. */
export function ignoreClick(): void {
  const ignore = (event: Event) => {
    event.stopPropagation();
    event.preventDefault();
  };
  addEventListener("click", ignore, { capture: true, once: true });
  setTimeout(() => removeEventListener("click", ignore, true));
}

export function isIn(region: Region, box: { x: number; y: number; w: number; h: number }): boolean {
  return box.x < region.right && box.x + box.w > region.left && box.y < region.bottom && box.y + box.h > region.top;
}
