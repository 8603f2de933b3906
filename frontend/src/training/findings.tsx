import { formatExact } from "../data/formats";
import { titleOf } from "../data/names";
import type { Finding } from "../data/records";
import { graph } from "../graph/state";
import { model, series, shown, status, view } from "../state/state";
import { follow } from "./show-finding";
import { leadOf, together } from "./finding-groups";

/** The problems that were found, the worst first; each leads to its place. */
export function Findings() {
  return (
    <section class="training" aria-label="Findings">
      <ul class="findings">
        {together(shown.value!.findings.value).map(([first, ...rest], at) => (
          <Row key={at} finding={first!} rest={rest} />
        ))}
      </ul>
    </section>
  );
}

function Row({ finding, rest }: { finding: Finding; rest: readonly Finding[] }) {
  return (
    <li class={finding.severity} data-testid="finding">
      <span class="severity">{finding.severity}</span>
      <div>
        <Words finding={finding} />
        {finding.remedy && <p class="remedy">What to do: {finding.remedy}</p>}
        <Consequences of={finding} />
        {rest.length > 0 && (
          <details>
            <summary>
              Spread to {formatExact(rest.length)} more {rest.length === 1 ? "tensor" : "tensors"}
            </summary>
            {rest.map((one, at) => (
              <Words key={at} finding={one} />
            ))}
          </details>
        )}
      </div>
    </li>
  );
}

function Consequences({ of }: { of: Finding }) {
  const all = of.consequences ?? [];
  if (!all.length) return null;
  return (
    <details>
      <summary>Caused {formatExact(all.length)} more</summary>
      {all.map((sentence, at) => (
        <p key={at}>{sentence}</p>
      ))}
    </details>
  );
}

const VERDICTS = { error: "Broken", warning: "Warning", info: "Healthy" } as const;

/** Whether a training is healthy, and what is wrong first of all; leads to the findings. */
export function Verdict() {
  const { last_step, state, how } = status.value;
  if (!shown.value || last_step < 0) return null;
  const problems = shown.value.findings.value.filter(({ severity }) => severity !== "info");
  const hasFailed = state === "stopped" || state === "killed";
  const worst = hasFailed ? "error" : (together(problems)[0]?.[0]?.severity ?? "info");
  const first = together(problems)[0]?.[0];
  const more = problems.length > 1 ? ` (${formatExact(problems.length)} problems in all)` : "";
  return (
    <p class={`verdict ${worst}`} role="status" data-testid="verdict">
      <b>{VERDICTS[worst]}</b>
      {first ? (
        <button type="button" class="jump" onClick={() => (view.value = "findings")}>
          {first.message}
          {more}
        </button>
      ) : (
        <span>{hasFailed ? how : `no problems found in ${formatExact(last_step + 1)} steps`}</span>
      )}
      {first?.remedy && <span class="dim">{first.remedy}</span>}
    </p>
  );
}

function Words({ finding }: { finding: Finding }) {
  return (
    <>
      <p>{finding.message}</p>
      <p class="dim">
        <FindingPlace finding={finding} />
        {finding.phase && finding.phase !== "forward" && ` · ${finding.phase}`}
        {finding.source && ` · ${finding.source.file}:${finding.source.line}`}
      </p>
    </>
  );
}

/** Where and when a problem was found; leads there. */
export function FindingPlace({ finding }: { finding: Finding }) {
  const { path, series: about, call } = leadOf(finding, series.value, graph.value);
  const parts = [
    path || model.value?.name,
    call && call.number > 1 && `call ${call.number}`,
    about && titleOf(about.name, false),
    finding.op,
    finding.step !== undefined && `step ${formatExact(finding.step)}`,
  ];
  return (
    <button type="button" class="jump" onClick={() => follow(finding)}>
      <bdi>{parts.filter(Boolean).join(" · ")}</bdi>
    </button>
  );
}
