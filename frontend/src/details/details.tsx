import { formatBytes, formatCount, formatExact, formatShare } from "../data/formats";
import { kindOf, type Model } from "../data/model";
import type { Module } from "../data/records";
import type { Node } from "../graph/calls";
import { formatTime } from "../graph/colors";
import { graph } from "../graph/state";
import { rowsFor } from "../graph/words";
import { nodeOf, pinKeyOf } from "../panels/node-of-module";
import { pins, togglePin } from "../panels/state";
import { model, problems, selected, shown } from "../state/state";
import { Maps } from "../training/activations";
import { FindingPlace } from "../training/findings";
import { Prose } from "../training/prose";
import { Calls } from "./calls";
import { Code } from "./code";
import { Jump } from "./jump";
import { Since } from "./change-since";
import { Tensors } from "./tensors";

/** Everything known about the selected module. */
export function Details() {
  const known = model.value;
  if (!known) return null;
  const module = known.module(selected.value);
  const node = nodeOf(module);
  const op = node?.kind === "op" ? node : undefined;
  return (
    <article class="details" aria-label="Selected module" data-testid="details">
      {module.parent !== undefined && <Way model={known} module={module} />}
      <div class="headline">
        <h2>
          <bdi>{op ? op.name : kindOf(module)}</bdi>
          {op ? <code>in {module.path || known.name}</code> : module.extra && <code>({module.extra})</code>}
        </h2>
        <PinButton module={module} />
      </div>
      <Facts model={known} module={module} />
      {module.problem && <p class="callout">This module could not be read: {module.problem}</p>}
      <Trouble path={module.path} />
      {!op && <Totals model={known} id={module.id} />}
      {node && <Since key={node.id} of={node.id} />}
      {node && <Shapes model={known} node={node} />}
      {!op && module.slots && <Tensors model={known} module={module} slots={module.slots} />}
      <Maps path={module.path} />
      <Calls path={op ? `op:${op.number}` : module.path} />
      <Code className={module.class_name} at={op?.facts["source"]} />
    </article>
  );
}

/** The same as dragging the module to a column. */
function PinButton({ module }: { module: Module }) {
  const key = pinKeyOf(module);
  if (key === undefined) return null;
  const isPinned = pins.value.has(key);
  return (
    <button type="button" class={`pin ${isPinned ? "on" : ""}`} aria-pressed={isPinned} onClick={() => togglePin(key)}>
      {isPinned ? "Unpin" : "Pin"}
    </button>
  );
}

function Trouble({ path }: { path: string }) {
  const finding = path ? problems.value.get(path)?.worst : undefined;
  if (!finding) return null;
  return (
    <p class={`callout ${finding.severity}`}>
      <Prose text={finding.message} /> <FindingPlace finding={finding} />
    </p>
  );
}

/** What flows through the selected call, or through a node in it. */
function Shapes({ model, node }: { model: Model; node: Node }) {
  const rows = rowsFor(model, { key: node.key, kind: node.kind, node, members: [] }, graph.value?.passes ?? 1).filter(
    ([name]) => name !== "parameters",
  );
  if (!rows.length) return null;
  return (
    <table class="rows">
      <tbody>
        {rows.map(([name, value], at) => (
          <tr key={at}>
            <th scope="row">{name}</th>
            <td>
              <bdi>{value}</bdi>
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** Links to the modules above, and the module itself. */
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
      {module.hooks?.map((hook) => (
        <span class="tag">{hook}</span>
      ))}
      {module.alias_of !== undefined && (
        <span>
          the same module as <Jump to={module.alias_of} text={model.module(module.alias_of).path || model.name} />,
          counted there
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
  const measure = shown.value?.measures.value.get(model.module(id).path);
  const parameters = total["parameters"] ?? 0;
  const frozen = parameters - (total["trainable"] ?? 0);
  const entries: [string, string, string][] = [
    ["parameters", formatCount(parameters), formatExact(parameters)],
    ["of the model", formatShare(parameters, model.parameters(0)) || "–", ""],
    ["trainable", formatCount(total["trainable"] ?? 0), frozen ? `${formatExact(frozen)} frozen` : "all"],
    ["buffers", formatCount(total["buffers"] ?? 0), formatExact(total["buffers"] ?? 0)],
    ["memory", formatBytes(model.bytes(id)), `${formatExact(model.bytes(id))} bytes`],
  ];
  if (measure?.total_forward_ns)
    entries.push(["forward", formatTime(measure.total_forward_ns), "inner modules included"]);
  if (measure?.total_backward_ns)
    entries.push(["backward", formatTime(measure.total_backward_ns), "inner modules included"]);
  if (measure?.total_forward_flops) entries.push(["FLOPs", formatCount(measure.total_forward_flops), "of one forward"]);
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
