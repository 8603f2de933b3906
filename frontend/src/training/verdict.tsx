/** Whether a training is healthy: in one line above every view, and with its reasons in the overview. */

import { computed } from "@preact/signals";
import { formatExact } from "../data/formats";
import type { Finding, Status } from "../data/records";
import { saved } from "../state/live";
import { chosenView, run, shown, status } from "../state/state";
import { SIGNS } from "./badge";
import { together } from "./finding-groups";
import { FindingPlace } from "./findings";
import { Prose } from "./prose";

const VERDICTS = {
  error: { word: "Broken", sign: SIGNS.error },
  warning: { word: "Warning", sign: SIGNS.warning },
  info: { word: "Healthy", sign: "✓" },
} as const;

const verdict = computed(() => {
  const { state, how = "" } = status.value;
  const groups = together(shown.value?.findings.value ?? []).filter(([one]) => one!.severity !== "info");
  const hasFailed = state === "stopped" || state === "killed";
  const severity = hasFailed ? "error" : (groups[0]?.[0]?.severity ?? "info");
  const more = groups.length > 1 ? ` (${formatExact(groups.length)} problems in total)` : "";
  return { ...VERDICTS[severity], severity, first: groups[0]?.[0], more, failed: hasFailed ? how : "" };
});

/** Whether there is a verdict: a model without a training has none before something was found. */
const isJudged = computed(() => status.value.last_step >= 0 || !!status.value.state || !!verdict.value.first);

/** The verdict and the first problem in one line, with a link to the findings. */
export function Verdict() {
  if (!shown.value || !isJudged.value) return null;
  const { word, sign, severity, first, more, failed } = verdict.value;
  return (
    <p class={`verdict ${severity}`} role="status" data-testid="verdict">
      <Sign severity={severity} text={sign} />
      <b>{word}</b>
      {first ? (
        <button type="button" class="jump" onClick={() => (chosenView.value = "findings")}>
          <Prose text={first.message} />
          {more}
        </button>
      ) : (
        <span>{failed || <NoProblems />}</span>
      )}
      {first?.remedy && (
        <span class="dim">
          <Prose text={first.remedy} />
        </span>
      )}
    </p>
  );
}

function Sign({ severity, text }: { severity: Finding["severity"]; text: string }) {
  return (
    <span class={`sign ${severity === "info" ? "good" : severity}`} aria-hidden="true">
      {text}
    </span>
  );
}

/** The step changes all the time, so screen readers skip it. */
function NoProblems() {
  const last = status.value.last_step;
  return (
    <>
      no problems found{last >= 0 && <span aria-live="off"> up to step {formatExact(last)}</span>}
    </>
  );
}

/** The full verdict: what is wrong, where, since when, what to do, and how the run ended. */
export function VerdictCard() {
  const { word, sign, severity, first, more } = verdict.value;
  return (
    <div class={`verdict card ${severity}`} data-testid="verdict">
      <Sign severity={severity} text={isJudged.value ? sign : "…"} />
      <div>
        <p class="says" role="status">
          {isJudged.value ? (
            <>
              <b>{word}:</b>{" "}
              {first ? <Prose text={first.message} /> : severity === "error" ? "the run failed" : <NoProblems />}
            </>
          ) : (
            "No steps recorded yet"
          )}
        </p>
        {first && (
          <p class="dim">
            <FindingPlace finding={first} />
            {more}
          </p>
        )}
        {first?.remedy && (
          <p>
            What to do: <Prose text={first.remedy} />
          </p>
        )}
        <p class="dim" data-testid="ending">
          {endingOf(status.value)}
        </p>
        <Settings />
      </div>
    </div>
  );
}

/** What the training was started with: its settings, its notes and its commit. */
function Settings() {
  const { config = {}, notes, git_commit } = run.value ?? {};
  const settings = Object.entries(config);
  if (!settings.length && !notes && !git_commit) return null;
  return (
    <dl class="settings" data-testid="settings">
      {notes && <Setting name="Notes" value={notes} />}
      {settings.map(([name, value]) => (
        <Setting key={name} name={name} value={String(value)} />
      ))}
      {git_commit && <Setting name="Commit" value={git_commit.slice(0, 10)} />}
    </dl>
  );
}

function Setting({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>
        <bdi>{value}</bdi>
      </dd>
    </div>
  );
}

/** How the run ended, or that it is running. */
function endingOf({ last_step, finished, state, how = "" }: Status): string {
  const step = `step ${formatExact(last_step)}`;
  const said = how.charAt(0).toUpperCase() + how.slice(1);
  if (state === "stopped" || state === "interrupted") return said;
  const words = state ? said : finished ? "Finished" : saved.value ? "Saved during the run" : "Running";
  return last_step < 0 ? words : finished ? `${words} at ${step}` : `${words}, ${step}`;
}
