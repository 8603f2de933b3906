/** Files that the browser saves. */

export function saveText(text: string, name: string, type: string): void {
  saveBlob(new Blob([text], { type }), name);
}

export function saveBlob(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  // Later: some browsers start to read only after the click was handled.
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** A name that is valid on every file system. */
export function fileName(text: string, ending: string): string {
  const plain = text
    .replace(/[^\p{L}\p{N}._-]+/gu, "-")
    .replace(/^-+|-+$/g, "")
    .slice(0, 80);
  return `${plain || "torchglass"}.${ending}`;
}
