/** Small pictures of what modules put out: of images the first channels, side by side. */

import { useEffect, useRef } from "preact/hooks";
import { formatExact, formatNumber, formatShape } from "../data/formats";
import { readNumber } from "../data/points";
import type { FeatureMap } from "../data/records";
import { model, shown, view } from "../state/state";
import { jump } from "../state/places";

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
        <Picture key={map.name} map={map} />
      ))}
    </div>
  );
}

function Picture({ map }: { map: FeatureMap }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => paint(canvas.current!, map), [map]);
  const go = () => {
    const id = model.value?.find(map.path);
    if (id === undefined) return;
    view.value = "graph";
    jump(id);
  };
  const range = `${formatNumber(readNumber(map.low))} … ${formatNumber(readNumber(map.high))}`;
  return (
    <figure class="map" data-testid="map">
      <canvas ref={canvas} role="img" aria-label={`${map.name} of ${map.path}, ${range}`} />
      <figcaption>
        <button type="button" class="jump" onClick={go}>
          <bdi>{map.path || model.value?.name}</bdi>
        </button>{" "}
        {map.name}
        <div class="dim">
          {formatShape(map.spec.shape)} · {range} · step {formatExact(map.step)}
        </div>
      </figcaption>
    </figure>
  );
}

function paint(canvas: HTMLCanvasElement, { rows, columns, pixels }: FeatureMap): void {
  canvas.width = Math.max(1, columns);
  canvas.height = Math.max(1, rows);
  const shades = atob(pixels);
  const image = new ImageData(canvas.width, canvas.height);
  for (let at = 0; at < shades.length; at++) image.data.fill(shades.charCodeAt(at), 4 * at, 4 * at + 3);
  for (let at = 3; at < image.data.length; at += 4) image.data[at] = 255;
  canvas.getContext("2d")!.putImageData(image, 0, 0);
}
