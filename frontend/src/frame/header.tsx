import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { formatBytes, formatCount, formatDuration, formatExact, formatMoment } from "../data/formats";
import { Exports } from "../export/menu";
import { coloring } from "../graph/colors";
import { showsTable } from "../runs/state";
import { awaitsRuns, connected, hasTable, saved, stores } from "../state/live";
import type { RunStore } from "../data/store";
import { chosenView, comparedRuns, model, nameOfRun, reportKinds, run, shown, shownRun, status, view, type View } from "../state/state";
import { together } from "../training/finding-groups";
import { Search } from "../tree/search";
import { offeredViews } from "./views";
import { isDark, toggleTheme } from "./theme";

/** A running training without news for this long may have been killed: the page says so. */
const QUIET_SECONDS = 20;

const VIEW_NAMES: Record<View, string> = {
  reports: "Reports",
  overview: "Overview",
  graph: "Graph",
  gradients: "Gradients",
  scalars: "Scalars",
  findings: "Findings",
  activations: "Activations",
  time: "Time",
  memory: "Memory",
};

export function Header() {
  return (
    <header>
      <Mark />
      {hasTable.value && (
        <button
          type="button"
          class="plain all-runs"
          aria-pressed={showsTable.value}
          disabled={showsTable.value && !shown.value}
          onClick={() => (showsTable.value = !showsTable.value)}
        >
          All runs
        </button>
      )}
      {showsTable.value ? <h1>Runs</h1> : <OfRun />}
      <button
        type="button"
        class="plain"
        aria-label={isDark.value ? "Light colors" : "Dark colors"}
        title={isDark.value ? "Light colors" : "Dark colors"}
        onClick={toggleTheme}
      >
        {isDark.value ? "☀" : "☾"}
      </button>
    </header>
  );
}

function OfRun() {
  const known = model.value;
  return (
    <>
      <h1 title={run.value?.command || undefined} class={stores.value.length > 1 ? "unseen" : ""}>
        <bdi>{run.value?.name ?? "Torchglass"}</bdi>
      </h1>
      <Runs />
      {(awaitsRuns.value || (run.value && !isModelAlone())) && <State />}
      {known && (
        <span class="size" title={`${formatExact(known.parameters(0))} parameters`}>
          {formatCount(known.parameters(0))} parameters · {formatBytes(known.bytes(0))}
        </span>
      )}
      {offeredViews.value.length > 1 && <Tabs />}
      <Search />
      <Exports />
    </>
  );
}

function Tabs() {
  return (
    <nav class="tabs" aria-label="Views">
      {offeredViews.value.map((one) => (
        <button
          key={one}
          type="button"
          class={view.value === one ? "on" : ""}
          aria-current={view.value === one ? "page" : undefined}
          onClick={() => (chosenView.value = one)}
        >
          {one === "reports" && reportKinds.value.length === 1 ? reportKinds.value[0] : VIEW_NAMES[one]}
          {one === "findings" && <span class="badge">{together(shown.value!.findings.value).length}</span>}
        </button>
      ))}
    </nav>
  );
}

/** The shown run, and the runs compared with it. */
function Runs() {
  const all = stores.value;
  if (all.length < 2) return null;
  const names = all.map(labelOf);
  // Only models in memory, which have no files, can have equal names.
  const name = (at: number) => `${names.indexOf(names[at]!) < names.lastIndexOf(names[at]!) ? `${at + 1} ` : ""}${names[at]}`;
  return (
    <>
      <select
        aria-label="Run"
        value={shownRun.value}
        onChange={(event) => (shownRun.value = Number(event.currentTarget.value))}
      >
        {all.map((store, at) => (
          <option key={store.number} value={at}>
            {name(at)}
          </option>
        ))}
      </select>
      <select
        aria-label="Compare with"
        value={comparedRuns.value.length > 1 ? "all" : (comparedRuns.value[0] ?? "")}
        onChange={(event) => compareWith(event.currentTarget.value)}
      >
        <option value="">Compare with…</option>
        {all.map((store, at) =>
          at === shownRun.value ? null : (
            <option key={store.number} value={at}>
              with {name(at)}
            </option>
          ),
        )}
        {all.length > 2 && <option value="all">with all others</option>}
      </select>
    </>
  );
}

/** A run in one line: its file, start time and progress. */
function labelOf(store: RunStore): string {
  const [run, { last_step, finished, problem, state }] = [store.run.value, store.status.value];
  const parts = [
    run?.world_size ? `${run.name} ${nameOfRun(store)}` : nameOfRun(store),
    run?.file && formatMoment(run.created_ns / 1e6),
    last_step >= 0 && `${formatExact(last_step + 1)} steps`,
    problem ? "cannot be read" : last_step >= 0 && (state ?? (finished ? "finished" : "running")),
  ];
  return parts.filter(Boolean).join(" · ");
}

function compareWith(choice: string): void {
  const others = stores.value.map((store) => store.number).filter((number) => number !== shownRun.value);
  comparedRuns.value = choice === "all" ? others : choice ? [Number(choice)] : [];
  if (choice && coloring.value === "class") coloring.value = "difference";
  else if (!choice && coloring.value === "difference") coloring.value = "class";
}

/** A model without a recorded training has no state. */
function isModelAlone(): boolean {
  return status.value.finished && status.value.last_step < 0;
}

/** A small glass box, drawn here so that the page needs no picture. */
function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
      <path class="glass" d="M16 3 28 9.5v13L16 29 4 22.5v-13Z" />
      <path class="edges" d="M4 9.5 16 16l12-6.5M16 16v13" />
      <circle cx="16" cy="16" r="3.4" />
    </svg>
  );
}

function State() {
  const now = useSignal(Date.now());
  useEffect(() => {
    const clock = setInterval(() => (now.value = Date.now()), 1000);
    return () => clearInterval(clock);
  }, []);
  const { kind, text } = describe(now.value);
  return (
    <span class={`state ${kind}`} role="status" data-testid="state">
      <i aria-hidden="true" />
      <span title={text}>{text}</span>
    </span>
  );
}

function describe(now: number): { kind: string; text: string } {
  if (awaitsRuns.value && connected.value) return { kind: "waiting", text: "waiting for a run" };
  const news = shown.value?.lastNews.value ?? 0;
  if (status.value.problem) return { kind: "lost", text: "cannot be read" };
  const { state, how } = status.value;
  if (state === "stopped" || state === "interrupted" || state === "killed") return { kind: "lost", text: how ?? state };
  if (status.value.finished) return { kind: "finished", text: "finished" };
  if (saved.value) return { kind: "finished", text: "saved during training" };
  if (!connected.value) return { kind: "lost", text: "Disconnected · showing the last data received" };
  if (!news) return { kind: "waiting", text: "waiting for a new step" };
  const quiet = (now - news) / 1000;
  if (quiet < QUIET_SECONDS) return { kind: "live", text: "live" };
  return { kind: "lost", text: `no new step for ${formatDuration(quiet)}` };
}
