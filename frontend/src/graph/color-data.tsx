/** Components without output that load data for as long as boxes are colored by it. */

import { useEffect } from "preact/hooks";
import type { RunStore } from "../data/store";
import { useLayerHeat } from "../state/live";
import { type Sized, sized } from "./sizes-by-step";

/** The gradient norms of a run. */
export function NormsWanted({ of }: { of: RunStore }) {
  useLayerHeat(of, "gradient");
  return null;
}

/** The size of weights or outputs. */
export function SizesWanted({ of }: { of: Sized }) {
  useEffect(() => {
    sized.value = of;
    return () => (sized.value = null);
  }, [of]);
  return null;
}
