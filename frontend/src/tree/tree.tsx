import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { formatBytes, formatCount, formatExact, formatShare } from "../data/formats";
import { kindOf, type Model } from "../data/model";
import { kindSpan, nameSpan, type Row, type Span } from "./rows";
import { pinKeyOf } from "../panels/node-of-module";
import { togglePin } from "../panels/state";
import { jump } from "../state/places";
import { Badge } from "../training/badge";
import { awaitsRuns, failure } from "../state/live";
import { lookFor, model, query, rows, run, select, selected, toggle } from "../state/state";

/** Also the height of `.row` in tree.css: lines are placed by it, and only those in view exist. */
const ROW = 26;
const SPARE_ROWS = 8;
const INDENT = 14;
const DEEPEST_INDENT = 14;

export function Tree() {
  const tree = useRef<HTMLDivElement>(null);
  return (
    <section class="tree-pane" aria-label="Modules">
      <div class="tree-head" aria-hidden="true">
        <span>name</span>
        <span class="number">params</span>
        <span class="share">share</span>
      </div>
      {model.value ? <Lines model={model.value} box={tree} /> : <p class="empty">{whyEmpty()}</p>}
    </section>
  );
}

function whyEmpty(): string {
  if (run.value) return "No model recorded yet.";
  if (failure.value) return "";
  return awaitsRuns.value ? "No runs yet. New runs appear here automatically." : "Loading…";
}

function Lines({ model, box }: { model: Model; box: { current: HTMLDivElement | null } }) {
  const top = useSignal(0);
  const height = useSignal(800);
  const all = rows.value;
  const active = all.findIndex((row) => row.id === selected.value);
  useEffect(() => {
    const element = box.current!;
    const watcher = new ResizeObserver(() => (height.value = element.clientHeight));
    watcher.observe(element);
    return () => watcher.disconnect();
  }, []);
  useEffect(() => {
    if (active >= 0) scrollTo(box.current!, active);
  }, [selected.value, query.value]);
  const first = Math.max(0, Math.floor(top.value / ROW) - SPARE_ROWS);
  const last = Math.ceil((top.value + height.value) / ROW) + SPARE_ROWS;
  return (
    <div
      ref={box}
      class="tree"
      role="tree"
      tabIndex={0}
      aria-label={`Modules of ${model.name}`}
      aria-activedescendant={active < 0 ? undefined : lineId(all[active]!.id)}
      onScroll={(event) => (top.value = event.currentTarget.scrollTop)}
      onKeyDown={(event) => walk(event, model, active, Math.floor(height.value / ROW))}
    >
      <div class="all" role="presentation" style={{ height: `${all.length * ROW}px` }}>
        {all.slice(first, last).map((row, at) => (
          <Line key={row.id} model={model} row={row} top={(first + at) * ROW} />
        ))}
      </div>
    </div>
  );
}

