/** The overview of a training: verdict, status, loss, findings over steps, layers × steps. */

import { signal } from "@preact/signals";
import { formatExact } from "../data/formats";
import type { Finding, Series } from "../data/records";
import { Plot } from "../panels/plot";
import { keyOf } from "../panels/series";
import { usePoints } from "../state/live";
import { chosenView, model, series, shown, status, twinsOf } from "../state/state";
import { SIGNS } from "./badge";
import { stepsOf, together } from "./finding-groups";
import { LayerMap } from "./layer-map";
import { Prose } from "./prose";
import { follow } from "./show-finding";
import { VerdictCard } from "./verdict";

/** All parts share one axis of steps, right of names with this width. */
const GUTTER = 150;
const NARROW_GUTTER = 84;
const narrowScreen = matchMedia("(max-width: 860px)");
const isNarrow = signal(narrowScreen.matches);
narrowScreen.addEventListener("change", () => (isNarrow.value = narrowScreen.matches));
const MOST_EVENTS = 8;

export function Overview() {
  const store = shown.value!;
  const loss = series.value.find((one) => one.id === store.loss.value);
  const points = usePoints(store, loss?.id);
  const { last_step, finished } = status.value;
  const first = Math.min(points?.steps[0] ?? Infinity, ...[...store.layers.value.values()].flatMap(({ starts }) => starts[0] ?? []));
  const span = [Number.isFinite(first) ? first : 0, Math.max(1, last_step + 1)] as const;
  const hasBegun = last_step >= 0;
  return (
    <section class="training overview" aria-label="Overview">
      <VerdictCard />
      {hasBegun && loss && <Loss series={loss} span={span} />}
      {hasBegun && !loss && (
        <p class="dim">
          No loss was logged{finished ? "" : " yet"}. <code>watcher.log("loss", loss)</code> shows it here.
        </p>
      )}
      <Timeline span={span} />
      {hasBegun && <LayerMap span={span} />}
    </section>
  );
}

function Loss({ series, span }: { series: Series; span: readonly [number, number] }) {
  return (
    <div class="card">
      <Plot
        key={keyOf(series)}
        store={shown.value!}
        series={series}
        title={series.name}
        others={twinsOf(series)}
        height={170}
        gutter={isNarrow.value ? NARROW_GUTTER : GUTTER}
        span={span}
      />
    </div>
  );
}

/** One bar for each problem, from the first step that shows it to the last. */
function Timeline({ span }: { span: readonly [number, number] }) {
  const events = together(shown.value!.findings.value);
  if (!events.length) return null;
  const rest = events.length - MOST_EVENTS;
  return (
    <div class="card">
      <div class="card-head">
        <h2>Findings</h2>
      </div>
      <ul class="events">
        {events.slice(0, MOST_EVENTS).map((group, at) => (
          <Event key={at} group={group} span={span} />
        ))}
      </ul>
      {rest > 0 && (
        <button type="button" class="jump" onClick={() => (chosenView.value = "findings")}>
          Show all {formatExact(events.length)} findings
        </button>
      )}
    </div>
  );
}

function Event({ group, span: [from, to] }: { group: readonly Finding[]; span: readonly [number, number] }) {
  const finding = group[0]!;
  const steps = stepsOf(group);
  const [first, last] = steps ?? [from, to - 1];
  const share = (at: number) => Math.max(0, Math.min(100, (100 * (at - from)) / (to - from)));
  const range = first === last ? `step ${formatExact(first)}` : `steps ${formatExact(first)}–${formatExact(last)}`;
  const isSaid = finding.message.includes(range);
  return (
    <li>
      <button type="button" class={`event ${finding.severity}`} data-testid="event" onClick={() => follow(finding)}>
        <span class="where">
          <span class={`sign ${finding.severity}`} role="img" aria-label={finding.severity}>
            {SIGNS[finding.severity]}
          </span>
          <span class="path" title={finding.path}>
            <bdi>{finding.path || model.value?.name}</bdi>
          </span>
        </span>
        <span class="track">
          <i class={steps ? "" : "always"} style={{ insetInlineStart: `${share(first)}%`, width: `${share(last + 1) - share(first)}%` }} />
        </span>
        <span class="says" title={finding.message}>
          <Prose text={finding.message} /> {steps && !isSaid && <span class="dim">seen at {range}</span>}
        </span>
      </button>
    </li>
  );
}
