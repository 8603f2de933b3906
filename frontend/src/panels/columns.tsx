/** The columns at the right: the series of pinned nodes, over steps. */

import { formatShare } from "../data/formats";
import type { Model } from "../data/model";
import { titleOf } from "../data/names";
import type { Series } from "../data/records";
import type { RunStore } from "../data/store";
import type { Node } from "../graph/calls";
import { graph, showNode } from "../graph/state";
import { moduleOf, wordsFor } from "../graph/words";
import { model, nameOfRun, series, shown, twinsOf } from "../state/state";
import { LogScale, Slider } from "./controls";
import { Plot } from "./plot";
import { keyOf, sectionsOf, seriesOf } from "./series";
import {
  chosenRejection,
  columns,
  MODES,
  mode,
  moveColumn,
  pins,
  rejected,
  removeColumn,
  unpin,
} from "./state";

const MODE_NAMES = { heat: "Heat map", percentiles: "Bands", lines: "Lines" };

const MODE_TITLES = {
  heat: "One column per step, darker where there are more values",
  percentiles: "Median, 25–75 % and 5–95 % of the values",
  lines: "Mean, standard deviation, minimum and maximum",
};

export function Columns() {
  const all = columns.value;
  return (
    <section class="columns-pane" aria-label="Pinned modules" data-testid="columns">
      <Controls />
      <div class="strip">
        {all.map((keys, at) => (
          <Column key={at} keys={keys} at={at} last={all.length - 1} />
        ))}
        <div class={`drop ${all.length ? "more" : "first"}`} data-column={all.length} data-testid="drop">
          {all.length ? (
            <p>
              <b>+</b> drop here for a new column
            </p>
          ) : (
            <p>
              <b>Drag a module here</b> to see its inputs, outputs, weights and gradients over time. Or select it and
              press <kbd>p</kbd>.
            </p>
          )}
        </div>
      </div>
    </section>
  );
}

function Controls() {
  return (
    <div class="controls">
      <span class="buttons" role="radiogroup" aria-label="Drawn as">
        {MODES.map((one) => (
          <button
            key={one}
            type="button"
            role="radio"
            aria-checked={mode.value === one}
            title={MODE_TITLES[one]}
            class={mode.value === one ? "on" : ""}
            onClick={() => (mode.value = one)}
          >
            {MODE_NAMES[one]}
          </button>
        ))}
      </span>
      <LogScale />
      <Slider
        label="Share of outliers hidden"
        title="Share of extreme values hidden from the axis"
        value={rejected.value}
        max={0.3}
        onChange={(value) => (chosenRejection.value = value)}
      >
        Hide outliers {formatShare(rejected.value, 1) || "0%"}
      </Slider>
    </div>
  );
}

function Column({ keys, at, last }: { keys: readonly string[]; at: number; last: number }) {
  return (
    <div class="column" data-column={at} data-testid="column" role="group" aria-label={`Column ${at + 1}`}>
      {last > 0 && (
        <div class="column-head">
          <span class="dim">column {at + 1}</span>
          <button type="button" aria-label="Move column left" disabled={at === 0} onClick={() => moveColumn(at, -1)}>
            ←
          </button>
          <button type="button" aria-label="Move column right" disabled={at === last} onClick={() => moveColumn(at, 1)}>
            →
          </button>
          <button type="button" aria-label="Remove column" onClick={() => removeColumn(at)}>
            ×
          </button>
        </div>
      )}
      {keys.map((key) => (
        <Panel key={key} of={key} />
      ))}
    </div>
  );
}

function Panel({ of }: { of: string }) {
  const [known, store] = [model.value, shown.value];
  const id = graph.value?.find(of);
  if (!known || !store) return null;
  if (id === undefined) return <Lost of={of} />;
  const node = graph.value!.node(id);
  const { title, subtitle } = wordsFor(known, { key: of, kind: node.kind, node, members: [] });
  const color = pins.value.get(of);
  return (
    <article class="panel" data-testid="panel" aria-label={title}>
      <div class="panel-head" style={{ borderColor: color }}>
        <button
          type="button"
          class="jump"
          title={`Show ${node.path || known.name} in the graph`}
          onClick={() => showNode(node)}
        >
          <b>
            <bdi>{title}</bdi>
          </b>{" "}
          <span class="dim">{subtitle}</span>
        </button>
        <button type="button" aria-label={`Remove ${title}`} onClick={() => unpin(of)}>
          ×
        </button>
      </div>
      <Sections node={node} known={known} store={store} color={color} />
    </article>
  );
}

function Lost({ of }: { of: string }) {
  return (
    <article class="panel">
      <p class="empty">
        <bdi>{of}</bdi> is not in this graph.{" "}
        <button type="button" class="jump" onClick={() => unpin(of)}>
          Remove
        </button>
      </p>
    </article>
  );
}

/** One plot with all runs; distributions, which would hide each other, are side by side. */
function plotsOf(one: Series, store: RunStore, color: string | undefined) {
  const twins = twinsOf(one);
  const title = titleOf(one.name, false);
  const isSpread = one.kind === "histogram" && mode.value !== "lines";
  if (!isSpread)
    return [<Plot key={keyOf(one)} store={store} series={one} title={title} color={color} others={twins} />];
  const all = [{ store, series: one }, ...twins];
  return all.map((each) => (
    <Plot
      key={`${each.store.number} ${keyOf(each.series)}`}
      store={each.store}
      series={each.series}
      title={twins.length ? `${nameOfRun(each.store)}: ${title}` : title}
      color={each.store === store ? color : "var(--warning)"}
      others={all.filter((other) => other !== each)}
    />
  ));
}

function Sections({
  node,
  known,
  store,
  color,
}: {
  node: Node;
  known: Model;
  store: RunStore;
  color: string | undefined;
}) {
  const slots = new Set(moduleOf(known, node)?.slots?.map((slot) => slot.name));
  const sections = sectionsOf(seriesOf(graph.value!, node.id, series.value), (name) => slots.has(name));
  if (!sections.length) return <p class="empty">Nothing recorded here.</p>;
  return (
    <>
      {sections.map((section) => (
        <section key={section.title} class="section">
          <h3>{section.title}</h3>
          <div class="pairs">
            {section.pairs
              .flatMap((pair) => [pair.value, pair.gradient])
              .filter((one) => one !== undefined)
              .flatMap((one) => plotsOf(one, store, color))}
          </div>
        </section>
      ))}
    </>
  );
}
