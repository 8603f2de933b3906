import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { formatBytes, formatCount, formatDuration, formatExact } from "./formats";
import { connected, lastNews, saved } from "./live";
import { model, run, status } from "./state";

/** A running training that says nothing for this long may have been killed: the page says so. */
const QUIET_SECONDS = 20;

export function Header() {
  const known = model.value;
  return (
    <header>
      <Mark />
      <h1 title={run.value?.command || undefined}>
        <bdi>{run.value?.name ?? "Torchglass"}</bdi>
      </h1>
      {run.value && !isModelAlone() && <State />}
      {status.value.last_step >= 0 && (
        <span class="step" data-testid="step">
          step <b>{formatExact(status.value.last_step)}</b>
        </span>
      )}
      {known && (
        <span class="size">
          {formatCount(known.parameters(0))} parameters · {formatBytes(known.bytes(0))}
        </span>
      )}
    </header>
  );
}

/** A model of which no training was recorded has no state. */
function isModelAlone(): boolean {
  return status.value.finished && status.value.last_step < 0;
}

/** A small glass box, drawn here so that the page needs no picture. */
function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
      <path class="box" d="M16 3 28 9.5v13L16 29 4 22.5v-13Z" />
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
      {text}
    </span>
  );
}

function describe(now: number): { kind: string; text: string } {
  if (status.value.finished) return { kind: "finished", text: "finished" };
  if (saved.value) return { kind: "finished", text: "saved while it ran" };
  if (!connected.value) return { kind: "lost", text: "server gone · showing what was read" };
  if (!lastNews.value) return { kind: "waiting", text: "waiting for a new step" };
  const quiet = (now - lastNews.value) / 1000;
  if (quiet < QUIET_SECONDS) return { kind: "live", text: "live" };
  return { kind: "lost", text: `no new step for ${formatDuration(quiet)}` };
}
