import type { RunStore } from "../data/store";
import { useFlow } from "../state/live";

/** Shows nothing, but has the gradient norms of a run read for as long as boxes are coloured by them. */
export function FlowWanted({ of }: { of: RunStore }) {
  useFlow(of);
  return null;
}
