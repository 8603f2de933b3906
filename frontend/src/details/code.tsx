import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { ClassCode } from "../data/records";
import { source } from "../state/live";
import { shown } from "../state/state";

/** The code of a class, read when someone opens it. */
export function Code({ className, at }: { className: string; at?: string | undefined }) {
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
      {code.value && <Listing code={code.value} at={at} />}
    </details>
  );
}

/** At the line of the selected operation, else at `forward`. */
function Listing({ code, at: place }: { code: ClassCode; at: string | undefined }) {
  const lines = code.text.replace(/\n$/, "").split("\n");
  // The text begins at the first decorator, which may be above the word `class`.
  const above = lines.findIndex((line) => /^\s*class\b/.test(line));
  const first = code.line - Math.max(0, above);
  const [file, number] = place?.split(/:(?=\d+$)/) ?? [];
  const here = file && code.file.endsWith(file) ? Number(number) : code.forward_line;
  return (
    <>
      <p class="dim file">
        <bdi>
          {code.file}:{here ?? code.line}
        </bdi>
      </p>
      <pre tabIndex={0}>
        <code>
          {lines.map((line, at) => (
            <span key={at} class={first + at === here ? "line here" : "line"} data-number={first + at}>
              {line}
              {"\n"}
            </span>
          ))}
        </code>
      </pre>
    </>
  );
}
