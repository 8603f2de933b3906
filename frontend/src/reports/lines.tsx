/** A tree as lines of which only those in view exist, with the keys of a tree. */

import { useSignal } from "@preact/signals";
import type { ComponentChild } from "preact";
import { useEffect, useRef } from "preact/hooks";

/** Also the height of `.tree-line` in reports.css. */
const LINE = 26;
const SPARE = 8;

interface LinesProps {
  readonly label: string;
  /** The rows in order, by number. */
  readonly shown: readonly number[];
  readonly selected: number;
  levelOf(at: number): number;
  /** Undefined if there is nothing below it. */
  isOpen(at: number): boolean | undefined;
  toggle(at: number): void;
  select(at: number): void;
  line(at: number): ComponentChild;
}

export function Lines({ label, shown, selected, levelOf, isOpen, toggle, select, line }: LinesProps) {
  const box = useRef<HTMLDivElement>(null);
  const top = useSignal(0);
  const height = useSignal(600);
  const active = shown.indexOf(selected);
  useEffect(() => {
    const element = box.current!;
    const watcher = new ResizeObserver(() => (height.value = element.clientHeight));
    watcher.observe(element);
    return () => watcher.disconnect();
  }, []);
  useEffect(() => {
    const { scrollTop, clientHeight } = box.current!;
    const at = active * LINE;
    if (active >= 0 && (at < scrollTop || at + LINE > scrollTop + clientHeight))
      box.current!.scrollTop = Math.max(0, at - clientHeight / 3);
  }, [selected, shown.length]);
  const onKeyDown = (event: KeyboardEvent) => {
    const go = (to: number) => select(shown[Math.max(0, Math.min(to, shown.length - 1))]!);
    const page = Math.floor(height.value / LINE);
    const keys: Record<string, () => void> = {
      ArrowDown: () => go(active + 1),
      ArrowUp: () => go(active - 1),
      PageDown: () => go(active + page),
      PageUp: () => go(active - page),
      Home: () => go(0),
      End: () => go(shown.length - 1),
      ArrowRight: () => isOpen(selected) === false && toggle(selected),
      ArrowLeft: () => isOpen(selected) && toggle(selected),
    };
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  };
  const first = Math.max(0, Math.floor(top.value / LINE) - SPARE);
  const last = Math.ceil((top.value + height.value) / LINE) + SPARE;
  return (
    <div
      ref={box}
      class="lines"
      role="tree"
      tabIndex={0}
      aria-label={label}
      aria-activedescendant={active < 0 ? undefined : `line-${selected}`}
      onScroll={(event) => (top.value = event.currentTarget.scrollTop)}
      onKeyDown={onKeyDown}
    >
      <div role="presentation" style={{ height: `${shown.length * LINE}px` }}>
        {shown.slice(first, last).map((at, index) => (
          <div
            key={at}
            id={`line-${at}`}
            class={`tree-line ${at === selected ? "selected" : ""}`}
            role="treeitem"
            aria-level={levelOf(at)}
            aria-expanded={isOpen(at)}
            aria-selected={at === selected}
            style={{ top: `${(first + index) * LINE}px` }}
            onClick={() => select(at)}
          >
            {line(at)}
          </div>
        ))}
      </div>
    </div>
  );
}
