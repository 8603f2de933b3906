/** Drags boxes from the graph to a column. */

import { pin } from "../panels/state";
import { CLICK_DISTANCE, ignoreClick } from "./camera";
import type { Item } from "./levels";
import { DRAGGABLE } from "./sizes";
import { hovered } from "./state";

export function dragToColumns(svg: SVGSVGElement, itemOf: (event: MouseEvent) => Item | undefined): () => void {
  const ending = new AbortController();
  let stop = () => {};
  const start = (down: PointerEvent) => {
    const item = down.button || !(down.target as Element).closest(DRAGGABLE) ? undefined : itemOf(down);
    if (!item) return;
    stop();
    const listening = new AbortController();
    let ghost: HTMLElement | null = null;
    const move = (at: PointerEvent) => {
      if (at.pointerId !== down.pointerId) return;
      if (!ghost && Math.hypot(at.clientX - down.clientX, at.clientY - down.clientY) < CLICK_DISTANCE) return;
      ghost ??= makeGhost(item);
      ghost.style.translate = `${at.clientX + 10}px ${at.clientY + 10}px`;
      markTarget(columnAt(at));
      hovered.value = null;
    };
    const end = (at: PointerEvent) => {
      if (at.pointerId !== down.pointerId) return;
      const column = ghost && at.type === "pointerup" ? columnAt(at)?.dataset["column"] : undefined;
      if (ghost) ignoreClick();
      stop();
      if (column !== undefined) pin(item.key, Number(column));
    };
    stop = () => {
      listening.abort();
      ghost?.remove();
      markTarget(null);
      document.documentElement.classList.remove("dragging");
    };
    const { signal } = listening;
    addEventListener("pointermove", move, { signal });
    addEventListener("pointerup", end, { signal });
    addEventListener("pointercancel", end, { signal });
  };
  svg.addEventListener("pointerdown", start, { signal: ending.signal });
  return () => {
    stop();
    ending.abort();
  };
}

function makeGhost(item: Item): HTMLElement {
  const ghost = document.createElement("div");
  ghost.className = "ghost";
  ghost.textContent = item.node.path || item.node.name;
  document.body.append(ghost);
  document.documentElement.classList.add("dragging");
  return ghost;
}

function columnAt({ clientX, clientY }: { clientX: number; clientY: number }): HTMLElement | null {
  return document.elementFromPoint(clientX, clientY)?.closest<HTMLElement>("[data-column]") ?? null;
}

function markTarget(target: HTMLElement | null): void {
  for (const column of document.querySelectorAll("[data-column]")) column.classList.toggle("target", column === target);
}
