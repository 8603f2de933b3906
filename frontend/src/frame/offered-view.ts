/** How a script of its own offers its view to the page, which may have another copy of Preact. */

import { type ComponentType, h, render } from "preact";

/** Draws the view into an element; null removes it. */
export type Draw<Props extends object> = (box: HTMLElement, props: Props | null) => void;

declare global {
  var torchglassViews: Record<string, Draw<never>> | undefined;
}

export function offerView<Props extends object>(name: string, view: ComponentType<Props>): Draw<Props> {
  const draw: Draw<Props> = (box, props) => render(props && h(view, props), box);
  (globalThis.torchglassViews ??= {})[name] = draw;
  return draw;
}

export function viewCalled<Props extends object>(name: string): Draw<Props> | undefined {
  return globalThis.torchglassViews?.[name] as Draw<Props> | undefined;
}
