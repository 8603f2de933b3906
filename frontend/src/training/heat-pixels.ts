/** The pixels of a map of layers × steps. */

import { type HeatScale, type LayerHeat, shareOn } from "../data/layer-heat";

/** Perceptually uniform from dark to light, safe for color-blind readers, and without red. */
const RAMP = [
  [68, 1, 84],
  [59, 82, 139],
  [33, 145, 140],
  [94, 201, 98],
  [253, 231, 37],
] as const;

export function rampColor(share: number): readonly [number, number, number] {
  const place = share * (RAMP.length - 1);
  const at = Math.min(RAMP.length - 2, Math.floor(place));
  const mix = (channel: 0 | 1 | 2) =>
    Math.round(RAMP[at]![channel] + (place - at) * (RAMP[at + 1]![channel] - RAMP[at]![channel]));
  return [mix(0), mix(1), mix(2)];
}

/** The same as a gradient of CSS. */
export const RAMP_CSS = `linear-gradient(to right, ${RAMP.map((color) => `rgb(${color.join()})`).join()})`;

const NONFINITE = pixel([206, 32, 41]);
const HATCH = pixel([255, 226, 222]);
const ZERO = pixel([140, 147, 158]);
const SHADES = Uint32Array.from({ length: 256 }, (_, shade) => pixel(rampColor(shade / 255)));

function pixel([red, green, blue]: readonly [number, number, number]): number {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** How far apart the stripes of NaN cells are, and how wide, in pixels of the page. */
const [PERIOD, STRIPE] = [6, 2];

/**
 * An image of `width` × `height` pixels, `unit` of them to one of the page. Where several cells share a pixel,
 * one with NaN or Inf is seen, else the largest. Nothing is drawn where nothing was recorded.
 */
export function pixelsOf(
  heat: LayerHeat,
  scale: HeatScale,
  [from, to]: readonly [number, number],
  width: number,
  height: number,
  unit: number,
): ImageData {
  const image = new ImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const rows = heat.paths.length;
  const edges = columnEdges(heat, width, from, to);
  const rowEdges = Array.from({ length: rows + 1 }, (_, row) => Math.round((row * height) / rows));
  const [period, stripe] = [PERIOD * unit, STRIPE * unit];
  // Columns narrower than a pixel share it.
  const worst = new Float64Array(rows);
  heat.columns.forEach((column, at) => {
    const [left, right] = edges[at]!;
    if (right <= left) return;
    const isShared = at > 0 && edges[at - 1]![0] === left;
    for (let row = 0; row < rows; row++) {
      const value = isShared ? larger(worst[row]!, column[row]!) : column[row]!;
      worst[row] = value;
      if (Number.isNaN(value)) continue;
      const ink = value === Infinity ? NONFINITE : value === 0 && scale.hasZero ? ZERO : SHADES[(255 * shareOn(scale, value)) | 0]!;
      for (let y = rowEdges[row]!; y < rowEdges[row + 1]!; y++) {
        pixels.fill(ink, y * width + left, y * width + right);
        if (value !== Infinity) continue;
        for (let x = left; x < right; x++) if ((x + y) % period < stripe) pixels[y * width + x] = HATCH;
      }
    }
  });
  return image;
}

function larger(one: number, other: number): number {
  return Number.isNaN(one) ? other : other > one ? other : one;
}

/** The pixel range of each column: up to the next one, at least one pixel. */
function columnEdges(heat: LayerHeat, width: number, from: number, to: number): readonly (readonly [number, number])[] {
  const place = (step: number) => Math.round(((step - from) / (to - from)) * width);
  return heat.starts.map((start, at) => {
    const left = Math.min(width - 1, Math.max(0, place(start)));
    const next = heat.starts[at + 1] ?? heat.ends.at(-1)! + 1;
    return [left, Math.max(left + 1, Math.min(width, place(next)))] as const;
  });
}
