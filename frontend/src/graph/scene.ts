/** All boxes and links of the opened levels, in one coordinate system. */

import type { Box, Boxes, Placed } from "./layout";
import type { Item, Level, Levels, Link } from "./levels";
import { PADDING, TITLE } from "./sizes";

export interface DrawnBox {
  readonly item: Item;
  readonly x: number;
  readonly y: number;
  readonly w: number;
  readonly h: number;
  readonly depth: number;
  /** Undefined if it cannot be opened. */
  readonly open: boolean | undefined;
  /** The box around it. */
  readonly parent: number | undefined;
}

export interface DrawnLink {
  readonly link: Link;
  /** The indices of the boxes at its ends. */
  readonly from: number;
  readonly to: number;
  /** Corners, x and y in turn. */
  readonly route: readonly number[];
  readonly top: number;
  readonly bottom: number;
  readonly left: number;
  readonly right: number;
}

export interface Scene {
  readonly boxes: readonly DrawnBox[];
  readonly links: readonly DrawnLink[];
  readonly w: number;
  readonly h: number;
}

export const EMPTY: Scene = { boxes: [], links: [], w: 0, h: 0 };

/** The sizes that the layout needs to know. */
export function boxesOf(
  level: Level,
  levels: Levels,
  open: ReadonlySet<string>,
  sizeOf: (item: Item) => { w: number; h: number },
): Boxes {
  return {
    boxes: level.items.map((item): Box => {
      const size = sizeOf(item);
      if (!isOpen(item, levels, open)) return size;
      return { ...size, inside: boxesOf(levels.inside(item), levels, open, sizeOf) };
    }),
    links: level.links.map((link) => [link.from, link.to] as const),
  };
}

function isOpen(item: Item, levels: Levels, open: ReadonlySet<string>): boolean {
  return open.has(item.key) && levels.canOpen(item);
}

/** The boxes and links of a placed level, outer ones first. */
export function drawScene(level: Level, placed: Placed, levels: Levels): Scene {
  const boxes: DrawnBox[] = [];
  const links: DrawnLink[] = [];
  const draw = (
    level: Level,
    placed: Placed,
    x: number,
    y: number,
    depth: number,
    parent: number | undefined,
  ): void => {
    const first = boxes.length;
    const places = level.items.map((_, at) => first + at);
    level.items.forEach((item, at) => {
      const box = placed.boxes[at]!;
      const open = levels.canOpen(item) ? placed.inside[at] != null : undefined;
      boxes.push({ item, x: x + box.x, y: y + box.y, w: box.w, h: box.h, depth, open, parent });
    });
    level.links.forEach((link, at) => {
      links.push(drawnLink(link, places[link.from]!, places[link.to]!, placed.routes[at] ?? [], x, y));
    });
    level.items.forEach((item, at) => {
      const inside = placed.inside[at];
      if (!inside) return;
      const box = boxes[places[at]!]!;
      const indent = (box.w - inside.w) / 2;
      draw(levels.inside(item), inside, box.x + Math.max(PADDING, indent), box.y + TITLE, depth + 1, places[at]!);
    });
  };
  draw(level, placed, 0, 0, 0, undefined);
  return { boxes, links, w: placed.w, h: placed.h };
}

function drawnLink(link: Link, from: number, to: number, route: readonly number[], x: number, y: number): DrawnLink {
  const moved = route.map((value, at) => value + (at % 2 ? y : x));
  const xs = moved.filter((_, at) => at % 2 === 0);
  const ys = moved.filter((_, at) => at % 2 === 1);
  return {
    link,
    from,
    to,
    route: moved,
    left: Math.min(...xs),
    right: Math.max(...xs),
    top: Math.min(...ys),
    bottom: Math.max(...ys),
  };
}

/** The innermost box around a point. */
export function boxAround({ boxes }: Scene, x: number, y: number): DrawnBox | undefined {
  return boxes.findLast((box) => box.x <= x && x < box.x + box.w && box.y <= y && y < box.y + box.h);
}

/** A route as a smooth path with rounded corners. */
export function pathOf(route: readonly number[]): string {
  const corners = route.length / 2;
  if (corners < 2) return "";
  let path = `M${route[0]},${route[1]}`;
  for (let at = 1; at < corners - 1; at++) {
    const [x, y] = [route[2 * at]!, route[2 * at + 1]!];
    const [nextX, nextY] = [route[2 * at + 2]!, route[2 * at + 3]!];
    const isLast = at === corners - 2;
    path += `Q${x},${y} ${isLast ? nextX : (x + nextX) / 2},${isLast ? nextY : (y + nextY) / 2}`;
  }
  if (corners === 2) path += `L${route[2]},${route[3]}`;
  return path;
}
