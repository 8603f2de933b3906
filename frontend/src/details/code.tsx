import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { ClassCode } from "../data/records";
import { source } from "../state/live";
import { shown } from "../state/state";

/** The code of a class, read when someone opens it. */
export function Code({ className }: { className: string }) {
  const code = useSignal<ClassCode | null | undefined>(undefined);
  const isOpen = useSignal(false);
  useEffect(() => {
    code.value = undefined;
    if (!isOpen.value) return;
    void source
      .value!.code(shown.value!.number, className)
      .then((sent) => (code.value = sent.source))
      .catch(() => (code.value = null));
  }, [className, isOpen.value]);
  return (
    <details class="code" onToggle={(event) => (isOpen.value = event.currentTarget.open)}>
      <summary>Source code</summary>
      {code.value === null && <p class="empty">The source file is not on this machine.</p>}
      {code.value && <Listing code={code.value} />}
    </details>
  );
}

function Listing({ code }: { code: ClassCode }) {
  const lines = code.text.replace(/\n$/, "").split("\n");
  // The text begins at the first decorator, which may stand above the word `class`.
  const above = lines.findIndex((line) => /^\s*class\b/.test(line));
  const first = code.line - Math.max(0, above);
  return (
    <>
      <p class="dim file">
        <bdi>
          {code.file}:{code.forward_line ?? code.line}
        </bdi>
      </p>
      <pre tabIndex={0}>
        <code>
          {lines.map((line, at) => (
            <span key={at} class={first + at === code.forward_line ? "line here" : "line"} data-number={first + at}>
              {line}
              {"\n"}
            </span>
          ))}
        </code>
      </pre>
    </>
  );
}
