/** The width of the text in boxes, each measured once. */

import { FONT } from "./sizes";

const FONTS = { title: `600 13px ${FONT}`, subtitle: `11.5px ${FONT}` };
export type Lettering = keyof typeof FONTS;

/** Nothing longer fits into a box. */
const MOST_LETTERS = 60;
const MOST_KNOWN = 20_000;

const pen = new OffscreenCanvas(1, 1).getContext("2d")!;
const widths = { title: new Map<string, number>(), subtitle: new Map<string, number>() };

export function widthOf(text: string, lettering: Lettering): number {
  const known = widths[lettering];
  const shown = text.slice(0, MOST_LETTERS);
  let width = known.get(shown);
  if (width === undefined) {
    pen.font = FONTS[lettering];
    width = pen.measureText(shown).width;
    if (known.size >= MOST_KNOWN) known.clear();
    known.set(shown, width);
  }
  return width;
}

/** A text cut to a width. */
export function fitted(text: string, room: number, lettering: Lettering): string {
  const width = widthOf(text, lettering);
  if (text.length <= MOST_LETTERS && width <= room) return text;
  return cut(text, (Math.min(text.length, MOST_LETTERS) * room) / width);
}

export function cut(text: string, letters: number): string {
  const most = Math.max(3, Math.floor(letters));
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
