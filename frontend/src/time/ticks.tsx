import { formatExact } from "../data/formats";
import { problemSteps } from "../state/state";
import { goToStep, lastStep } from "../state/time";

/** More would be one red band. */
const MOST_TICKS = 400;

/** Marks above the slider where problems begin. By keyboard they are reached through the list of findings. */
export function Ticks() {
  return (
    <span class="ticks" aria-hidden="true">
      {problemSteps.value.slice(0, MOST_TICKS).map(([step, { severity, message }]) => (
        <i
          key={step}
          class={severity}
          data-testid="tick"
          title={`Step ${formatExact(step)}: ${message}`}
          style={{ insetInlineStart: `${(100 * Math.min(step, lastStep.value)) / Math.max(1, lastStep.value)}%` }}
          onClick={() => goToStep(step)}
        />
      ))}
    </span>
  );
}
