/** The step that everything shows: the latest one, unless the user chose another. */

import { computed, effect, signal } from "@preact/signals";
import { status } from "./state";

/** The step that was chosen; null follows the end. */
export const chosenStep = signal<number | null>(null);
/** The step that the shown one is compared with, if there is one. */
export const referenceStep = signal<number | null>(null);
export const playing = signal(false);

export const lastStep = computed(() => status.value.last_step);
export const step = computed(() => {
  const chosen = chosenStep.value;
  return chosen === null ? lastStep.value : Math.max(0, Math.min(chosen, lastStep.value));
});

export function goToStep(next: number): void {
  chosenStep.value = next >= lastStep.value ? null : Math.max(0, Math.round(next));
}

/** A whole run plays in about this time, regardless of its length. */
const PLAY_MS = 12_000;
const FRAME_MS = 80;

effect(() => {
  if (!playing.value) return undefined;
  const each = Math.max(1, Math.round((lastStep.peek() * FRAME_MS) / PLAY_MS));
  const clock = setInterval(() => {
    const next = step.peek() + each;
    goToStep(next);
    if (next >= lastStep.peek()) playing.value = false;
  }, FRAME_MS);
  return () => clearInterval(clock);
});

export function togglePlay(): void {
  if (!playing.value && chosenStep.value === null) chosenStep.value = 0;
  playing.value = !playing.value;
}
