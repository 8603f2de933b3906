/** What a verb such as `tg.quantization` found: its answer, columns beside the tree of modules, and all of its rows. */

import { useComputed, useSignal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import { readNumber } from "../data/points";
import type { Sent } from "../data/records";
import { Lines } from "./lines";
import { leavesFirst, type ModuleRow, openRows, parentsOf } from "./report-rows";

export interface Cell {
  readonly text?: string;
  readonly value?: Sent;
  /** How hot its color is, from 0 to 1. */
  readonly share?: Sent;
}

interface Column {
  readonly title: string;
  /** A longer title. */
  readonly name?: string;
  readonly right?: boolean;
}

interface Entry {
  readonly paths: readonly string[];
  readonly cells: readonly Cell[];
  readonly is_suggested?: boolean;
}

export interface ReportRecord {
  readonly kind: string;
  readonly answer: string;
  readonly module_columns?: readonly Column[];
  readonly modules?: Readonly<Record<string, readonly Cell[]>>;
  readonly columns?: readonly Column[];
  readonly entries?: readonly Entry[];
  readonly facts?: readonly (readonly [string, string])[];
  readonly notes?: readonly string[];
}

export interface ReportData {
  readonly kind: "report";
  /** The modules in the order of the tree. */
  readonly tree: readonly ModuleRow[];
  readonly record: ReportRecord;
}

type Open = ((path: string) => void) | undefined;

export function Report({ data, open }: { data: ReportData; open: Open }) {
  const { record, tree } = data;
  const selected = useSignal("");
  const hasTree = !!record.module_columns?.length;
  return (
    <div class="comparison">
      <section class="conclusion" aria-label="Conclusion">
        <h2>{record.kind}</h2>
        <p>
          <b>{record.answer}</b>
        </p>
        <dl>
          {record.facts?.map(([word, text]) => (
            <div key={word}>
              <dt class="dim">{word}</dt>
              <dd>{text}</dd>
            </div>
          ))}
        </dl>
      </section>
      <div class={`trees ${hasTree ? "even" : "alone"}`}>
        {hasTree && (
          <ModuleColumns tree={tree} record={record} selected={selected.value} select={(path) => (selected.value = path)} />
        )}
        <Entries record={record} path={selected.value} open={open} select={(path) => (selected.value = path)} />
      </div>
      <footer class="dim">{record.notes?.map((note) => `${note[0]?.toUpperCase()}${note.slice(1)}.`).join(" ")}</footer>
    </div>
  );
}

function ModuleColumns({
  tree,
  record,
  selected,
  select,
}: {
  tree: readonly ModuleRow[];
  record: ReportRecord;
  selected: string;
  select(path: string): void;
}) {
  const columns = record.module_columns!;
  const cells = record.modules ?? {};
  const parents = useMemo(() => parentsOf(tree), [tree]);
  const places = useMemo(() => new Map(tree.map(({ path }, at) => [path, at])), [tree]);
  const closed = useSignal<ReadonlySet<number>>(new Set());
  /** The column that the modules are sorted by; -1 for the order of the tree. */
  const order = useSignal(-1);
  const shown = useComputed(() => {
    if (order.value < 0) return openRows(parents, closed.value);
    return leavesFirst(tree, (path) => heat(cells[path]?.[order.value]));
  });
  const toggle = (at: number) => {
    const next = new Set(closed.value);
    if (!next.delete(at)) next.add(at);
    closed.value = next;
  };
  const hasBelow = (at: number) => order.value < 0 && (tree[at + 1]?.depth ?? 0) > tree[at]!.depth;
  const width = useMemo(() => ({ gridTemplateColumns: `minmax(150px, 1fr) ${widths(record).join(" ")}` }), [record]);
  return (
    <div class="tree-table">
      <div class="cells heads" style={width}>
        <span>module</span>
        {columns.map(({ title, right = true }, at) => (
          <button
            key={title}
            type="button"
            class={right ? "number jump" : "jump"}
            aria-pressed={order.value === at}
            title={order.value === at ? "Sorted. Click for the order of the model" : "Sort"}
            onClick={() => (order.value = order.value === at ? -1 : at)}
          >
            {longTitle(columns[at]!)}
            {order.value === at ? " ▼" : ""}
          </button>
        ))}
      </div>
      <Lines
        label="Modules"
        shown={shown.value}
        selected={places.get(selected) ?? 0}
        levelOf={(at) => (order.value < 0 ? tree[at]!.depth + 1 : 1)}
        isOpen={(at) => (hasBelow(at) ? !closed.value.has(at) : undefined)}
        toggle={toggle}
        select={(at) => select(tree[at]!.path)}
        line={(at) => {
          const { path, name, class: kind, depth } = tree[at]!;
          const onTwisty = (event: Event) => {
            event.stopPropagation();
            toggle(at);
          };
          return (
            <div class="cells" style={width}>
              <span class="half" style={{ paddingInlineStart: `${order.value < 0 ? Math.min(depth, 14) * 14 : 0}px` }}>
                {hasBelow(at) ? <span class={`twisty ${closed.value.has(at) ? "closed" : "open"}`} onClick={onTwisty} /> : <span class="twisty" />}
                <bdi class="text" title={path}>
                  <b>{order.value < 0 ? name : path || name}</b> <span class="dim">{kind}</span>
                </bdi>
              </span>
              {columns.map(({ title, right = true }, column) => (
                <Heated key={title} cell={cells[path]?.[column]} right={right} />
              ))}
            </div>
          );
        }}
      />
    </div>
  );
}

/** "SQNR int8" for "int8". */
function longTitle({ title, name = "" }: Column): string {
  return name.endsWith(title) ? name : title;
}

/** As wide as the longest text, the same for all rows. */
function widths({ module_columns = [], modules = {} }: ReportRecord): string[] {
  const rows = Object.values(modules);
  return module_columns.map((column, at) => {
    const atLeast = longTitle(column).length + 2;
    const longest = rows.reduce((most, cells) => Math.max(most, cells[at]?.text?.length ?? 0), atLeast);
    return `calc(${longest}ch + 18px)`;
  });
}

/** A cell whose color says how large the error or the saving is. */
function Heated({ cell, right }: { cell: Cell | undefined; right: boolean }) {
  const share = cell?.share === undefined ? 0 : readNumber(cell.share);
  // The root tells small shares apart, of which there are most.
  const strength = share > 0 ? 0.12 + 0.88 * Math.sqrt(Math.min(1, share)) : 0;
  return (
    <span class={`heated ${right ? "number" : ""}`} style={{ "--strength": strength.toFixed(3) }}>
      {cell?.text}
    </span>
  );
}

function heat(cell: Cell | undefined): number {
  const known = cell?.share ?? cell?.value;
  return known === undefined ? -Infinity : readNumber(known);
}

const MOST_ENTRIES = 300;

function Entries({ record, path, open, select }: { record: ReportRecord; path: string; open: Open; select(path: string): void }) {
  const { columns = [], entries = [] } = record;
  const own = path ? entries.filter(({ paths }) => paths.some((one) => one === path || one.startsWith(`${path}.`))) : entries;
  // A first column of text names the module already.
  const hasName = columns[0]?.right === false;
  const hasPaths = entries.some(({ paths }) => paths.length);
  const hasMarks = entries.some((one) => one.is_suggested);
  return (
    <aside class="row-details" aria-label="Rows" data-testid="row-details">
      {path && (
        <h3>
          <bdi>{path}</bdi>{" "}
          {open && (
            <button type="button" class="jump" onClick={() => open(path)}>
              Show in graph
            </button>
          )}
        </h3>
      )}
      {own.length ? (
        <table class="entries">
          <thead>
            <tr>
              {hasMarks && <th scope="col">suggested</th>}
              {hasPaths && !hasName && <th scope="col">module</th>}
              {columns.map(({ title, right = true }) => (
                <th key={title} scope="col" class={right ? "number" : ""}>
                  {title}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {own.slice(0, MOST_ENTRIES).map(({ cells, paths, is_suggested }, at) => (
              <tr key={at}>
                {hasMarks && <td>{is_suggested ? "✓" : ""}</td>}
                {hasPaths && !hasName && (
                  <td>
                    <ToModule paths={paths} text={paths[0] || "model"} select={select} />
                  </td>
                )}
                {cells.map((cell, column) => (
                  <td key={column} class={(columns[column]?.right ?? true) ? "number" : ""}>
                    {hasName && column === 0 ? <ToModule paths={paths} text={cell.text ?? ""} select={select} /> : cell.text}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      ) : (
        <p class="dim">Nothing was measured of this module.</p>
      )}
      {own.length > MOST_ENTRIES && <p class="dim">… and {own.length - MOST_ENTRIES} more. Select a module to see its rows.</p>}
    </aside>
  );
}

function ToModule({ paths, text, select }: { paths: readonly string[]; text: string; select(path: string): void }) {
  const [path] = paths;
  if (path === undefined) return <>{text}</>;
  return (
    <button type="button" class="jump" onClick={() => select(path)}>
      <bdi>{text}</bdi>
    </button>
  );
}
