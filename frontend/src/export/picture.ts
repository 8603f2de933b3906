/** The whole graph as plain SVG that any program can read. */

import { resolve } from "../frame/theme";
import type { Model } from "../data/model";
import { cut } from "../graph/text-width";
import { paint } from "../graph/colors";
import { type DrawnBox, pathOf, type Scene } from "../graph/scene";
import { FONT } from "../graph/sizes";
import { wordsFor } from "../graph/words";
import { pins } from "../panels/state";

const MARGIN = 16;

export function drawPicture(scene: Scene, known: Model): string {
  const [w, h] = [Math.ceil(scene.w + 2 * MARGIN), Math.ceil(scene.h + 2 * MARGIN)];
  const open = scene.boxes.filter((box) => box.open).map((box) => drawBox(box, known));
  const closed = scene.boxes.filter((box) => !box.open).map((box) => drawBox(box, known));
  const lines = scene.links.map(
    (line) => `<path d="${pathOf(line.route)}" fill="none" stroke="${hex("link")}" marker-end="url(#a)"/>`,
  );
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${w}" height="${h}" viewBox="${-MARGIN} ${-MARGIN} ${w} ${h}" font-family="${FONT}">`,
    `<title>${escape(known.name)}</title>`,
    `<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto" markerUnits="userSpaceOnUse"><path d="M0,0.5 L7.5,4 L0,7.5 Z" fill="${hex("link")}"/></marker></defs>`,
    `<rect x="${-MARGIN}" y="${-MARGIN}" width="${w}" height="${h}" fill="${hex("panel")}"/>`,
    ...open,
    ...lines,
    ...closed,
    "</svg>",
  ].join("\n");
}

function drawBox({ item, x, y, w, h, open }: DrawnBox, known: Model): string {
  const { title, subtitle } = wordsFor(known, item);
  const fill = open ? hex("ground") : hex(paint(known, item).fill);
  const stroke = hex(pins.value.get(item.key) ?? "edge");
  const indent = 12;
  const label = open
    ? text(x + indent, y + 20, `${title}  ${subtitle}`, 12.5, 600, w)
    : text(x + indent, y + 19, title, 13, 600, w) + text(x + indent, y + 35, subtitle, 11, 400, w);
  return `<rect x="${x}" y="${y}" width="${w}" height="${h}" rx="6" fill="${fill}" stroke="${stroke}"/>${label}`;
}

function text(x: number, y: number, words: string, size: number, weight: number, w: number): string {
  const shown = cut(words, (w - 20) / (size * 0.55));
  return `<text x="${x}" y="${y}" font-size="${size}" font-weight="${weight}" fill="${hex(weight > 500 ? "text" : "dim")}">${escape(shown)}</text>`;
}

/** Old programs support neither variables nor new color spaces: a canvas converts them. */
function hex(color: string): string {
  const context = new OffscreenCanvas(1, 1).getContext("2d")!;
  context.fillStyle = resolve(color);
  context.fillRect(0, 0, 1, 1);
  const [red = 0, green = 0, blue = 0] = context.getImageData(0, 0, 1, 1).data;
  return `#${[red, green, blue].map((channel) => channel.toString(16).padStart(2, "0")).join("")}`;
}

/** XML does not allow most control characters, escaped or not. */
function escape(words: string): string {
  const signs: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
  return words
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "�")
    .toWellFormed()
    .replace(/[&<>"]/g, (sign) => signs[sign]!);
}

const MOST_PIXELS = 60e6;

/** The same as pixels, at twice the resolution of the screen. */
export async function toPixels(svg: string, w: number, h: number): Promise<Blob> {
  const address = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const scale = Math.min(2, Math.sqrt(MOST_PIXELS / (w * h)));
    const canvas = document.createElement("canvas");
    canvas.width = Math.ceil(w * scale);
    canvas.height = Math.ceil(h * scale);
    canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
    const blob = await new Promise<Blob | null>((done) => canvas.toBlob(done, "image/png"));
    if (!blob) throw new Error("the image is too large");
    return blob;
  } finally {
    URL.revokeObjectURL(address);
  }
}
