import { signal } from "@preact/signals";
import { push } from "../graph/calls";
import { rankOfScalar, titleOf, titleOfRun } from "../data/names";
import type { Series } from "../data/records";
import { LogScale, Slider } from "../panels/controls";
import { Plot } from "../panels/plot";
import { keyOf } from "../panels/series";
import { smoothing } from "../panels/state";
import { series, shown, twinsOf } from "../state/state";

/** Scalars of more modules than this are left to the columns. */
const MOST_SHOWN = 120;

/** All scalar series, logged ones first. */
export function Scalars() {
  const store = shown.value!;
  const scalars = series.value.filter((one) => !one.kind);
  const rank = ({ path, name }: Series) => rankOfScalar(path, name);
  const wanted = filter.value.toLowerCase();
  const matching = scalars.filter((one) => nameOf(one).toLowerCase().includes(wanted));
  const ordered = matching.sort((one, other) => rank(one) - rank(other)).slice(0, MOST_SHOWN);
  const prefixes = ordered.map((one) => (one.path ? "Modules" : (/^(.+?)[/.]/.exec(one.name)?.[1] ?? "")));
  // A prefix of a single series is not a group.
  const isGroup = (prefix: string) => prefixes.indexOf(prefix) < prefixes.lastIndexOf(prefix);
  const groups = new Map<string, Series[]>([["", []]]);
  ordered.forEach((one, at) => push(groups, isGroup(prefixes[at]!) ? prefixes[at]! : "", one));
  const shownGroups = [...groups].filter(([, all]) => all.length);
  return (
    <section class="training" aria-label="Scalars">
      <div class="controls">
        <input
          type="search"
          placeholder="Filter"
          aria-label="Filter scalars"
          value={filter.value}
          onInput={(event) => (filter.value = event.currentTarget.value)}
        />
        <LogScale />
        <Slider label="Smoothing" value={smoothing.value} max={0.99} onChange={(value) => (smoothing.value = value)}>
          Smoothing {smoothing.value}
        </Slider>
      </div>
      {shownGroups.map(([prefix, all]) => (
        <div key={prefix}>
          {shownGroups.length > 1 && prefix && <h3>{prefix}</h3>}
          <div class="charts">
            {all.map((one) => (
              <Plot key={keyOf(one)} store={store} series={one} title={nameOf(one)} others={twinsOf(one)} height={170} />
            ))}
          </div>
        </div>
      ))}
      {!ordered.length && <p class="empty">No scalar matches.</p>}
    </section>
  );
}

const filter = signal("");

function nameOf({ path, name }: Series): string {
  return path ? `${path} ${titleOf(name)}` : titleOfRun(name);
}
