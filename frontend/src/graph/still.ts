/** Stands in for d3-transition and d3-interpolate, which d3-zoom needs for animations alone. */

import { selection } from "d3-selection";

export function interrupt(): void {}

export function interpolateZoom(): never {
  throw new Error("nothing is animated here");
}

Object.assign(selection.prototype, {
  interrupt(this: object) {
    return this;
  },
});
