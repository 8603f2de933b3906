import type { Finding } from "../data/records";
import { model, shown, view } from "../state/state";
import { jump } from "../state/places";
import { goToStep } from "../state/time";

const SEVERITIES = ["error", "warning", "note"] as const;

/** The problems that were found, the worst first; each leads to its place. */
export function Findings() {
  const all = shown.value!.findings.value;
  const ordered = SEVERITIES.flatMap((severity) => all.filter((one) => one.severity === severity));
  return (
    <section class="training" aria-label="Findings">
      <ul class="findings">
        {ordered.map((finding, at) => (
          <Row key={at} finding={finding} />
        ))}
      </ul>
    </section>
  );
}

function Row({ finding }: { finding: Finding }) {
  const id = model.value?.find(finding.path ?? "");
  const go = () => {
    view.value = "graph";
    if (finding.step !== undefined) goToStep(finding.step);
    if (id !== undefined) jump(id);
  };
  return (
    <li class={finding.severity} data-testid="finding">
      <span class="severity">{finding.severity}</span>
      <div>
        <p>{finding.message}</p>
        <p class="dim">
          <button type="button" class="jump" onClick={go}>
            <bdi>{finding.path || model.value?.name}</bdi>
          </button>
          {finding.op && ` · ${finding.op}`}
          {finding.phase && finding.phase !== "forward" && ` · ${finding.phase}`}
          {finding.step !== undefined && ` · step ${finding.step}`}
          {finding.source && ` · ${finding.source.file}:${finding.source.line}`}
        </p>
      </div>
    </li>
  );
}
