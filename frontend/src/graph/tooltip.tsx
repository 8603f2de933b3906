import { useLayoutEffect, useRef } from "preact/hooks";
import { model } from "../state/state";
import { paint } from "./colors";
import { graph, hovered, places, scene } from "./state";
import { linkWords, rowsFor, type Rows, wordsFor } from "./words";

/** More rows would cover the box. */
const MOST_ROWS = 14;

/** What is under the mouse, in rows. */
export function Tooltip() {
  const box = useRef<HTMLDivElement>(null);
  const at = hovered.value;
  const told = at && tell(at.key);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element || !at) return;
    const around = element.parentElement!;
    const left = Math.min(at.x + 16, around.clientWidth - element.offsetWidth - 8);
    const below = at.y + 18 + element.offsetHeight < around.clientHeight;
    element.style.translate = `${Math.max(8, left)}px ${below ? at.y + 18 : Math.max(8, at.y - element.offsetHeight - 12)}px`;
  });
  if (!told) return null;
  return (
    <div ref={box} class="tooltip" role="tooltip" data-testid="tooltip">
      <b>
        <bdi>{told.title}</bdi>
      </b>
      {told.kind && <span class="dim"> {told.kind}</span>}
      <table>
        <tbody>
          {told.rows.slice(0, MOST_ROWS).map(([name, value], row) => (
            <tr key={row}>
              <th scope="row">{name}</th>
              <td>
                <bdi>{value}</bdi>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function tell(key: string): { title: string; kind: string; rows: Rows } | null {
  const known = model.value;
  if (!known) return null;
  if (key.startsWith("link ")) {
    const line = scene.value.links[Number(key.slice(5))];
    const rows = line ? linkWords(line.link) : [];
    if (!line || !rows.length) return null;
    const [from, to] = [line.from, line.to].map((end) => wordsFor(known, scene.value.boxes[end]!.item).title);
    return { title: `${from} → ${to}`, kind: "", rows };
  }
  const box = scene.value.boxes[places.value.get(key) ?? -1];
  if (!box) return null;
  const { title, subtitle } = wordsFor(known, box.item);
  const { says } = paint(known, box.item);
  const place = box.item.node.path && box.item.kind === "call" ? [["path", box.item.node.path] as const] : [];
  return {
    title,
    kind: subtitle,
    rows: [
      ...place,
      ...rowsFor(known, box.item, graph.value?.passes ?? 1),
      ...(says ? [["color", says] as const] : []),
    ],
  };
}
