/** What verbs such as `tg.compare` return, as a view of the page or as a page of its own. */

import { useSignal } from "@preact/signals";
import { unpack } from "../data/packed";
import { offerView } from "../frame/offered-view";
import { Comparison, type ComparisonData } from "./comparison";
import { Diagram, type DiagramData } from "./diagram";
import { Report, type ReportData } from "./report";
import "./reports.css";

export interface ReportsProps {
  readonly reports: readonly (ComparisonData | ReportData | DiagramData)[];
  /** Shows a module of the model in the page around this view, if there is one. */
  readonly open?: (path: string) => void;
}

function nameOf(data: ReportsProps["reports"][number]): string {
  if (data.kind === "report") return data.record.kind;
  return data.kind === "diagram" ? "Diagram" : "Comparison";
}

const draw = offerView<ReportsProps>("reports", ({ reports, open }) => {
  const chosen = useSignal(0);
  const data = reports[chosen.value];
  return (
    <main class="reports" aria-label="Reports">
      {reports.length > 1 && (
        <nav class="report-names" aria-label="Reports">
          {reports.map((one, at) => (
            <button key={at} type="button" aria-current={at === chosen.value ? "true" : undefined} onClick={() => (chosen.value = at)}>
              {nameOf(one)}
            </button>
          ))}
        </nav>
      )}
      {data?.kind === "comparison" && <Comparison key={chosen.value} data={data} open={open} />}
      {data?.kind === "diagram" && <Diagram data={data} />}
      {data?.kind === "report" && <Report key={chosen.value} data={data} open={open} />}
    </main>
  );
});

const box = document.getElementById("page");
if (box?.dataset["view"] === "reports")
  void unpack<ReportsProps>(document.getElementById("torchglass-data")!.textContent!).then((data) => draw(box, data));
