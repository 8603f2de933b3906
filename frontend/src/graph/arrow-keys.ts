/** The box that an arrow key selects. */

import type { DrawnBox, Scene } from "./scene";
import { TITLE } from "./sizes";

/** The closest box in a direction; the first one if none is selected. */
export function nearest(scene: Scene, here: DrawnBox | undefined, x: number, y: number): DrawnBox | undefined {
  if (!here) return scene.boxes[0];
  // From the title of an open box, the next box is inside it.
  const from = here.open ? { ...here, h: TITLE } : here;
  let [best, least] = [undefined as DrawnBox | undefined, Infinity];
  for (const box of scene.boxes) {
    if (box === here || isAround(scene, box, here)) continue;
    const ahead = x ? gap(from.x, from.w, box.x, box.w, x) : gap(from.y, from.h, box.y, box.h, y);
    const aside = x ? middle(box.y, box.h) - middle(from.y, from.h) : middle(box.x, box.w) - middle(from.x, from.w);
    if (ahead < 0) continue;
    const far = ahead + 2 * Math.abs(aside) + 40 * Math.abs(box.depth - from.depth);
    if (far < least) [best, least] = [box, far];
  }
  return best;
}

function middle(start: number, size: number): number {
  return start + size / 2;
}

/** How far a box is ahead; negative if it is not ahead. */
function gap(from: number, fromSize: number, to: number, toSize: number, direction: number): number {
  return direction > 0 ? to - (from + fromSize / 2) : from + fromSize / 2 - (to + toSize);
}

function isAround(scene: Scene, box: DrawnBox, inner: DrawnBox): boolean {
  for (let at = inner.parent; at !== undefined; at = scene.boxes[at]!.parent) if (scene.boxes[at] === box) return true;
  return false;
}
