import { formatExact, formatNumber } from "../data/formats";
import { titleOf } from "../data/names";
import type { Points } from "../data/points";
import type { Series } from "../data/records";
import type { RunStore } from "../data/store";
import { graph } from "../graph/state";
import { seriesOf } from "../panels/series";
import { usePoints } from "../state/live";
import { series, shown } from "../state/state";
import { referenceStep, step } from "../state/time";

/** More rows would hide the other details of a module. */
const MOST_ROWS = 30;

/** The values of a node at the compared step and at the shown one. */
export function Since({ of }: { of: number }) {
  const [store, marked] = [shown.value, referenceStep.value];
  if (!store || marked === null) return null;
  const here = seriesOf(graph.value!, of, series.value).slice(0, MOST_ROWS);
  if (!here.length) return null;
  return (
    <section class="since" aria-label="Since the compared step" data-testid="since">
      <h3>
        Step {formatExact(marked)} → {formatExact(step.value)}
      </h3>
      <dl>
        {here.map((one) => (
          <Row key={one.id} store={store} one={one} from={marked} to={step.value} />
        ))}
      </dl>
    </section>
  );
}

function Row({ store, one, from, to }: { store: RunStore; one: Series; from: number; to: number }) {
  const points = usePoints(store, one.id);
  const [before, now] = [pointAt(points, from), pointAt(points, to)];
  return (
    <div>
      <dt>
        <bdi>{titleOf(one.name, false)}</bdi>
        {before && now && <b title="Ratio of the two steps">{timesAs(sizeOf(now), sizeOf(before))}</b>}
      </dt>
      <dd>
        {spreadOf(before)} <span class="dim">→</span> {spreadOf(now)}
      </dd>
      {before?.["value"] === undefined && (
        <dd class="dim">
          {rangeOf(before)} → {rangeOf(now)}
        </dd>
      )}
    </div>
  );
}

/** The fields of one point: "value", or "mean", "std", "min", "max" … */
type Point = Readonly<Record<string, number>>;

function pointAt(points: Points | undefined, at: number): Point | undefined {
  const index = points?.steps.findLastIndex((one) => one <= at) ?? -1;
  if (!points || index < 0) return undefined;
  return Object.fromEntries(Object.entries(points.columns).map(([field, values]) => [field, values[index]!]));
}

function spreadOf(point: Point | undefined): string {
  if (!point) return "–";
  const { value, mean = NaN, std = NaN } = point;
  return value === undefined ? `${formatNumber(mean)} ± ${formatNumber(std)}` : formatNumber(value);
}

function rangeOf(point: Point | undefined): string {
  return point ? `${formatNumber(point["min"] ?? NaN)} … ${formatNumber(point["max"] ?? NaN)}` : "–";
}

/** The root mean square, or the magnitude of a scalar. */
function sizeOf({ value, mean = NaN, std = NaN }: Point): number {
  return value === undefined ? Math.hypot(mean, std) : Math.abs(value);
}

function timesAs(now: number, before: number): string {
  return before > 0 && Number.isFinite(now / before) ? `× ${formatNumber(now / before)}` : "–";
}
