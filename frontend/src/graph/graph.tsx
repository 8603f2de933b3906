/** The graph view: what is drawn, and what mouse, finger and keyboard do to it. */

import { useEffect, useRef } from "preact/hooks";
import type { Model } from "../data/model";
import { togglePin } from "../panels/state";
import { found, lookFor, model, query, selected } from "../state/state";
import { Box } from "./box";
import { paint } from "./colours";
import { camera, isIn, type Region } from "./camera";
import { dragToColumns } from "./dragging";
import { nearest } from "./walking";
import { Minimap } from "./minimap";
import { type DrawnBox, type DrawnLink, pathOf, type Scene } from "./scene";
import {
  enter,
  entered,
  hovered,
  inside,
  leave,
  level,
  places,
  scene,
  sceneOf,
  selectedKey,
  selectItem,
  showModule,
  thick,
  toggleItem,
} from "./state";
import { Legend, Toolbar, Zoom } from "./toolbar";
import { Tooltip } from "./tooltip";
import { moduleOf } from "./words";

export function Graph() {
  const known = model.value;
  return (
    <section class="graph-pane" aria-label="Graph">
      <Toolbar />
      {known ? <Picture known={known} /> : <div class="picture" />}
    </section>
  );
}

function Picture({ known }: { known: Model }) {
  const svg = useRef<SVGSVGElement>(null);
  const moved = useRef<SVGGElement>(null);
  useEffect(() => {
    const detach = camera.attach(svg.current!, moved.current!);
    const endDrags = dragToColumns(svg.current!, (element) => boxOf(element)?.item);
    return () => {
      detach();
      endDrags();
    };
  }, []);
  useKeepPlace();
  useFollowTree(known);
  useFocus(svg);
  const drawn = scene.value;
  const region = camera.region.value;
  return (
    <div class="picture">
      <svg
        ref={svg}
        role="group"
        aria-label={`Graph of ${known.name}`}
        data-testid="graph"
        data-boxes={drawn.boxes.length}
        tabindex={selectedKey.value ? -1 : 0}
        onClick={click}
        onDblClick={doubleClick}
        onKeyDown={press}
        onPointerOver={hover}
        onPointerLeave={() => (hovered.value = null)}
      >
        <defs>
          <marker
            id="arrow"
            viewBox="0 0 8 8"
            refX="7"
            refY="4"
            markerWidth="7"
            markerHeight="7"
            orient="auto"
            markerUnits="userSpaceOnUse"
          >
            <path d="M0,0.5 L7.5,4 L0,7.5 Z" />
          </marker>
        </defs>
        <g ref={moved}>
          <Drawing drawn={drawn} region={region} known={known} />
        </g>
      </svg>
      {!drawn.boxes.length && level.value?.items.length === 0 && <p class="empty">Nothing is inside.</p>}
      <Tooltip />
      <Minimap />
      <Zoom />
      <Legend />
    </div>
  );
}

/** What is too small to be seen is not drawn. */
const SMALLEST = 1.5;

function Drawing({ drawn, region, known }: { drawn: Scene; region: Region; known: Model }) {
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
  const draw = ([box, at]: [DrawnBox, number]) => (
    <Box key={box.item.key} box={box} at={at} known={known} detail={region.detail} />
  );
  return (
    <>
      {ofOpen.map(draw)}
      <g class={`links ${region.detail}`}>
        {links.map(([one, at]) => (
          <Line key={`${one.from} ${one.to}`} one={one} at={at} near={region.detail === "near"} />
        ))}
      </g>
      {ofClosed.map(draw)}
    </>
  );
}

/** From afar only shapes and colours are made out: one element for each box, one for all links. */
function FarDrawing({
  boxes,
  links,
  known,
}: {
  boxes: [DrawnBox, number][];
  links: [DrawnLink, number][];
  known: Model;
}) {
  const [selection, matches] = [selectedKey.value, found.value?.matches];
  const isMatch = ({ item }: DrawnBox) => item.kind === "call" && matches?.has(moduleOf(known, item.node)?.id ?? -1);
  const draw = ([box, at]: [DrawnBox, number]) => (
    <rect
      key={box.item.key}
      class={`box far ${box.open ? "open" : ""} ${box.item.key === selection ? "selected" : ""} ${isMatch(box) ? "match" : ""}`}
      data-at={at}
      x={box.x}
      y={box.y}
      width={box.w}
      height={box.h}
      style={tintOf(box, known)}
    />
  );
  const open = boxes.filter(([box]) => box.open);
  const closed = boxes.filter(([box]) => !box.open);
  return (
    <>
      {open.map(draw)}
      <path class="link" d={links.map(([one]) => straight(one.route)).join("")} />
      {closed.map(draw)}
    </>
  );
}

/** Most boxes seen from afar are ops, which have the colour that the style sheet gives. */
function tintOf(box: DrawnBox, known: Model): { fill: string } | undefined {
  if (box.open) return undefined;
  const { fill } = paint(known, box.item);
  return fill === "var(--panel)" ? undefined : { fill };
}

function straight(route: readonly number[]): string {
  return `M${route[0]},${route[1]}L${route.slice(2).join(",")}`;
}

function Line({ one, at, near }: { one: DrawnLink; at: number; near: boolean }) {
  const path = pathOf(one.route);
  const bytes = one.link.specs.reduce((sum, spec) => sum + (spec.bytes ?? 0), 0);
  const width = thick.value && bytes ? 0.8 + Math.log2(1 + bytes / 1024) * 0.7 : undefined;
  return (
    <>
      <path class="link" d={path} style={{ strokeWidth: width }} marker-end={near ? "url(#arrow)" : undefined} />
      {near && <path class="grip" d={path} data-link={at} />}
    </>
  );
}

