import { camera } from "./camera";
import { coloring, legend, offered, type Coloring } from "./colors";
import { chosenOps, enter, folds, graph, opened, openTo, scene, showsOps, thick, way } from "./state";
import { shown } from "../state/state";
import { NormsWanted, SizesWanted } from "./color-data";

const NAMES: Record<Coloring, string> = {
  class: "class",
  time: "forward time",
  memory: "memory",
  flops: "FLOPs",
  parameters: "parameters",
  gradients: "gradient norm",
  findings: "findings",
  change: "gradient change",
  weights: "weight change",
  outputs: "output change",
  difference: "difference",
};

export function Toolbar() {
  const hasOps = graph.value?.nodes.some((node) => node.kind === "op");
  return (
    <div class="toolbar">
      <nav class="crumbs" aria-label="Opened module">
        {way.value.map(({ key, label }, at) =>
          at === way.value.length - 1 ? (
            <b key={key} aria-current="true">
              <bdi>{label}</bdi>
            </b>
          ) : (
            <button key={key} type="button" class="jump" onClick={() => enter(key)}>
              <bdi>{label}</bdi>
            </button>
          ),
        )}
      </nav>
      <label class="choice">
        <span>Color</span>
        <select
          value={coloring.value}
          aria-label="Color by"
          onChange={(event) => (coloring.value = event.currentTarget.value as Coloring)}
        >
          {offered.value.map((one) => (
            <option key={one} value={one}>
              {NAMES[one]}
            </option>
          ))}
        </select>
      </label>
      <Depth />
      <details class="menu">
        <summary>Show</summary>
        <div>
          <Check text="Group repeats" of={folds} />
          {hasOps && (
            <Check
              text="Operations"
              of={{
                get value() {
                  return showsOps.value;
                },
                set value(on: boolean) {
                  chosenOps.value = on;
                },
              }}
            />
          )}
          <Check text="Scale edges by tensor size" of={thick} />
        </div>
      </details>
      {shown.value && ["gradients", "change", "findings"].includes(coloring.value) && <NormsWanted of={shown.value} />}
      {(coloring.value === "weights" || coloring.value === "outputs") && <SizesWanted of={coloring.value} />}
    </div>
  );
}

/** For more levels there is "all". */
const MOST_DEPTH = 9;

/** How deep modules are expanded below the opened one. */
function Depth() {
  const deepest = scene.value.boxes.reduce((deepest, box) => Math.max(deepest, box.depth), 0);
  const offered = Array.from({ length: MOST_DEPTH + 1 }, (_, depth) => depth);
  return (
    <span class="choice" role="group" aria-label="Levels">
      <span>Depth</span>
      <span class="buttons">
        <button type="button" title="Expand one more level" onClick={() => openTo(deepest + 1)}>
          +1
        </button>
        <select
          aria-label="Open to depth"
          title="Expand to this depth"
          value={Math.min(deepest, MOST_DEPTH)}
          onChange={(event) => openTo(Number(event.currentTarget.value))}
        >
          {offered.map((depth) => (
            <option key={depth} value={depth}>
              {depth}
            </option>
          ))}
        </select>
        <button type="button" title="Expand all" onClick={() => openTo(Infinity)}>
          all
        </button>
        <button type="button" title="Collapse all" onClick={() => openTo(0)} disabled={!opened.value.size}>
          none
        </button>
      </span>
    </span>
  );
}

function Check({ text, of }: { text: string; of: { value: boolean } }) {
  return (
    <label>
      <input type="checkbox" checked={of.value} onChange={(event) => (of.value = event.currentTarget.checked)} /> {text}
    </label>
  );
}

/** The color legend, in a corner of the picture. */
export function Legend() {
  const told = legend.value;
  if (!told) return null;
  return (
    <span class="legend" data-testid="legend">
      {told.swatches?.map(([fill, word]) => (
        <>
          <i class="swatch" style={{ background: fill }} /> {word}
        </>
      ))}
      {told.ramp && (
        <>
          {told.ramp.low}
          <i style={{ background: `linear-gradient(to right, ${told.ramp.fills.join(", ")})` }} />
          {told.ramp.high}
        </>
      )}
    </span>
  );
}

/** In a corner of the picture. */
export function Zoom() {
  return (
    <span class="buttons zoom" role="group" aria-label="Zoom">
      <button type="button" title="Zoom out (-)" aria-label="Zoom out" onClick={() => camera.zoomBy(1 / 1.4)}>
        −
      </button>
      <button
        type="button"
        title="Show all (0)"
        aria-label="Zoom to fit"
        onClick={() => camera.fit(scene.value, "all")}
      >
        fit
      </button>
      <button type="button" title="Zoom in (+)" aria-label="Zoom in" onClick={() => camera.zoomBy(1.4)}>
        +
      </button>
    </span>
  );
}
