import { formatExact } from "../data/formats";
import { chosenStep, goToStep, lastStep, playing, referenceStep, step, togglePlay } from "../state/time";
import { coloring, isChange, offered } from "../graph/colors";
import { shown, status } from "../state/state";
import { Ticks } from "./ticks";

function toggleReference(): void {
  const isOff = referenceStep.value === null;
  referenceStep.value = isOff ? step.value : null;
  // Series that are still being read may turn out to be gradients.
  const usual = shown.value?.series.value.length ? coloring.value : "change";
  if (isOff) coloring.value = offered.value.find(isChange) ?? usual;
  else if (isChange(coloring.value)) coloring.value = "class";
}

/** The slider that sets the step everywhere. */
export function Timebar() {
  if (lastStep.value < 0) return null;
  const follows = chosenStep.value === null;
  return (
    <footer class="timebar" aria-label="Time">
      <button
        type="button"
        class="plain"
        aria-label={playing.value ? "Pause" : "Play"}
        onClick={togglePlay}
        disabled={!lastStep.value}
      >
        {playing.value ? "❚❚" : "▶"}
      </button>
      <span class="slide">
        <Ticks />
        <input
          type="range"
          aria-label="Step"
          min="0"
          max={lastStep.value}
          step="1"
          value={step.value}
          onInput={(event) => {
            playing.value = false;
            goToStep(Number(event.currentTarget.value));
          }}
        />
      </span>
      <span class="step" data-testid="step">
        step <b>{formatExact(step.value)}</b>
        {!follows && <span class="dim"> of {formatExact(lastStep.value)}</span>}
      </span>
      <button
        type="button"
        class={`mark-step ${referenceStep.value === null ? "" : "on"}`}
        aria-pressed={referenceStep.value !== null}
        title="Compare colors and small histograms with this step"
        onClick={toggleReference}
      >
        {referenceStep.value === null ? "Compare from here" : `vs step ${formatExact(referenceStep.value)}`}
      </button>
      <button
        type="button"
        class={`follow ${follows ? "on" : ""}`}
        aria-pressed={follows}
        onClick={() => (chosenStep.value = null)}
      >
        {status.value.finished ? "Latest" : "Follow"}
      </button>
    </footer>
  );
}
