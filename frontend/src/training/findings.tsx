import { formatExact } from "../data/formats";
import { titleOf } from "../data/names";
import type { Finding } from "../data/records";
import { graph } from "../graph/state";
import { model, series, shown } from "../state/state";
import { follow } from "./show-finding";
import { leadOf, stepsOf, together } from "./finding-groups";
import { Prose } from "./prose";

/** The findings, the worst first; each links to its module and step. */
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
        {finding.remedy && (
          <p class="remedy">
            What to do: <Prose text={finding.remedy} />
          </p>
        )}
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
        <p key={at}>
          <Prose text={sentence} />
        </p>
      ))}
    </details>
  );
}

function Words({ finding }: { finding: Finding }) {
  return (
    <>
      <p>
        <Prose text={finding.message} />
      </p>
      <p class="dim">
        <FindingPlace finding={finding} />
        {finding.phase && finding.phase !== "forward" && ` · ${finding.phase}`}
        {finding.source && ` · ${finding.source.file}:${finding.source.line}`}
      </p>
    </>
  );
}

/** A link to the module and step of a problem. */
export function FindingPlace({ finding }: { finding: Finding }) {
  const { path, series: about, call } = leadOf(finding, series.value, graph.value);
  const first = stepsOf([finding])?.[0];
  const parts = [
    path || model.value?.name,
    call && call.number > 1 && `call ${call.number}`,
    about && titleOf(about.name, false),
    finding.op,
    first !== undefined && `step ${formatExact(first)}`,
  ];
  return (
    <button type="button" class="jump" onClick={() => follow(finding)}>
      <bdi>{parts.filter(Boolean).join(" · ")}</bdi>
    </button>
  );
}
