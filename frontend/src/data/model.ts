/** A model with lookups: by path, by count, by tied tensor. */

import type { ModelPayload, Module, Slot } from "./records";

export type Counts = Readonly<Record<string, number>>;

export class Model {
  readonly name: string;
  readonly modules: readonly Module[];
  private readonly byPath = new Map<string, number>();
  private readonly places = new Map<number, { module: number; slot: string }[]>();
  private readonly aliases = new Map<number, number[]>();

  constructor(private readonly payload: ModelPayload) {
    this.name = payload.model.name;
    this.modules = payload.model.modules;
    for (const module of this.modules) {
      if (!this.byPath.has(module.path)) this.byPath.set(module.path, module.id);
      if (module.alias_of !== undefined) append(this.aliases, module.alias_of, module.id);
      for (const slot of module.slots ?? []) {
        append(this.places, slot.tensor, { module: module.id, slot: slot.name });
      }
    }
  }

  module(id: number): Module {
    const module = this.modules[id];
    if (!module) throw new RangeError(`there is no module ${id}`);
    return module;
  }

  find(path: string): number | undefined {
    return this.byPath.get(path);
  }

  children(id: number): readonly number[] {
    return this.module(id).children ?? [];
  }

  /** From the root down to the module itself. */
  line(id: number): Module[] {
    const line: Module[] = [];
    for (let at: number | undefined = id; at !== undefined; at = this.module(at).parent) {
      line.unshift(this.module(at));
    }
    return line;
  }

  own(id: number): Counts {
    return this.counts(this.payload.counts.own[id]);
  }

  total(id: number): Counts {
    return this.counts(this.payload.counts.total[id]);
  }

  parameters(id: number): number {
    return this.total(id)["parameters"] ?? 0;
  }

  bytes(id: number): number {
    const total = this.total(id);
    return (total["parameter_bytes"] ?? 0) + (total["buffer_bytes"] ?? 0);
  }

  /** The other slots with the same tensor. */
  tied(id: number, slot: Slot): { module: number; slot: string }[] {
    const places = this.places.get(slot.tensor) ?? [];
    return places.filter((place) => place.module !== id || place.slot !== slot.name);
  }

  /** The other places of this module in the tree. */
  alsoAt(id: number): readonly number[] {
    return this.aliases.get(id) ?? [];
  }

  /** The name of a module on its own: the model's name for the root. */
  label(module: Module): string {
    return module.name || module.path || this.name;
  }

  private counts(row: readonly number[] = []): Counts {
    return Object.fromEntries(this.payload.counts.fields.map((field, at) => [field, row[at] ?? 0]));
  }
}

/** The class name without its package: "Conv2d". */
export function kindOf(module: Module): string {
  return module.class_name.slice(module.class_name.lastIndexOf(".") + 1);
}

function append<K, V>(map: Map<K, V[]>, key: K, value: V): void {
  const known = map.get(key);
  if (known) known.push(value);
  else map.set(key, [value]);
}
