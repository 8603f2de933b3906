/** The start screen of a folder: all of its runs, to filter, to sort, to open and to compare. */

import { useEffect } from "preact/hooks";
import { formatExact } from "../data/formats";
import type { RunRow } from "../data/records";
import { offerView } from "../frame/offered-view";
import { Overlay } from "./overlay";
import {
  chosen,
  count,
  keepTable,
  overlaid,
  overlay,
  page,
  PAGE_ROWS,
  problem,
  type RunsProps,
  sort,
  sortBy,
  table,
  toggleChosen,
  where,
} from "./table-state";
import "./runs.css";

offerView<RunsProps>("runs", (props) => {
  page.value = props;
  useEffect(keepTable, []);
  return <RunsTable />;
});

function RunsTable() {
  const sent = table.value;
  return (
    <main class="runs" aria-label="Runs">
      <div class="runs-bar">
        <input
          type="search"
          aria-label="Filter runs"
          placeholder="Filter: lr < 1e-3 and state == 'finished'"
          value={where.value}
          aria-invalid={!!problem.value}
          onInput={(event) => page.value!.ask(event.currentTarget.value, sort.value)}
        />
        <button type="button" disabled={!chosen.value.length} onClick={() => page.value!.show(chosen.value)}>
          {chosen.value.length > 1 ? `Compare ${formatExact(chosen.value.length)} runs` : "Open"}
        </button>
        <button type="button" disabled={!sent?.total} onClick={() => void overlay()}>
          {chosen.value.length ? "Overlay loss of selection" : "Overlay loss"}
        </button>
        {chosen.value.length > 0 && (
          <button type="button" class="plain" onClick={() => (chosen.value = [])}>
            Clear selection
          </button>
        )}
        <span class="dim" role="status" data-testid="answer">
          {problem.value || sent?.answer || "Loading…"}
        </span>
      </div>
      {overlaid.value.length > 0 && <Overlay />}
      {sent && (
        <div class="runs-scroll">
          <table>
            <thead>
              <tr>
                <th scope="col">
                  <span class="unseen">Select</span>
                </th>
                {sent.columns.map(({ key, heading, right }) => (
                  <th key={key} scope="col" class={right ? "number" : ""} aria-sort={sortedBy(key)}>
                    <button type="button" class="plain" onClick={() => sortBy(key)}>
                      {heading}
                      {sort.value === key ? " ▲" : sort.value === `-${key}` ? " ▼" : ""}
                    </button>
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {sent.rows.map((row) => (
                <Row key={row.path} row={row} rights={sent.columns.map(({ right }) => right)} />
              ))}
            </tbody>
          </table>
          {sent.total > sent.rows.length && (
            <button type="button" class="jump" onClick={() => (count.value += PAGE_ROWS)}>
              Show more ({formatExact(sent.total - sent.rows.length)} left)
            </button>
          )}
          {!sent.total && <p class="dim">No runs. New runs appear here automatically.</p>}
          {sent.notes.map((note) => (
            <p key={note} class="dim">
              {note}
            </p>
          ))}
        </div>
      )}
    </main>
  );
}

function sortedBy(key: string): "ascending" | "descending" | undefined {
  return sort.value === key ? "ascending" : sort.value === `-${key}` ? "descending" : undefined;
}

function Row({ row, rights }: { row: RunRow; rights: readonly boolean[] }) {
  const [name = "", ...cells] = row.cells;
  return (
    <tr data-testid="run" class={row.verdict}>
      <td>
        <input
          type="checkbox"
          aria-label={`Select ${name}`}
          checked={chosen.value.includes(row.path)}
          onChange={() => toggleChosen(row.path)}
        />
      </td>
      <th scope="row">
        <button type="button" class="jump" onClick={() => page.value!.show([row.path])}>
          <bdi>{name}</bdi>
        </button>
      </th>
      {cells.map((cell, at) => (
        <td key={at} class={rights[at + 1] ? "number" : ""}>
          {cell}
        </td>
      ))}
    </tr>
  );
}
