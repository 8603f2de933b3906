/** One box of the graph. Clicks and drags find it by its data attributes. */

import { constantOf, rangeOf } from "../data/histograms";
import type { Model } from "../data/model";
import { pins } from "../panels/state";
import { BoxBadge, markAt } from "../training/badge";
import { found, foundPaths } from "../state/state";
import type { Region } from "./camera";
import { paint, pathsOf } from "./colors";
import { glances, glanceSeries, outline, references } from "./latest-histograms";
import { fitted, widthOf } from "./text-width";
import type { DrawnBox } from "./scene";
import { TITLE } from "./sizes";
import { graph, MINI, selectedKey, sides } from "./state";
import { isSymbol, moduleOf, wordsFor } from "./words";

const RADIUS = { call: 7, stack: 7, group: 7, op: 14, input: 14, output: 14, attached: 3 };

/** A function of the drawing and not a component of its own: a view may have thousands, and all change together. */
export function drawBox(box: DrawnBox, at: number, known: Model, detail: Region["detail"]) {
  const { item, w, h, open } = box;
  const { title, subtitle } = wordsFor(known, item);
  const module = moduleOf(known, item.node);
  const isMatch = item.kind === "call" && module !== undefined && found.value?.matches.has(module.id);
  const painted = paint(known, item);
  const pinned = pins.value.get(item.key);
  const mark = item.kind === "call" || item.members.length ? markAt(pathsOf(item), !!open) : null;
  const isShared = item.kind === "call" && graph.value!.calls(item.node.path).length > 1;
  const classes = ["box", item.kind];
  if (open) classes.push("open");
  if (selectedKey.value === item.key) classes.push("selected");
  if (isMatch) classes.push("match");
  if (found.value && !isMatch && !pathsOf(item).some((path) => foundPaths.value.has(path))) classes.push("other");
  if (isShared) classes.push("shared");
  if (sides.value?.get(item.key) === "second") classes.push("second");
  return (
    <g
      key={item.key}
      class={classes.join(" ")}
      transform={`translate(${box.x},${box.y})`}
      data-at={at}
      data-testid="box"
      data-key={item.key}
      data-drag={open ? undefined : ""}
      role="button"
      tabindex={selectedKey.value === item.key ? 0 : -1}
      aria-label={[`${title} ${subtitle}`.trim(), mark?.says, painted.says].filter(Boolean).join(", ")}
      aria-expanded={open}
    >
      {item.kind === "stack" && !open && <rect class="behind" x="5" y="-4" width={w - 10} height={h} rx="7" />}
      <rect
        class="body"
        width={w}
        height={h}
        rx={RADIUS[item.kind]}
        style={{ fill: open ? undefined : painted.fill, stroke: pinned }}
        data-pinned={pinned ? "" : undefined}
      />
      {drawLabel(box, title, detail === "near" ? subtitle : "")}
      {detail === "near" && !open && <Mini box={box} color={pinned} />}
      {detail === "near" && open === false && <Ribbons box={box} />}
      {mark && <BoxBadge mark={mark} w={w} />}
    </g>
  );
}

function drawLabel(box: DrawnBox, title: string, subtitle: string) {
  const { item, w, h, open } = box;
  if (item.kind === "op" && isSymbol(title)) {
    return (
      <text class="title" x={w / 2} y={h / 2 + 5} text-anchor="middle">
        {title}
      </text>
    );
  }
  const indent = open === undefined ? 12 : 24;
  const room = w - indent - 10 - (glanceSeries(item) !== undefined && !open ? MINI.w + 6 : 0);
  const top = open ? 20 : subtitle ? h / 2 - 4 : h / 2 + 5;
  const behind = open ? Math.min(room, widthOf(title, "title")) + 8 : 0;
  // There may be no room beside the title of an open box, and a few letters are useless.
  const hasSubtitle = subtitle && (!open || widthOf(subtitle, "subtitle") <= room - behind);
  return (
    <>
      {open !== undefined && (
        <g class="twist" data-twist="" transform={`translate(0,${open ? TITLE / 2 : h / 2})`}>
          <rect x="2" y="-12" width="21" height="24" fill="transparent" />
          <path d={open ? "M8,-2.5 L12.5,3 L17,-2.5" : "M9.5,-4.5 L15,0 L9.5,4.5"} />
        </g>
      )}
      <text class="title" x={indent} y={top} data-drag={open ? "" : undefined}>
        {fitted(title, room, "title")}
      </text>{" "}
      {hasSubtitle && (
        <text class="subtitle" x={indent + behind} y={open ? top : h - 11}>
          {fitted(subtitle, room, "subtitle")}
        </text>
      )}
    </>
  );
}

/** A mark for each pinned module inside. */
function Ribbons({ box }: { box: DrawnBox }) {
  const { members, node } = box.item;
  const paths = members.length
    ? members.flatMap((one) => [`${one.node.path}.`, `${one.node.path}:`])
    : [`${node.path}.`];
  const inside = [...pins.value].filter(([key]) => paths.some((path) => key.startsWith(path)));
  return (
    <>
      {inside.map(([key, color], at) => (
        <path
          key={key}
          class="ribbon"
          style={{ fill: color }}
          transform={`translate(${box.w - 14 - 10 * at},0)`}
          d="M0,0h7v11l-3.5,-3.5l-3.5,3.5Z"
        />
      ))}
    </>
  );
}

function Mini({ box, color }: { box: DrawnBox; color: string | undefined }) {
  const id = glanceSeries(box.item);
  const column = id === undefined ? undefined : glances.value.get(id);
  if (!column) return null;
  const reference = references.value.get(id!);
  const constant = constantOf(column);
  if (constant && !reference) {
    const [x, y] = [box.w - MINI.w - 9, (box.h - MINI.h) / 2];
    return (
      <g transform={`translate(${x},${y})`}>
        <path class="mini" style={{ fill: color }} d={`M${MINI.w / 2 - 1},0h2v${MINI.h - 10}h-2Z`} />
        <text class="constant" x={MINI.w / 2} y={MINI.h} text-anchor="middle">
          {constant}
        </text>
      </g>
    );
  }
  const range = rangeOf(reference ? [column, reference] : [column], 0);
  if (!range) return null;
  return (
    <g transform={`translate(${box.w - MINI.w - 9},${(box.h - MINI.h) / 2})`}>
      <path class="mini" style={{ fill: color }} d={outline(column, range, MINI.w, MINI.h)} />
      {reference && <path class="mini reference" d={outline(reference, range, MINI.w, MINI.h)} />}
    </g>
  );
}