function scrollTo(box: HTMLElement, row: number): void {
  const top = row * ROW;
  if (top < box.scrollTop) box.scrollTop = top;
  else if (top + ROW > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW - box.clientHeight;
}

function Line({ model, row, top }: { model: Model; row: Row; top: number }) {
  const module = model.module(row.id);
  const parameters = model.parameters(row.id);
  const whole = model.parameters(0);
  const indent = Math.min(row.level - 1, DEEPEST_INDENT);
  const isSelected = selected.value === row.id;
  return (
    <div
      id={lineId(row.id)}
      class={`row ${isSelected ? "selected" : ""} ${module.problem ? "problem" : ""}`}
      role="treeitem"
      aria-level={row.level}
      aria-expanded={row.open}
      aria-selected={isSelected}
      aria-posinset={row.position}
      aria-setsize={row.siblings}
      style={{ top: `${top}px` }}
      onClick={() => select(row.id)}
      onDblClick={() => row.open !== undefined && toggle(row.id)}
    >
      <span class="name" title={shorten(module.path)} style={{ paddingInlineStart: `${indent * INDENT}px` }}>
        <Twisty row={row} />
        <Text text={model.label(module)} span={module.name ? nameSpan(module, query.value) : undefined} />
        <span class="kind" title={shorten(module.class_name)}>
          <Text text={kindOf(module)} span={kindSpan(module, query.value)} />
        </span>
        {module.alias_of !== undefined && <Alias model={model} target={module.alias_of} />}
        {module.problem && <Problem text={module.problem} />}
        <Badge path={module.path} isOpen={!!row.open} />
      </span>
      <span class="number" title={`${formatExact(parameters)} parameters, ${formatBytes(model.bytes(row.id))}`}>
        {parameters ? formatCount(parameters) : ""}
      </span>
      <span class="share" title={formatShare(parameters, whole)}>
        <i style={{ width: whole ? `${(100 * parameters) / whole}%` : "0" }} />
      </span>
    </div>
  );
}

function Twisty({ row }: { row: Row }) {
  if (row.open === undefined) return <span class="twisty" />;
  const onClick = (event: Event) => {
    event.stopPropagation();
    select(row.id);
    toggle(row.id);
  };
  // Not a button: the tree itself has the focus, and its arrow keys do the same.
  return <span class={`twisty ${row.open ? "open" : "closed"}`} data-testid="twisty" onClick={onClick} />;
}

function Alias({ model, target }: { model: Model; target: number }) {
  const onClick = (event: Event) => {
    event.stopPropagation();
    jump(target);
  };
  return (
    <span class="alias" title="Shared module, counted once" onClick={onClick}>
      = <bdi>{model.module(target).path || model.name}</bdi>
    </span>
  );
}

function Problem({ text }: { text: string }) {
  return (
    <span class="flag" role="img" aria-label="problem" title={shorten(text)}>
      !
    </span>
  );
}

function Text({ text, span }: { text: string; span: Span | undefined }) {
  if (!span) return <bdi class="text">{text}</bdi>;
  return (
    <bdi class="text">
      {text.slice(0, span.start)}
      <mark>{text.slice(span.start, span.end)}</mark>
      {text.slice(span.end)}
    </bdi>
  );
}

/** A tooltip as long as the longest name would cover the screen. */
function shorten(text: string): string {
  return text.length > 300 ? `${text.slice(0, 300)}…` : text;
}

function lineId(id: number): string {
  return `module-${id}`;
}

/** The keys of a tree, as the ARIA practices describe them. */
function walk(event: KeyboardEvent, model: Model, active: number, page: number): void {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const all = rows.value;
  const here = all[active];
  const go = (at: number) => select(all[Math.max(0, Math.min(at, all.length - 1))]!.id);
  const parent = here && model.module(here.id).parent;
  const keys: Record<string, () => void> = {
    ArrowDown: () => go(active + 1),
    ArrowUp: () => go(active - 1),
    PageDown: () => go(active + page),
    PageUp: () => go(active - page),
    Home: () => go(0),
    End: () => go(all.length - 1),
    ArrowRight: () => here && (here.open === false ? toggle(here.id) : here.open && go(active + 1)),
    ArrowLeft: () => (here?.open ? toggle(here.id) : parent !== undefined && select(parent)),
    Enter: () => here && activate(model, here),
    " ": () => here && activate(model, here),
    p: () => here && pin(model, here),
    Escape: () => lookFor(""),
  };
  const act = keys[event.key];
  if (!act || !all.length) return;
  event.preventDefault();
  act();
}

function activate(model: Model, row: Row): void {
  const alias = model.module(row.id).alias_of;
  if (alias !== undefined) jump(alias);
  else if (row.open !== undefined) toggle(row.id);
}

function pin(model: Model, row: Row): void {
  const key = pinKeyOf(model.module(row.id));
  if (key !== undefined) togglePin(key);
}