/** Stays where one looked when boxes open; shows all of it when another call is entered. */
function useKeepPlace(): void {
  const before = useRef<{ of: string | null; scene: Scene }>({ of: null, scene: scene.peek() });
  useEffect(() => {
    const last = before.current;
    before.current = { of: sceneOf.value, scene: scene.value };
    if (!scene.value.boxes.length) return;
    const selectedBox = scene.value.boxes[places.value.get(selectedKey.peek()) ?? -1];
    if (last.of !== sceneOf.value || !last.scene.boxes.length) {
      camera.fit(scene.value, true);
      if (selectedBox) camera.show(selectedBox);
      return;
    }
    const held = anchor(last.scene, scene.value);
    const { k } = camera.transform.peek();
    if (held) camera.moveBy((held[0].x - held[1].x) * k, (held[0].y - held[1].y) * k);
    else camera.fit(scene.value, true);
  }, [scene.value]);
}

/** The box that the view holds on to: the one that was touched last, else the first one in both. */
function anchor(last: Scene, next: Scene): [DrawnBox, DrawnBox] | undefined {
  const now = new Map(next.boxes.map((box) => [box.item.key, box]));
  const touched = touchedKey && last.boxes.find((box) => box.item.key === touchedKey);
  const held = touched && now.has(touchedKey) ? touched : last.boxes.find((box) => now.has(box.item.key));
  return held && [held, now.get(held.item.key)!];
}

let touchedKey = "";

/** What is selected in the tree is shown here. */
function useFollowTree(known: Model): void {
  const isFirst = useRef(true);
  useEffect(() => {
    const wasFirst = isFirst.current;
    isFirst.current = false;
    // An address that says where to look is not led elsewhere by what is selected.
    if (wasFirst && entered.peek()) return;
    const box = scene.peek().boxes[places.peek().get(selectedKey.peek()) ?? -1];
    const module = box ? moduleOf(known, box.item.node) : inside.peek() && moduleOf(known, inside.peek()!);
    if (module?.id !== selected.value) showModule(selected.value);
  }, [selected.value]);
  useEffect(() => {
    const box = scene.value.boxes[places.value.get(selectedKey.value) ?? -1];
    if (box) camera.show(box);
  }, [selectedKey.value, scene.value]);
}

/** The focus goes along with the selection while it is in the graph. */
function useFocus(svg: { current: SVGSVGElement | null }): void {
  const wasInside = useRef(false);
  useEffect(() => {
    const active = document.activeElement;
    const isInside = !!svg.current?.contains(active);
    // A box that is drawn anew loses the focus to the page itself, and takes it back.
    if (isInside || (wasInside.current && active === document.body)) {
      const box = svg.current!.querySelector<SVGGElement>(".box.selected");
      (box ?? svg.current!).focus({ preventScroll: true });
    }
    wasInside.current = !!svg.current?.contains(document.activeElement);
  });
}

function boxOf(element: Element): DrawnBox | undefined {
  const at = element.closest<SVGElement>("[data-at]")?.dataset["at"];
  return at === undefined ? undefined : scene.value.boxes[Number(at)];
}

function click(event: MouseEvent): void {
  const element = event.target as Element;
  const box = boxOf(element);
  if (!box) return;
  touchedKey = box.item.key;
  hovered.value = null;
  if (element.closest("[data-twist]") || (box.item.members.length && !box.open)) {
    selectItem(box.item);
    toggleItem(box.item.key);
  } else if (box.open === false) enter(box.item.key);
  else selectItem(box.item);
}

function doubleClick(event: MouseEvent): void {
  const box = boxOf(event.target as Element);
  if (box?.open) toggleItem(box.item.key);
}

function press(event: KeyboardEvent): void {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const at = places.value.get(selectedKey.value);
  const here = at === undefined ? undefined : scene.value.boxes[at];
  const walk = (x: number, y: number) => {
    const next = nearest(scene.value, here, x, y);
    if (next) selectItem(next.item);
  };
  const keys: Record<string, () => void> = {
    ArrowDown: () => walk(0, 1),
    ArrowUp: () => walk(0, -1),
    ArrowLeft: () => walk(-1, 0),
    ArrowRight: () => walk(1, 0),
    Enter: () => here && goOn(here),
    " ": () => here?.open !== undefined && openHere(here),
    p: () => here && togglePin(here.item.key),
    "+": () => camera.zoomBy(1.3),
    "-": () => camera.zoomBy(1 / 1.3),
    "0": () => camera.fit(scene.value, false),
    Escape: () => (query.value ? lookFor("") : leave()),
  };
  const act = keys[event.key];
  if (!act) return;
  event.preventDefault();
  hovered.value = null;
  act();
}

function openHere(box: DrawnBox): void {
  touchedKey = box.item.key;
  toggleItem(box.item.key);
}

/** Goes into what has an inside, and puts anything else into a column. */
function goOn(box: DrawnBox): void {
  if (box.item.members.length || box.open) openHere(box);
  else if (box.open === false) enter(box.item.key);
  else togglePin(box.item.key);
}

function hover(event: PointerEvent): void {
  if (event.buttons || event.pointerType === "touch") return;
  const element = event.target as Element;
  const around = (event.currentTarget as Element).getBoundingClientRect();
  const [x, y] = [event.clientX - around.left, event.clientY - around.top];
  const box = boxOf(element);
  const line = element.closest<SVGElement>("[data-link]")?.dataset["link"];
  if (box && !box.open) hovered.value = { key: box.item.key, x, y };
  else if (line) hovered.value = { key: `link ${line}`, x, y };
  else hovered.value = null;
}
