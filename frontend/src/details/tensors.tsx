import { formatBytes, formatExact, formatShape } from "../data/formats";
import type { Model } from "../data/model";
import type { Module, Slot } from "../data/records";
import { Jump } from "./jump";

/** The tensors of a module. */
export function Tensors({ model, module, slots }: { model: Model; module: Module; slots: readonly Slot[] }) {
  return (
    <div class="scroll">
      <table>
        <caption>Tensors</caption>
        <thead>
          <tr>
            <th scope="col">name</th>
            <th scope="col">shape</th>
            <th scope="col">dtype</th>
            <th scope="col" class="number">
              memory
            </th>
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
        {roleOf(slot) && <div class="role">{roleOf(slot)}</div>}
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
        {spec.device && <span class="dim"> on {spec.device}</span>}
      </td>
      <td class="number" title={`${formatExact(spec.bytes ?? 0)} bytes`}>
        {formatBytes(spec.bytes ?? 0)}
      </td>
    </tr>
  );
}

/** What is unusual about it. */
function roleOf(slot: Slot): string {
  if (slot.role === "buffer") return slot.persistent === false ? "buffer, not saved" : "buffer";
  if (slot.role === "packed") return "packed weight";
  return slot.trainable ? "" : "frozen";
}
