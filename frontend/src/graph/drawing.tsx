/** The boxes and lines of the graph: one element each when zoomed in, one per color when zoomed out. */

import { Fragment } from "preact";
import type { Model } from "../data/model";
import { found } from "../state/state";
import { markAt } from "../training/badge";
import { drawBox } from "./box";
import { push } from "./calls";
import { camera, isIn, type Region } from "./camera";
import { paint, pathsOf } from "./colors";
import { type DrawnBox, type DrawnLink, pathOf, type Scene } from "./scene";
import { selectedKey, thick } from "./state";
import { moduleOf, wordsFor } from "./words";

/** Smaller boxes are not drawn. */
const SMALLEST = 1.5;

export function Drawing({ drawn, region, known }: { drawn: Scene; region: Region; known: Model }) {
  const scale = camera.transform.peek().k;
  const boxes: [DrawnBox, number][] = [];
  drawn.boxes.forEach((box, at) => {
    if (isIn(region, box) && box.h * scale >= SMALLEST) boxes.push([box, at]);
  });
  const links: [DrawnLink, number][] = [];
  drawn.links.forEach((one, at) => {
    const box = { x: one.left, y: one.top, w: one.right - one.left, h: one.bottom - one.top };
    if (isIn(region, box)) links.push([one, at]);
  });
  if (region.detail === "far") return <FarDrawing boxes={boxes} links={links} known={known} />;
  const ofOpen = boxes.filter(([box]) => box.open);
  const ofClosed = boxes.filter(([box]) => !box.open);
  const draw = ([box, at]: [DrawnBox, number]) => drawBox(box, at, known, region.detail);
  return (
    <>
      {ofOpen.map(draw)}
      {drawLinks(links, region.detail === "near")}
      {ofClosed.map(draw)}
    </>
  );
}

interface FarProps {
  readonly boxes: readonly [DrawnBox, number][];
  readonly links: readonly [DrawnLink, number][];
  readonly known: Model;
}

/** Zoomed out: one element for all boxes of a color, one for all links. */
function FarDrawing({ boxes, links, known }: FarProps) {
  const open = boxes.filter(([box]) => box.open).map(([box]) => outlineOf(box));
  const byFill = new Map<string, string[]>();
  for (const [box] of boxes) if (!box.open) push(byFill, paint(known, box.item).fill, outlineOf(box));
  return (
    <>
      <path class="far open" d={open.join("")} />
      <path class="link" d={links.map(([one]) => straight(one.route)).join("")} />
      {[...byFill].map(([fill, outlines]) => (
        <path key={fill} class="far closed" style={{ fill }} d={outlines.join("")} />
      ))}
      <FarProblems boxes={boxes} />
      <FarMarks boxes={boxes} known={known} />
    </>
  );
}

/** Dots with the same size on the screen at any zoom. */
function FarProblems({ boxes }: { boxes: FarProps["boxes"] }) {
  const radius = 4 / camera.transform.peek().k;
  return (
    <>
      {boxes.map(([{ item, x, y, w, open }]) => {
        const mark = markAt(pathsOf(item), !!open);
        return mark && <circle key={item.key} class={`box-badge ${mark.severity}`} cx={x + w} cy={y} r={radius} />;
      })}
    </>
  );
}

/** The selected box, which may have the focus, and search matches. */
function FarMarks({ boxes, known }: Omit<FarProps, "links">) {
  const [selection, matches] = [selectedKey.value, found.value?.matches];
  const isMatch = ({ item }: DrawnBox) => item.kind === "call" && matches?.has(moduleOf(known, item.node)?.id ?? -1);
  const marked = boxes.filter(([box]) => box.item.key === selection || isMatch(box));
  return (
    <>
      {marked.map(([box, at]) => {
        const isSelected = box.item.key === selection;
        return (
          <rect
            key={box.item.key}
            class={`box far ${box.open ? "open" : "closed"} ${isSelected ? "selected" : "match"}`}
            data-at={at}
            role="button"
            tabindex={isSelected ? 0 : -1}
            aria-label={wordsFor(known, box.item).title}
            x={box.x}
            y={box.y}
            width={box.w}
            height={box.h}
          />
        );
      })}
    </>
  );
}

function outlineOf({ x, y, w, h }: DrawnBox): string {
  return `M${x},${y}h${w}v${h}h${-w}z`;
}

function straight(route: readonly number[]): string {
  return `M${route[0]},${route[1]}L${route.slice(2).join(",")}`;
}

/** Without arrows and widths of their own, all links are one element. */
function drawLinks(links: FarProps["links"], near: boolean) {
  if (!near && !thick.value) return <path class="link" d={links.map(([one]) => pathOf(one.route)).join("")} />;
  return <g>{links.map(([one, at]) => drawLink(one, at, near))}</g>;
}

function drawLink(one: DrawnLink, at: number, near: boolean) {
  const path = pathOf(one.route);
  const bytes = one.link.specs.reduce((sum, spec) => sum + (spec.bytes ?? 0), 0);
  const width = thick.value && bytes ? 0.8 + Math.log2(1 + bytes / 1024) * 0.7 : undefined;
  return (
    <Fragment key={`${one.from} ${one.to}`}>
      <path class="link" d={path} style={{ strokeWidth: width }} marker-end={near ? "url(#arrow)" : undefined} />
      {near && <path class="grip" d={path} data-link={at} />}
    </Fragment>
  );
}
