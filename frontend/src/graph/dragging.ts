/** Boxes dragged out of the graph and dropped on a column. */

import { drag } from "d3-drag";
import { select } from "d3-selection";
import { pin } from "../panels/state";
import { pointerOf } from "./camera";
import type { Item } from "./levels";
import { DRAGGABLE } from "./sizes";
import { hovered } from "./state";

interface Moving {
  readonly item: Item;
  ghost: HTMLElement | null;
}

type ItemOf = (event: MouseEvent | TouchEvent) => Item | undefined;

export function dragToColumns(svg: SVGSVGElement, itemOf: ItemOf): () => void {
  const behaviour = drag<SVGSVGElement, unknown, Moving | undefined>()
    .clickDistance(4)
    .filter((event: MouseEvent) => !event.button && !!(event.target as Element).closest(DRAGGABLE))
    .subject((event: { sourceEvent: MouseEvent | TouchEvent }) => {
      const item = itemOf(event.sourceEvent);
      return item && { item, ghost: null };
    })
    .on("drag", (event: { subject: Moving; sourceEvent: MouseEvent | TouchEvent }) => {
      const at = pointerOf(event.sourceEvent);
      event.subject.ghost ??= makeGhost(event.subject.item);
      event.subject.ghost.style.translate = `${at.clientX + 10}px ${at.clientY + 10}px`;
      markTarget(columnAt(at));
      hovered.value = null;
    })
    .on("end", (event: { subject: Moving; sourceEvent: MouseEvent | TouchEvent }) => {
      if (!event.subject.ghost) return;
      event.subject.ghost.remove();
      markTarget(null);
      document.documentElement.classList.remove("dragging");
      const column = columnAt(pointerOf(event.sourceEvent))?.dataset["column"];
      if (column !== undefined) pin(event.subject.item.key, Number(column));
    });
  const selection = select(svg);
  selection.call(behaviour as never);
  return () => selection.on(".drag", null);
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
