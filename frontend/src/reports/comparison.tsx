/** Two models side by side: the conclusion, where they first diverge, both trees, and what changed of a module. */

import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { formatExact, formatNumber } from "../data/formats";
import { readNumber } from "../data/points";
import {
  type Below,
  changeFrom,
  distanceOf,
  type PairRow,
  shownRows,
  type SideModule,
  strength,
  sumBelow,
  type TensorChange,
} from "./comparison-rows";
import { parentsOf } from "./report-rows";
import { BeforeAndAfter } from "./histogram";
import { Lines } from "./lines";

interface DivergedSide {
  readonly op: string;
  readonly path: string;
  readonly place: string;
  readonly code: string;
  readonly reads: readonly string[];
  readonly returns: string;
}

interface Divergence {
  readonly reason: string;
  readonly facts: readonly string[];
  readonly sides: { readonly a?: DivergedSide; readonly b?: DivergedSide };
}

interface OtherChange {
  readonly kind: string;
  readonly name: string;
  readonly change: string;
  readonly before?: string;
  readonly after?: string;
}

export interface ComparisonData {
  readonly kind: "comparison";
  readonly title: string;
  readonly names: readonly [string, string];
  readonly answers: readonly string[];
  readonly rows: readonly PairRow[];
  readonly divergence?: Divergence;
  /** Settings and curves of runs. */
  readonly others: readonly OtherChange[];
  readonly notes: readonly string[];
}

export function Comparison({ data, open }: { data: ComparisonData; open: ((path: string) => void) | undefined }) {
  const [first, ...rest] = data.answers;
  return (
    <div class="comparison">
      <section class="conclusion" aria-label="Conclusion">
        <h2>
          <bdi>{data.names[0]}</bdi> → <bdi>{data.names[1]}</bdi>
        </h2>
        <p>
          <b>{first}</b> {rest.join(" ")}
        </p>
      </section>
      {data.others.length > 0 && <Others changes={data.others} />}
      {data.rows.length > 0 && <Trees data={data} open={open} />}
      <footer class="dim">{data.notes.map((note) => `${note[0]?.toUpperCase()}${note.slice(1)}.`).join(" ")}</footer>
    </div>
  );
}

