/** How the graph is looked at: pan, zoom, and which part of it must be drawn. */

import { signal } from "@preact/signals";
import { select } from "d3-selection";
import { zoom, zoomIdentity, type ZoomBehavior, type ZoomTransform } from "d3-zoom";
import { DRAGGABLE } from "./sizes";
import type { DrawnBox, Scene } from "./scene";

export interface Region {
  readonly left: number;
  readonly top: number;
  readonly right: number;
  readonly bottom: number;
  /** How much of a box can be made out: only boxes, their titles, or all of it. */
  readonly detail: "far" | "middle" | "near";
}

const NEAR = 0.5;
const MIDDLE = 0.22;
/** How far around what is seen is drawn as well, so that a small move draws nothing anew. */
const SPARE = 0.5;
const MARGIN = 24;

export class Camera {
  /** What must be drawn; changes only when the view leaves it. */
  readonly region = signal<Region>({ left: 0, top: 0, right: 0, bottom: 0, detail: "near" });
  readonly transform = signal<ZoomTransform>(zoomIdentity);
  private svg: SVGSVGElement | null = null;
  /** What all of is seen, for as long as nobody moves the picture. */
  private fitted: [Scene, boolean] | null = null;
  private measured = { w: 0, h: 0 };
  private readonly behaviour: ZoomBehavior<SVGSVGElement, unknown>;

  constructor() {
    this.behaviour = zoom<SVGSVGElement, unknown>()
      .scaleExtent([0.02, 4])
      .clickDistance(4)
      .filter((event: MouseEvent) => {
        const onBox = (event.target as Element).closest(DRAGGABLE);
        return event.type === "wheel" || (!onBox && !event.button);
      });
  }

  /** Takes hold of the picture; `moved` is the part of it that is moved. */
  attach(svg: SVGSVGElement, moved: SVGGElement): () => void {
    this.svg = svg;
    this.behaviour.on("zoom", (event: { transform: ZoomTransform; sourceEvent?: unknown }) => {
      moved.setAttribute("transform", event.transform.toString());
      this.transform.value = event.transform;
      if (event.sourceEvent) this.fitted = null;
      this.refresh(false);
    });
    const selection = select(svg).call(this.behaviour).on("dblclick.zoom", null);
    const watcher = new ResizeObserver(() => {
      this.measure();
      if (this.fitted) this.fit(...this.fitted);
      else this.refresh(true);
    });
    watcher.observe(svg);
    this.measure();
    return () => {
      watcher.disconnect();
      selection.on(".zoom", null);
    };
  }

  /** Of the picture on the screen. Asking the browser would have it lay out all that has changed since. */
  get size(): { readonly w: number; readonly h: number } {
    return this.measured;
  }

  private measure(): void {
    this.measured = { w: this.svg!.clientWidth, h: this.svg!.clientHeight };
  }

  /** The whole scene, or its top where it would be too small to read. */
  fit(scene: Scene, readable: boolean): void {
    const { w, h } = this.size;
    if (!w || !scene.w) return;
    this.fitted = [scene, readable];
    const all = Math.min((w - 2 * MARGIN) / scene.w, (h - 2 * MARGIN) / scene.h, 1.15);
    const scale = readable ? Math.max(all, Math.min(0.72, (w - 2 * MARGIN) / scene.w), 0.3) : Math.max(all, 0.02);
    const x = (w - scene.w * scale) / 2;
    const y = scene.h * scale > h ? MARGIN : (h - scene.h * scale) / 2;
    this.set(zoomIdentity.translate(x, y).scale(scale));
  }

  zoomBy(factor: number): void {
    this.fitted = null;
    if (this.svg) select(this.svg).call(this.behaviour.scaleBy, factor);
  }

  moveTo(x: number, y: number): void {
    this.fitted = null;
    if (this.svg) select(this.svg).call(this.behaviour.translateTo, x, y);
  }

  moveBy(x: number, y: number): void {
    this.fitted = null;
    const { k } = this.transform.peek();
    if (this.svg) select(this.svg).call(this.behaviour.translateBy, x / k, y / k);
  }

  /** Where in the scene a pointer is. */
  placeOf(event: MouseEvent | TouchEvent): [number, number] {
    const { clientX, clientY } = pointerOf(event);
    const { left, top } = this.svg!.getBoundingClientRect();
    return this.transform.peek().invert([clientX - left, clientY - top]);
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

  private set(transform: ZoomTransform): void {
    if (this.svg) select(this.svg).call(this.behaviour.transform, transform);
    this.refresh(true);
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
    const [dx, dy] = [((seen.right - seen.left) * SPARE) / 1, (seen.bottom - seen.top) * SPARE];
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

/** The mouse, or the finger that an event is about. */
export function pointerOf(event: MouseEvent | TouchEvent): { clientX: number; clientY: number } {
  return "changedTouches" in event ? event.changedTouches[0]! : event;
}

export function isIn(region: Region, box: { x: number; y: number; w: number; h: number }): boolean {
  return box.x < region.right && box.x + box.w > region.left && box.y < region.bottom && box.y + box.h > region.top;
}
