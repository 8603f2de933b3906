/** The view in the address, so that a link opens the same view. */

export type Place = Readonly<Record<string, string>>;

export function readPlace(hash: string): Place {
  return Object.fromEntries(new URLSearchParams(hash.replace(/^#/, "")));
}

/** Values at their default, "", are left out. */
export function writePlace(place: Place): string {
  const parts = new URLSearchParams(Object.entries(place).filter(([, value]) => value));
  return parts.size ? `#${parts}` : "";
}

/** A list as one text; names may contain any character. */
export function writeList(names: readonly string[]): string {
  return names.map((name) => name.replace(/[\\,;]/g, "\\$&")).join(",");
}

export function readList(text: string): string[] {
  if (!text) return [];
  return split(text, ",").map((part) => part.replace(/\\(.)/gs, "$1"));
}

/** Several lists as one text. */
export function writeLists(lists: readonly (readonly string[])[]): string {
  return lists.map(writeList).join(";");
}

export function readLists(text: string): string[][] {
  return text ? split(text, ";").map(readList) : [];
}

function split(text: string, sign: string): string[] {
  const parts = [""];
  for (let at = 0; at < text.length; at++) {
    if (text[at] === "\\") parts[parts.length - 1] += text[at]! + (text[++at] ?? "");
    else if (text[at] === sign) parts.push("");
    else parts[parts.length - 1] += text[at]!;
  }
  return parts;
}
