import { readPoints } from "../data/points";
import { graph, scene } from "../graph/state";
import { columns } from "../panels/state";
import { seriesOf } from "../panels/series";
import { failure, saved, source } from "../state/live";
import { model, run, series, shown } from "../state/state";
import { fileName, saveBlob, saveText } from "./files";
import { drawPicture, toPixels } from "./picture";
import { toCsv } from "./table";

/** The export menu. */
export function Exports() {
  if (!model.value) return null;
  return (
    <details class="menu end" data-testid="exports">
      <summary>Export</summary>
      <div>
        <button type="button" onClick={saveSvg}>
          Graph as SVG
        </button>
        <button type="button" onClick={() => void savePng()}>
          Graph as PNG
        </button>
        {series.value.length > 0 && (
          <button type="button" onClick={() => void saveCsv()}>
            {columns.value.length ? "Pinned series as CSV" : "All series as CSV"}
          </button>
        )}
        {!saved.value && (
          <a href="saved.html" download={fileName(name(), "html")}>
            Everything as one file
          </a>
        )}
      </div>
    </details>
  );
}

function name(): string {
  return run.value?.name ?? "torchglass";
}

function saveSvg(): void {
  saveText(drawPicture(scene.value, model.value!), fileName(name(), "svg"), "image/svg+xml");
}

async function savePng(): Promise<void> {
  try {
    const picture = drawPicture(scene.value, model.value!);
    saveBlob(await toPixels(picture, scene.value.w, scene.value.h), fileName(name(), "png"));
  } catch (problem) {
    failure.value = `Could not create the image: ${String(problem)}`;
  }
}

/** The series of pinned modules, or all series. */
async function saveCsv(): Promise<void> {
  const keys = columns.value.flat();
  const nodes = keys.map((key) => graph.value?.find(key)).filter((id) => id !== undefined);
  const wanted = nodes.length
    ? [...new Set(nodes.flatMap((id) => seriesOf(graph.value!, id, series.value)))]
    : series.value;
  const { points } = await source.value!.points(
    shown.value!.number,
    wanted.map((one) => one.id),
    -1,
  );
  const byId = new Map(wanted.map((one) => [one.id, one]));
  const rows = points.map((one) => ({ series: byId.get(one.series)!, points: readPoints(one) }));
  saveText(toCsv(rows), fileName(name(), "csv"), "text/csv");
}
