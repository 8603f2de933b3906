import { useEffect, useRef } from "preact/hooks";
import { formatExact } from "../data/formats";
import { found, lookFor, query, rows, select } from "../state/state";

/** Searches modules; `/` focuses it from anywhere. */
export function Search() {
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const focusOnSlash = (event: KeyboardEvent) => {
      const typing = event.target instanceof HTMLInputElement;
      if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      input.current?.focus();
      input.current?.select();
    };
    addEventListener("keydown", focusOnSlash);
    return () => removeEventListener("keydown", focusOnSlash);
  }, []);
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Escape") lookFor("");
    else if (event.key === "Enter" || event.key === "ArrowDown") selectFirstMatch();
    else return;
    event.preventDefault();
    document.querySelector<HTMLElement>("[role=tree]")?.focus();
  };
  const matches = found.value?.matches.size;
  return (
    <div class="search" role="search">
      <input
        ref={input}
        type="search"
        placeholder="Search modules"
        aria-label="Search modules"
        spellcheck={false}
        value={query.value}
        onInput={(event) => lookFor(event.currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      {matches === undefined ? (
        <kbd aria-hidden="true">/</kbd>
      ) : (
        <output>{matches === 1 ? "1 match" : `${formatExact(matches)} matches`}</output>
      )}
    </div>
  );
}

function selectFirstMatch(): void {
  const first = rows.value.find((row) => found.value?.matches.has(row.id));
  if (first) select(first.id);
}
