/** The part of the view that the address holds, so that a link opens the same view again. */

export interface Place {
  readonly module: string;
  readonly search: string;
}

export function readPlace(hash: string): Place {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  return { module: parts.get("module") ?? "", search: parts.get("search") ?? "" };
}

export function writePlace(place: Place): string {
  const parts = new URLSearchParams();
  if (place.module) parts.set("module", place.module);
  if (place.search) parts.set("search", place.search);
  return parts.size ? `#${parts}` : "";
}
