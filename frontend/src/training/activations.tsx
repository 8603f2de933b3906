/** Small pictures of module outputs; for images the first channels, side by side. */

import { useEffect, useRef } from "preact/hooks";
import { formatExact, formatNumber, formatShape } from "../data/formats";
import { titleOf } from "../data/names";
import { readNumber } from "../data/points";
import type { FeatureMap, TensorSpec } from "../data/records";
import { model, shown } from "../state/state";
import { jumpToGraph } from "../state/places";

const MOST_SHOWN = 200;

export function Activations() {
  return (
    <section class="training" aria-label="Activations">
      <div class="maps">
        {shown.value!.maps.value.slice(0, MOST_SHOWN).map((map) => (
          <Picture key={`${map.path} ${map.name}`} map={map} />
        ))}
      </div>
    </section>
  );
}

/** The pictures of one module. */
export function Maps({ path }: { path: string }) {
  const maps = shown.value?.maps.value.filter((map) => map.path === path) ?? [];
  if (!maps.length) return null;
  return (
    <div class="maps">
      {maps.map((map) => (
        <Picture key={map.name} map={map} isHere />
      ))}
    </div>
  );
}

/** `isHere` if it is beside its module, so that the path is not needed. */
function Picture({ map, isHere = false }: { map: FeatureMap; isHere?: boolean }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => paint(canvas.current!, map), [map]);
  const title = titleOf(map.name);
  const range = `${formatNumber(readNumber(map.low))} … ${formatNumber(readNumber(map.high))}`;
  const facts = [formatShape(map.spec.shape), channelsOf(map), range, map.step >= 0 && `step ${formatExact(map.step)}`];
  return (
    <figure class="map" data-testid="map">
      <canvas ref={canvas} role="img" aria-label={`${title} of ${map.path || model.value?.name}, ${range}`} />
      <figcaption>
        {!isHere && (
          <button type="button" class="jump" onClick={() => jumpToGraph(map.path)}>
            <bdi>{map.path || model.value?.name}</bdi>
          </button>
        )}{" "}
        {title}
        <div class="dim">{facts.filter(Boolean).join(" · ")}</div>
      </figcaption>
    </figure>
  );
}

/** How many of the channels of an image are pictured. */
function channelsOf({ name, tiles = 1, spec }: FeatureMap): string {
  if (tiles < 2) return "";
  const channels = channelCount(spec);
  const first = channels > tiles ** 2 ? `first ${tiles ** 2} of ` : "";
  return `${first}${formatExact(channels)} ${name.startsWith("attention") ? "heads" : "channels"}`;
}

function channelCount(spec: TensorSpec): number {
  return spec.shape?.slice(1, -2).reduce((product, size) => product * size, 1) ?? 1;
}

function paint(canvas: HTMLCanvasElement, map: FeatureMap): void {
  canvas.width = Math.max(1, map.columns);
  canvas.height = Math.max(1, map.rows);
  const shades = atob(map.pixels);
  const image = new ImageData(canvas.width, canvas.height);
  for (let at = 0; at < shades.length; at++) {
    image.data.fill(shades.charCodeAt(at), 4 * at, 4 * at + 3);
    image.data[4 * at + 3] = 255;
  }
  const context = canvas.getContext("2d")!;
  context.putImageData(image, 0, 0);
  clearUnused(context, map);
}

/** Tiles without a channel stay empty: a black one would look like a dead channel. */
function clearUnused(context: CanvasRenderingContext2D, { tiles = 1, rows, columns, spec }: FeatureMap): void {
  const used = Math.min(channelCount(spec), tiles ** 2);
  const inLastRow = used % tiles;
  if (tiles < 2 || !inLastRow) return;
  const height = rows / Math.ceil(used / tiles);
  const left = (inLastRow * columns) / tiles;
  context.clearRect(left, rows - height, columns - left, height);
}
