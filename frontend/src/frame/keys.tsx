/** Keys and clicks that work everywhere on the page. */

import { signal } from "@preact/signals";

const helps = signal(false);

/** Menus close at Escape and at a click elsewhere; `?` shows the keys. */
export function closeMenus(): void {
  const close = (keep: Node | null) => {
    const open = [...document.querySelectorAll<HTMLDetailsElement>("details.menu[open]")];
    const others = open.filter((menu) => !keep || !menu.contains(keep));
    others.forEach((menu) => (menu.open = false));
    return others.length > 0;
  };
  addEventListener("pointerdown", (event) => close(event.target as Node), true);
  addEventListener(
    "keydown",
    (event) => {
      const isTyping = event.target instanceof HTMLInputElement;
      if (event.key === "?" && !isTyping) helps.value = !helps.value;
      else if (event.key !== "Escape" || !(close(null) || helps.value)) return;
      else helps.value = false;
      event.stopPropagation();
      event.preventDefault();
    },
    true,
  );
}

const KEYS = [
  ["/", "search"],
  ["← ↑ → ↓", "move the selection"],
  ["Enter", "open, or go into an expanded box"],
  ["Space", "expand or collapse in place"],
  ["Esc", "leave a module, close a menu"],
  ["p", "pin or unpin"],
  ["+ − 0", "zoom, fit"],
] as const;

export function Keys() {
  if (!helps.value) return null;
  return (
    <dialog class="keys" open aria-label="Keys" onClick={() => (helps.value = false)}>
      <table class="rows">
        <tbody>
          {KEYS.map(([key, does]) => (
            <tr key={key}>
              <th scope="row">
                <kbd>{key}</kbd>
              </th>
              <td>{does}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </dialog>
  );
}
