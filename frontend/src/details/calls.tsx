import { formatNumber, formatShape } from "../data/formats";
import { readNumber } from "../data/points";
import type { CallStatistics, Measured, Sent } from "../data/records";
import { formatTime } from "../graph/colors";
import { shown } from "../state/state";

const MOST_CALLS = 20;

/** The last calls of a module: inputs, outputs and time of each. */
export function Calls({ path }: { path: string }) {
  const calls = shown.value?.statistics.value.get(path)?.calls ?? [];
  if (!calls.length) return null;
  return (
    <div class="scroll">
      <table class="calls">
        <caption>Calls</caption>
        <thead>
          <tr>
            <th scope="col">call</th>
            <th scope="col">time</th>
            <th scope="col">tensor</th>
            <th scope="col">shape</th>
            <th scope="col">mean ± std</th>
            <th scope="col">range</th>
          </tr>
        </thead>
        <tbody>{calls.slice(-MOST_CALLS).map(rowsOf)}</tbody>
      </table>
    </div>
  );
}

const format = (value: Sent) => formatNumber(readNumber(value));

function rowsOf(call: CallStatistics) {
  const named = (side: string, all: readonly Measured[] = []) =>
    all.map((one) => [[side, one.place].filter(Boolean).join(" "), one] as const);
  const tensors = [...named("in", call.inputs), ...named("out", call.outputs)];
  return tensors.map(([name, { spec, stats }], at) => (
    <tr key={`${call.number} ${at}`}>
      {at === 0 && (
        <>
          <th scope="row" rowSpan={tensors.length}>
            {call.number}
            {call.error && <span class="flag">{call.error}</span>}
          </th>
          <td rowSpan={tensors.length}>{formatTime(call.total_ns ?? 0)}</td>
        </>
      )}
      <td>{name}</td>
      <td>{formatShape(spec.shape)}</td>
      <td>{stats ? `${format(stats.mean)} ± ${format(stats.std)}` : "–"}</td>
      <td>
        {stats ? `${format(stats.min)} … ${format(stats.max)}` : "–"}
        {stats?.nan ? <span class="flag">{stats.nan} NaN</span> : null}
        {stats?.inf ? <span class="flag">{stats.inf} Inf</span> : null}
      </td>
    </tr>
  ));
}
