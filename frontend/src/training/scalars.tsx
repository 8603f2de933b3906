import { titleOf } from "../data/names";
import { Plot } from "../panels/plot";
import { keyOf } from "../panels/series";
import { series, shown, twinsOf } from "../state/state";

/** Scalars of more modules than this are left to the columns. */
const MOST_SHOWN = 120;

/** All series of single numbers, those of the whole run first. */
export function Scalars() {
  const store = shown.value!;
  const scalars = series.value.filter((one) => !one.kind);
  const ordered = [...scalars.filter((one) => !one.path), ...scalars.filter((one) => one.path)].slice(0, MOST_SHOWN);
  return (
    <section class="training" aria-label="Scalars">
      <div class="charts">
        {ordered.map((one) => (
          <Plot
            key={keyOf(one)}
            store={store}
            series={one}
            title={[one.path, titleOf(one.name)].filter(Boolean).join(" ")}
            others={twinsOf(one)}
            height={170}
          />
        ))}
      </div>
    </section>
  );
}
