import { useRef } from "preact/hooks";

const NARROWEST = 200;

/** A draggable line between two parts of the page; it sets `--side` or `--columns`. */
export function Splitter({ of, name }: { of: "side" | "columns"; name: string }) {
  const line = useRef<HTMLDivElement>(null);
  const set = (width: number) => {
    const most = document.documentElement.clientWidth * 0.7;
    line.current!.parentElement!.style.setProperty(`--${of}`, `${Math.max(NARROWEST, Math.min(most, width))}px`);
  };
  const neighbor = () =>
    (of === "side" ? line.current!.previousElementSibling : line.current!.nextElementSibling) as HTMLElement;
  const move = (event: PointerEvent) => {
    if (!line.current!.hasPointerCapture(event.pointerId)) return;
    const { left, right } = neighbor().getBoundingClientRect();
    set(of === "side" ? event.clientX - left : right - event.clientX);
  };
  const press = (event: KeyboardEvent) => {
    const by = { ArrowLeft: -24, ArrowRight: 24 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    set(neighbor().offsetWidth + (of === "side" ? by : -by));
  };
  return (
    <div
      ref={line}
      class="splitter"
      role="separator"
      aria-orientation="vertical"
      aria-label={name}
      aria-valuenow={50}
      tabIndex={0}
      onPointerDown={(event) => event.currentTarget.setPointerCapture(event.pointerId)}
      onPointerMove={move}
      onKeyDown={press}
    />
  );
}
