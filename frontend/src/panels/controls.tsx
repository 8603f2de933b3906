/** The controls that several plots share. */

import type { ComponentChildren } from "preact";
import { logarithmic } from "./state";

export function LogScale() {
  return (
    <label>
      <input
        type="checkbox"
        checked={logarithmic.value}
        onChange={(event) => (logarithmic.value = event.currentTarget.checked)}
      />{" "}
      Log scale
    </label>
  );
}

export function Slider(props: {
  label: string;
  title?: string;
  value: number;
  max: number;
  onChange: (value: number) => void;
  children: ComponentChildren;
}) {
  return (
    <label class="slider" title={props.title}>
      <span>{props.children}</span>
      <input
        type="range"
        min="0"
        max={props.max}
        step="0.01"
        aria-label={props.label}
        value={props.value}
        onInput={(event) => props.onChange(Number(event.currentTarget.value))}
      />
    </label>
  );
}
