/** What verbs such as `tg.compare` return, as a view of the page or as a page of its own. */

import { unpack } from "../data/packed";
import { offerView } from "../frame/offered-view";
import { Comparison, type ComparisonData } from "./comparison";
import "./reports.css";

export type ReportData = ComparisonData;

export interface ReportsProps {
  readonly reports: readonly ReportData[];
  /** Shows a module of the model in the page around this view, if there is one. */
  readonly open?: (path: string) => void;
}

const draw = offerView<ReportsProps>("reports", ({ reports, open }) => (
  <main class="reports" aria-label="Reports">
    {reports.map((report, at) => (
      <Comparison key={at} data={report} open={open} />
    ))}
  </main>
));

const box = document.getElementById("page");
if (box?.dataset["view"] === "reports")
  void unpack<ReportsProps>(document.getElementById("torchglass-data")!.textContent!).then((data) => draw(box, data));
