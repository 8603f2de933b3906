import { Chart } from "./chart";
import { formatBytes, formatCount, formatExact, formatShape, formatShare } from "./formats";
import { kindOf, type Model } from "./model";
import type { Module, Series, Slot } from "./records";
import { jump, measuredBelow, model, selected, shownSeries, status } from "./state";

export function Details() {
  const known = model.value;
  if (!known) return <article />;
  const module = known.module(selected.value);
  return (
    <article aria-label="Selected module" data-testid="details">
      {module.parent !== undefined && <Way model={known} module={module} />}
      <h2>
        <bdi>{kindOf(module)}</bdi>
        {module.extra && <code>({module.extra})</code>}
      </h2>
      <Facts model={known} module={module} />
      {module.problem && <p class="callout">Reading this module raised an error: {module.problem}</p>}
      <Totals model={known} id={module.id} />
      {module.slots && <Slots model={known} module={module} slots={module.slots} />}
      <Measured model={known} />
    </article>
  );
}

function Jump({ to, text }: { to: number; text: string }) {
  return (
    <button type="button" class="jump" onClick={() => jump(to)}>
      <bdi>{text}</bdi>
    </button>
  );
}

/** The modules above, each a way up, and the module itself. */
function Way({ model, module }: { model: Model; module: Module }) {
  return (
    <nav class="way" aria-label="Path">
      {model.line(module.id).map((step) =>
        step.id === module.id ? (
          <b key={step.id} aria-current="true">
            <bdi>{model.label(step)}</bdi>
          </b>
        ) : (
          <Jump key={step.id} to={step.id} text={model.label(step)} />
        ),
      )}
    </nav>
  );
}

function Facts({ model, module }: { model: Model; module: Module }) {
  const own = model.total(module.id);
  const frozen = own["parameters"] && !own["trainable"];
  return (
    <p class="facts">
      <span class="dim">{module.class_name}</span>
      {module.training === false && <span class="tag">eval</span>}
      {frozen ? <span class="tag">frozen</span> : null}
      {module.hooks?.map((hook) => <span class="tag">{hook}</span>)}
      {module.alias_of !== undefined && (
        <span>
          the same module as <Jump to={module.alias_of} text={model.module(module.alias_of).path || model.name} />, counted
          there
        </span>
      )}
      {model.alsoAt(module.id).length > 0 && (
        <span>
          also at{" "}
          {model.alsoAt(module.id).map((id) => (
            <Jump key={id} to={id} text={model.module(id).path} />
          ))}
        </span>
      )}
    </p>
  );
}

function Totals({ model, id }: { model: Model; id: number }) {
  const total = model.total(id);
  const parameters = total["parameters"] ?? 0;
  const frozen = parameters - (total["trainable"] ?? 0);
  const entries: [string, string, string][] = [
    ["parameters", formatCount(parameters), formatExact(parameters)],
    ["of the model", formatShare(parameters, model.parameters(0)) || "–", ""],
    ["trainable", formatCount(total["trainable"] ?? 0), frozen ? `${formatExact(frozen)} frozen` : "all"],
    ["buffer elements", formatCount(total["buffers"] ?? 0), formatExact(total["buffers"] ?? 0)],
    ["memory", formatBytes(model.bytes(id)), `${formatExact(model.bytes(id))} bytes`],
  ];
  return (
    <dl class="totals">
      {entries.map(([name, value, exact]) => (
        <div key={name} title={exact}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function Slots({ model, module, slots }: { model: Model; module: Module; slots: readonly Slot[] }) {
  return (
    <div class="scroll">
      <table>
        <caption>Tensors</caption>
        <thead>
          <tr>
            <th scope="col">name</th>
            <th scope="col">shape</th>
            <th scope="col">dtype</th>
            <th scope="col">device</th>
            <th scope="col" class="number">
              memory
            </th>
            <th scope="col">role</th>
          </tr>
        </thead>
        <tbody>
          {slots.map((slot) => (
            <SlotRow key={slot.name} model={model} module={module} slot={slot} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function SlotRow({ model, module, slot }: { model: Model; module: Module; slot: Slot }) {
  const tied = model.tied(module.id, slot);
  const { spec } = slot;
  return (
    <tr>
      <th scope="row">
        <bdi>{slot.name}</bdi>
        {tied.length > 0 && (
          <div class="tied">
            tied to{" "}
            {tied.map((place) => (
              <Jump
                key={`${place.module} ${place.slot}`}
                to={place.module}
                text={[model.module(place.module).path, place.slot].filter(Boolean).join(".")}
              />
            ))}
          </div>
        )}
      </th>
      <td>{formatShape(spec.shape)}</td>
      <td>
        {spec.dtype}
        {spec.layout && <span class="dim"> {spec.layout}</span>}
      </td>
      <td>{spec.device ?? "cpu"}</td>
      <td class="number" title={`${formatExact(spec.bytes ?? 0)} bytes`}>
        {formatBytes(spec.bytes ?? 0)}
      </td>
      <td>{roleOf(slot)}</td>
    </tr>
  );
}

function roleOf(slot: Slot): string {
  if (slot.role === "buffer") return slot.persistent === false ? "buffer, not saved" : "buffer";
  if (slot.role === "packed") return "packed weight";
  return slot.trainable ? "trainable" : "frozen";
}

/** A series of a place that is no module stands at the root, where its name alone would mislead. */
function titleOf(model: Model, series: Series): string {
  return model.find(series.path) === undefined ? `${series.path}.${series.name}` : series.name;
}

function Measured({ model }: { model: Model }) {
  const shown = shownSeries.value;
  if (shown.length) {
    return (
      <section class="charts" aria-label="Measured over steps">
        {shown.map((series) => (
          <Chart key={series.id} series={series} title={titleOf(model, series)} />
        ))}
      </section>
    );
  }
  if (!measuredBelow.value.length) {
    return status.value.last_step < 0 ? null : <p class="empty">Nothing was measured here.</p>;
  }
  return (
    <p class="empty">
      Measured below:{" "}
      {measuredBelow.value.map((id) => (
        <Jump key={id} to={id} text={model.module(id).path || model.name} />
      ))}
    </p>
  );
}
