/** Light or dark, and the colours of the theme as numbers for what is drawn on a canvas. */

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

/** A colour of the theme, such as "accent", or any other, as a canvas reads it. */
export function resolve(name: string): string {
  let colour = known.get(name);
  if (colour === undefined) {
    const probe = document.createElement("i");
    probe.style.color = /^[a-z-]+$/.test(name) ? `var(--${name})` : name;
    document.body.append(probe);
    colour = getComputedStyle(probe).color;
    probe.remove();
    known.set(name, colour);
  }
  return colour;
}

export function toggleTheme(): void {
  theme.value = isDark.value ? "light" : "dark";
}

/** The red, green and blue of a colour that was resolved. */
export function channels(colour: string): [number, number, number] {
  const [red = 0, green = 0, blue = 0] = (colour.match(/[\d.]+/g) ?? []).map(Number);
  return [red, green, blue];
}