function Others({ changes }: { changes: readonly OtherChange[] }) {
  return (
    <div class="others">
      <table>
        <thead>
          <tr>
            {["", "Name", "Change", "a", "b"].map((heading) => (
              <th key={heading} scope="col">
                {heading}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {changes.map(({ kind, name, change, before, after }) => (
            <tr key={`${kind} ${name}`}>
              <td class="dim">{kind}</td>
              <th scope="row">{name}</th>
              <td>{change}</td>
              <td>{before}</td>
              <td>{after}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Trees({ data, open }: { data: ComparisonData; open: ((path: string) => void) | undefined }) {
  const { rows, divergence } = data;
  const parents = useMemo(() => parentsOf(rows), [rows]);
  const below = useMemo(() => sumBelow(rows, parents), [rows]);
  const changed = useMemo(() => rows.flatMap((row, at) => (row.verdict ? [at] : [])), [rows]);
  const diverged = useMemo(() => rowOfDivergence(rows, divergence), [rows]);
  const closed = useSignal<ReadonlySet<number>>(new Set());
  const isChangedOnly = useSignal(false);
  const selected = useSignal(diverged >= 0 ? diverged : (changed[0] ?? 0));
  const shown = useComputed(() => shownRows(rows, parents, below, closed.value, isChangedOnly.value));

  const show = (at: number) => {
    const above = new Set<number>();
    for (let parent = parents[at]!; parent >= 0; parent = parents[parent]!) above.add(parent);
    closed.value = new Set([...closed.value].filter((one) => !above.has(one)));
    selected.value = at;
  };
  const goTo = (step: 1 | -1) => {
    const next = changeFrom(changed, selected.peek(), step);
    if (next !== undefined) show(next);
  };
  const toggle = (at: number) => {
    const next = new Set(closed.value);
    if (!next.delete(at)) next.add(at);
    closed.value = next;
  };
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const isTyping = event.target instanceof HTMLInputElement && event.target.type !== "checkbox";
      if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "n") goTo(1);
      else if (event.key === "p") goTo(-1);
      else if (event.key === "c") isChangedOnly.value = !isChangedOnly.value;
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [rows]);

  const place = changed.indexOf(selected.value);
  return (
    <>
      {divergence && <Diverged found={divergence} show={diverged >= 0 ? () => show(diverged) : undefined} />}
      <div class="bar">
        <label title="c">
          <input type="checkbox" checked={isChangedOnly.value} onChange={() => (isChangedOnly.value = !isChangedOnly.value)} /> Changed
          only
        </label>
        <button type="button" title="p" disabled={!changed.length} onClick={() => goTo(-1)}>
          ◀ Previous change
        </button>
        <button type="button" title="n" disabled={!changed.length} onClick={() => goTo(1)}>
          Next change ▶
        </button>
        <output data-testid="position">
          {changed.length
            ? `${place < 0 ? "" : `${formatExact(place + 1)} of `}${formatExact(changed.length)} changed module${changed.length > 1 ? "s" : ""}`
            : "No module changed"}
        </output>
        <Legend />
      </div>
      <div class="trees">
        <div class="tree-table">
          <div class="pair heads" aria-hidden="true">
            <span>
              a: <bdi>{data.names[0]}</bdi>
            </span>
            <span class="middle">distance</span>
            <span>
              b: <bdi>{data.names[1]}</bdi>
            </span>
          </div>
          <Lines
            label={`Modules of ${data.title}`}
            shown={shown.value}
            selected={selected.value}
            levelOf={(at) => rows[at]!.depth + 1}
            isOpen={(at) => (hasChildren(rows, at) ? !closed.value.has(at) : undefined)}
            toggle={toggle}
            select={(at) => (selected.value = at)}
            line={(at) => (
              <Pair
                row={rows[at]!}
                below={below[at]!}
                isClosed={closed.value.has(at)}
                twisty={hasChildren(rows, at) ? () => toggle(at) : undefined}
                isDiverged={at === diverged}
              />
            )}
          />
        </div>
        <RowDetails row={rows[selected.value]!} below={below[selected.value]!} open={open} />
      </div>
    </>
  );
}

function hasChildren(rows: readonly PairRow[], at: number): boolean {
  return (rows[at + 1]?.depth ?? 0) > rows[at]!.depth;
}

/** The module in which both first diverge; -1 if it is not known. */
function rowOfDivergence(rows: readonly PairRow[], found: Divergence | undefined): number {
  const { a, b } = found?.sides ?? {};
  if (b) return rows.findIndex((row) => row.b?.path === b.path);
  return a ? rows.findIndex((row) => row.a?.path === a.path) : -1;
}

function Diverged({ found, show }: { found: Divergence; show: (() => void) | undefined }) {
  return (
    <section class="diverged" aria-label="First divergence" data-testid="divergence">
      <h3>
        Where they first diverge
        {show && (
          <button type="button" class="jump" onClick={show}>
            Show module
          </button>
        )}
      </h3>
      <p class="dim">{found.facts.join(" ")}</p>
      <div class="both">
        {(["a", "b"] as const).map((name) => {
          const side = found.sides[name];
          return (
            <div key={name}>
              <div>
                <b>{name}</b> {side ? <code>{[side.path, side.op].filter(Boolean).join(" · ")}</code> : "has no such op"}
              </div>
              {side?.code && <pre>{side.code}</pre>}
              {side?.place && <div class="dim place">{side.place}</div>}
              {side && (
                <dl>
                  {side.reads.map((text, at) => (
                    <Operand key={at} word="reads" text={text} />
                  ))}
                  {side.returns && <Operand word="returns" text={side.returns} />}
                </dl>
              )}
            </div>
          );
        })}
      </div>
    </section>
  );
}

function Operand({ word, text }: { word: string; text: string }) {
  return (
    <div>
      <dt class="dim">{word}</dt>
      <dd>{text}</dd>
    </div>
  );
}

function Legend() {
  return (
    <span class="color-key" data-testid="legend">
      <i class="removed" /> removed <i class="added" /> added <i class="edited" /> edited <i class="ramp" /> values: distance 1e-6 … 1
    </span>
  );
}

function Pair({
  row,
  below,
  isClosed,
  twisty,
  isDiverged,
}: {
  row: PairRow;
  below: Below;
  isClosed: boolean;
  twisty: (() => void) | undefined;
  isDiverged: boolean;
}) {
  const own = distanceOf(row);
  const tint = strength(Math.max(own, isClosed ? below.distance : -1));
  const kind = row.verdict === "changed" ? (row.words?.length || hasOtherShape(row) ? "edited" : "values") : (row.verdict ?? "");
  return (
    <div class={`pair ${kind}`} style={{ "--strength": tint.toFixed(3), "--below": strength(below.distance).toFixed(3) }}>
      <Side module={row.a} depth={row.depth} twisty={twisty} isClosed={isClosed} />
      <span class="middle" title={row.words?.join("\n")}>
        {isDiverged && (
          <span class="flag" title="First divergence">
            ≠
          </span>
        )}
        {middleText(row, below, isClosed)}
      </span>
      <Side module={row.b} depth={row.depth} isClosed={isClosed} />
    </div>
  );
}

function hasOtherShape(row: PairRow): boolean {
  return !!row.tensors?.some((one) => one.before !== one.after);
}

function middleText(row: PairRow, below: Below, isClosed: boolean): string {
  const own = row.distance === undefined ? kindOfChange(row) : distanceText(row.distance);
  const inside = below.changed && (isClosed || !row.verdict) ? `${formatExact(below.changed)} below` : "";
  return [own, inside].filter(Boolean).join(" · ");
}

/** "added", "class", "renamed or moved", "shape": what the first sentence about it is about. */
function kindOfChange({ verdict, words, tensors }: PairRow): string {
  if (verdict !== "changed") return verdict ?? "";
  return words?.[0]?.split(":")[0]!.toLowerCase() ?? (tensors?.every((one) => one.before && one.after) ? "shape" : "tensors");
}

function distanceText(sent: NonNullable<PairRow["distance"]>): string {
  const distance = readNumber(sent);
  return Number.isNaN(distance) ? "NaN differs" : distance === Infinity ? "was 0" : formatNumber(distance);
}

function Side({
  module,
  depth,
  twisty,
  isClosed,
}: {
  module: SideModule | undefined;
  depth: number;
  twisty?: (() => void) | undefined;
  isClosed: boolean;
}) {
  const onClick = (event: Event) => {
    event.stopPropagation();
    twisty?.();
  };
  return (
    <span class="half" style={{ paddingInlineStart: `${Math.min(depth, 14) * 14}px` }}>
      <span class={`twisty ${twisty ? (isClosed ? "closed" : "open") : ""}`} onClick={onClick} />
      {module && (
        <bdi class="text" title={module.path}>
          <b>{module.name}</b> <span class="dim">{module.class}</span>
        </bdi>
      )}
    </span>
  );
}

function RowDetails({ row, below, open }: { row: PairRow; below: Below; open: ((path: string) => void) | undefined }) {
  const box = useRef<HTMLElement>(null);
  useEffect(() => box.current?.scrollTo(0, 0), [row]);
  const module = row.b ?? row.a!;
  return (
    <aside ref={box} class="row-details" aria-label="Selected module" data-testid="row-details">
      <h3>
        <bdi>{module.path || module.name}</bdi> <span class="dim">{module.class}</span>
      </h3>
      {open && row.b && (
        <button type="button" class="jump" onClick={() => open(row.b!.path)}>
          Show in graph
        </button>
      )}
      {row.verdict === "added" && <p>Only b has it.</p>}
      {row.verdict === "removed" && <p>Only a has it.</p>}
      {row.words?.map((word) => <p key={word}>{word}</p>)}
      {!row.verdict && <p class="dim">No direct changes.</p>}
      {below.changed > 0 && <p class="dim">{formatExact(below.changed)} changed below</p>}
      {row.tensors?.map((tensor) => <Tensor key={tensor.name} tensor={tensor} />)}
    </aside>
  );
}

function Tensor({ tensor }: { tensor: TensorChange }) {
  const { before, after, distance, cosine, largest, nan, rank } = tensor;
  const facts: [string, string | undefined][] = [
    ["distance", distance === undefined ? undefined : distanceText(distance)],
    ["cosine", cosine === undefined ? undefined : formatNumber(cosine)],
    ["largest change", largest === undefined ? undefined : formatNumber(largest)],
    ["NaN", nan && `${formatExact(nan[0])} → ${formatExact(nan[1])}`],
    ["rank of the change", rank === undefined ? undefined : String(rank)],
  ];
  return (
    <section class="tensor" data-testid="tensor">
      <h4>
        {tensor.name} <span class="dim">{before === after ? after : `${before ?? "none"} → ${after ?? "none"}`}</span>
      </h4>
      <dl>
        {facts.map(
          ([word, text]) =>
            text !== undefined && (
              <div key={word}>
                <dt class="dim">{word}</dt>
                <dd>{text}</dd>
              </div>
            ),
        )}
      </dl>
      {tensor.histograms && <BeforeAndAfter name={tensor.name} bins={tensor.histograms} />}
    </section>
  );
}
