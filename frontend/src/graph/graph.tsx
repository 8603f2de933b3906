/** The graph view: drawing, mouse, touch and keyboard. */

import { useSignalEffect } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import type { Model } from "../data/model";
import { togglePin } from "../panels/state";
import { lookFor, model, query, selected } from "../state/state";
import { camera } from "./camera";
import { dragToColumns } from "./drag-to-column";
import { Drawing } from "./drawing";
import { nearest } from "./arrow-keys";
import { Minimap } from "./minimap";
import { boxAround, type DrawnBox, type Scene } from "./scene";
import {
  enter,
  entered,
  graph,
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
  toggleItem,
  wantsFit,
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
    const endDrags = dragToColumns(svg.current!, (event) => boxOf(event)?.item);
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
        onPointerMove={region.detail === "far" ? hover : undefined}
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
      {!drawn.boxes.length && level.value?.items.length === 0 && <p class="empty">This module is empty.</p>}
      <Tooltip />
      <Minimap />
      <Zoom />
      <Legend />
    </div>
  );
}

/** Keeps the view when boxes open; fits it when another call is entered. */
function useKeepPlace(): void {
  const before = useRef<{ of: string | null; scene: Scene; fit: number }>({ of: null, scene: scene.peek(), fit: 0 });
  // Before the scene is drawn: otherwise it would be drawn twice, first for the old view.
  useSignalEffect(() => {
    const last = before.current;
    const next = { of: sceneOf.peek(), scene: scene.value, fit: wantsFit.peek() };
    before.current = next;
    if (!next.scene.boxes.length) return;
    const selectedBox = next.scene.boxes[places.peek().get(selectedKey.peek()) ?? -1];
    if (last.of !== next.of || last.fit !== next.fit || !last.scene.boxes.length) {
      // All levels of a large graph are an overview: it is not cut off at the sides to be read.
      camera.fit(next.scene, last.fit === next.fit ? "readable" : "width");
      if (selectedBox) camera.show(selectedBox);
      return;
    }
    const held = anchor(last.scene, next.scene);
    const { k } = camera.transform.peek();
    if (held) camera.moveBy((held[0].x - held[1].x) * k, (held[0].y - held[1].y) * k);
    else camera.fit(next.scene, "readable");
  });
}

/** The box that keeps its position: the last one that was clicked, else the first one in both scenes. */
function anchor(last: Scene, next: Scene): [DrawnBox, DrawnBox] | undefined {
  const now = new Map(next.boxes.map((box) => [box.item.key, box]));
  const touched = touchedKey && last.boxes.find((box) => box.item.key === touchedKey);
  const held = touched && now.has(touchedKey) ? touched : last.boxes.find((box) => now.has(box.item.key));
  return held && [held, now.get(held.item.key)!];
}

let touchedKey = "";

/** Shows the selection of the tree. */
function useFollowTree(known: Model): void {
  const isFirst = useRef(true);
  useEffect(() => {
    const wasFirst = isFirst.current;
    isFirst.current = false;
    // The selection does not override the position in the address.
    if (wasFirst && entered.peek()) return;
    const box = scene.peek().boxes[places.peek().get(selectedKey.peek()) ?? -1];
    // The selected box may not be laid out yet.
    const chosen = graph.peek()?.find(selectedKey.peek());
    const node = chosen === undefined ? (box?.item.node ?? inside.peek()) : graph.peek()!.node(chosen);
    if (!node || moduleOf(known, node)?.id !== selected.value) showModule(selected.value);
  }, [selected.value]);
  useSignalEffect(() => {
    const box = scene.value.boxes[places.value.get(selectedKey.value) ?? -1];
    if (box) camera.show(box);
  });
}

/** The focus follows the selection while it is in the graph. */
function useFocus(svg: { current: SVGSVGElement | null }): void {
  const wasInside = useRef(false);
  // Before anything else happens: the next key must not go to the page itself.
  useLayoutEffect(() => {
    const active = document.activeElement;
    const isInside = !!svg.current?.contains(active);
    // A redrawn box loses the focus to the page; give it back.
    if (isInside || (wasInside.current && active === document.body)) {
      const box = svg.current!.querySelector<SVGGElement>(".box.selected");
      (box ?? svg.current!).focus({ preventScroll: true });
    }
    wasInside.current = !!svg.current?.contains(document.activeElement);
  });
}

/** The box under a pointer. Zoomed out, boxes have no elements and are found by position. */
function boxOf(event: MouseEvent): DrawnBox | undefined {
  const element = event.target as Element;
  const at = element.closest<SVGElement>("[data-at]")?.dataset["at"];
  if (at !== undefined) return scene.value.boxes[Number(at)];
  return element.closest(".far") ? boxAround(scene.value, ...camera.placeOf(event)) : undefined;
}

function click(event: MouseEvent): void {
  const element = event.target as Element;
  const box = boxOf(event);
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
  const box = boxOf(event);
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
    "0": () => camera.fit(scene.value, "all"),
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

/** Enters a box that can be opened; pins any other to a column. */
function goOn(box: DrawnBox): void {
  if (box.open) {
    const inner = nearest(scene.value, box, 0, 1);
    if (inner) selectItem(inner.item);
  } else if (box.item.members.length) openHere(box);
  else if (box.open === false) enter(box.item.key);
  else togglePin(box.item.key);
}

function hover(event: PointerEvent): void {
  if (event.buttons || event.pointerType === "touch") return;
  const element = event.target as Element;
  const around = (event.currentTarget as Element).getBoundingClientRect();
  const [x, y] = [event.clientX - around.left, event.clientY - around.top];
  const box = boxOf(event);
  const line = element.closest<SVGElement>("[data-link]")?.dataset["link"];
  const key = box && !box.open ? box.item.key : line ? `link ${line}` : undefined;
  if (key !== hovered.value?.key) hovered.value = key === undefined ? null : { key, x, y };
}
