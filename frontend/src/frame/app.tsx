import { batch, type Signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { Details } from "../details/details";
import { Graph } from "../graph/graph";
import { Columns } from "../panels/columns";
import { columns } from "../panels/state";
import { connected, failure, source, tellFailure } from "../state/live";
import { jumpToGraph } from "../state/places";
import { series, shown, status, view, type View } from "../state/state";
import { Timebar } from "../time/timebar";
import { Activations } from "../training/activations";
import { Findings } from "../training/findings";
import { Flame } from "../training/flame";
import { Gradients } from "../training/gradients";
import { Memory } from "../training/memory";
import { showRuns, showsTable, sort, where } from "../runs/state";
import type { RunsProps } from "../runs/table-state";
import type { ReportsProps } from "../reports/reports";
import { Overview } from "../training/overview";
import { Scalars } from "../training/scalars";
import { Verdict } from "../training/verdict";
import { Tree } from "../tree/tree";
import { Header } from "./header";
import { Keys } from "./keys";
import { LazyView } from "./lazy-view";
import { Splitter } from "./splitter";
import { isDark } from "./theme";
import { offeredViews } from "./views";

const VIEWS: Record<View, () => preact.JSX.Element | null> = {
  reports: Reports,
  overview: Overview,
  graph: Graph,
  gradients: Gradients,
  scalars: Scalars,
  findings: Findings,
  activations: Activations,
  time: Flame,
  memory: Memory,
};

/** The parts that a narrow screen shows one at a time. */
const PARTS = ["modules", "view", "pinned"] as const;
type Part = (typeof PARTS)[number];

function isGone(): boolean {
  return !connected.value && !!shown.value;
}

function wordsWhenGone() {
  const file = shown.value!.run.value?.file;
  return (
    <>
      {status.value.finished ? "Training ended." : "The program has ended or cannot be reached."}{" "}
      {file && (
        <>
          Reopen: <code>torchglass view {file}</code>
        </>
      )}
    </>
  );
}

export function App() {
  const part = useSignal<Part>("view");
  return (
    <>
      <Header />
      {(failure.value || isGone()) && (
        <p class="failure" role="alert">
          {isGone() ? wordsWhenGone() : failure.value}
        </p>
      )}
      {showsTable.value ? <AllRuns /> : <OneRun part={part} />}
      <Keys />
    </>
  );
}

/** The table of a folder of runs. */
function AllRuns() {
  const from = source.value;
  if (!from?.table) return null;
  const props: RunsProps = {
    where: where.value,
    sort: sort.value,
    isDark: isDark.value,
    ask: (text, column) =>
      batch(() => {
        where.value = text;
        sort.value = column;
      }),
    table: from.table,
    curves: from.curves!,
    show: (paths) => void showRuns(paths),
    tellFailure,
  };
  return <LazyView name="runs" props={props} />;
}

/** What verbs such as `tg.compare` returned. */
function Reports() {
  const sent = useSignal<ReportsProps["reports"]>([]);
  useEffect(() => {
    source
      .peek()!
      .reports()
      .then(({ reports }) => (sent.value = reports as ReportsProps["reports"]))
      .catch(tellFailure);
  }, []);
  return <LazyView<ReportsProps> name="reports" props={{ reports: sent.value, open: jumpToGraph }} />;
}

/** A run: its modules, what is shown of it, and what is pinned. */
function OneRun({ part }: { part: Signal<Part> }) {
  const Middle = VIEWS[offeredViews.value.includes(view.value) ? view.value : "graph"];
  // Beside other views than the graph, from which modules are dragged, an empty column would only take room.
  const mayPin = Middle === Graph || part.value === "pinned";
  const hasColumns = series.value.length > 0 && (mayPin || columns.value.length > 0);
  if (Middle === Reports) return <Reports />;
  return (
    <>
      {Middle !== Overview && <Verdict />}
      <main data-part={part.value} class={hasColumns ? (columns.value.length > 1 ? "wide" : "") : "unmeasured"}>
        <div class="side">
          <Tree />
          <Details />
        </div>
        <Splitter of="side" name="Width of the modules" />
        {shown.value ? <Middle /> : <Graph />}
        {hasColumns && (
          <>
            <Splitter of="columns" name="Width of the pinned modules" />
            <Columns />
          </>
        )}
      </main>
      <Timebar />
      <nav class="parts" aria-label="Sections of the page">
        {PARTS.map((one) => (
          <button
            key={one}
            type="button"
            class={part.value === one ? "on" : ""}
            aria-pressed={part.value === one}
            onClick={() => (part.value = one)}
          >
            {one}
          </button>
        ))}
      </nav>
    </>
  );
}
