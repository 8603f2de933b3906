/** Light or dark, and the colors of the theme as numbers for canvases. */

import { computed, effect, signal } from "@preact/signals";
import { theme } from "../state/state";

const darkScheme = matchMedia("(prefers-color-scheme: dark)");
const prefersDark = signal(darkScheme.matches);
darkScheme.addEventListener("change", () => (prefersDark.value = darkScheme.matches));

export const isDark = computed(() => (theme.value ? theme.value === "dark" : prefersDark.value));

const known = new Map<string, string>();

effect(() => {
  void isDark.value;
  known.clear();
  document.documentElement.dataset["theme"] = theme.value || "auto";
});

/** A color of the theme, such as "accent", or any other, in the form that a canvas reads. */
export function resolve(name: string): string {
  let color = known.get(name);
  if (color === undefined) {
    const probe = document.createElement("i");
    probe.style.color = /^[a-z-]+$/.test(name) ? `var(--${name})` : name;
    document.body.append(probe);
    color = getComputedStyle(probe).color;
    probe.remove();
    known.set(name, color);
  }
  return color;
}

export function toggleTheme(): void {
  theme.value = isDark.value ? "light" : "dark";
}

/** The red, green and blue of a color that was resolved. */
export function channels(color: string): [number, number, number] {
  const [red = 0, green = 0, blue = 0] = (color.match(/[\d.]+/g) ?? []).map(Number);
  return [red, green, blue];
}
