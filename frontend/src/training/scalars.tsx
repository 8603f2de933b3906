import { rankOfScalar, titleOf, titleOfRun } from "../data/names";
import type { Series } from "../data/records";
import { Plot } from "../panels/plot";
import { keyOf } from "../panels/series";
import { series, shown, twinsOf } from "../state/state";

/** Scalars of more modules than this are left to the columns. */
const MOST_SHOWN = 120;

/** All series of single numbers, what a person logged first. */
export function Scalars() {
  const store = shown.value!;
  const scalars = series.value.filter((one) => !one.kind);
  const rank = ({ path, name }: Series) => rankOfScalar(path, name);
  const ordered = scalars.sort((one, other) => rank(one) - rank(other)).slice(0, MOST_SHOWN);
  return (
    <section class="training" aria-label="Scalars">
      <div class="charts">
        {ordered.map((one) => (
          <Plot
            key={keyOf(one)}
            store={store}
            series={one}
            title={one.path ? `${one.path} ${titleOf(one.name)}` : titleOfRun(one.name)}
            others={twinsOf(one)}
            height={170}
          />
        ))}
      </div>
    </section>
  );
}
