/** A view in a script of its own, which is loaded only where it is shown. */

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { tellFailure } from "../state/live";
import { type Draw, viewCalled } from "./offered-view";

export function LazyView<Props extends object>({ name, props }: { name: string; props: Props }) {
  const box = useRef<HTMLDivElement>(null);
  const drawn = useSignal<Draw<Props> | null>(null);
  useEffect(() => {
    const element = box.current!;
    let isGone = false;
    load<Props>(name)
      .then((draw) => {
        if (!isGone) drawn.value = draw;
      })
      .catch(tellFailure);
    return () => {
      isGone = true;
      drawn.peek()?.(element, null);
    };
  }, [name]);
  const draw = drawn.value;
  useEffect(() => draw?.(box.current!, props));
  return <div ref={box} class="lazy" />;
}

async function load<Props extends object>(name: string): Promise<Draw<Props>> {
  const known = viewCalled<Props>(name);
  if (known) return known;
  const inside = document.getElementById(`torchglass-${name}`);
  const script = document.createElement("script");
  if (inside) {
    script.textContent = inside.textContent;
    document.head.append(script);
  } else {
    await fetched(Object.assign(document.createElement("link"), { rel: "stylesheet", href: `${name}.css` }));
    await fetched(Object.assign(script, { src: `${name}.js` }));
  }
  const found = viewCalled<Props>(name);
  if (!found) throw new Error(`${name}.js has no view`);
  return found;
}

function fetched(element: HTMLElement): Promise<unknown> {
  return new Promise((resolve, reject) => {
    element.onload = resolve;
    element.onerror = () => reject(new Error(`The server did not send ${element.getAttribute("src") ?? element.getAttribute("href")}`));
    document.head.append(element);
  });
}
