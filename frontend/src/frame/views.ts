/** Which views have something to show. */

import { computed } from "@preact/signals";
import { series, shown, usualView, type View } from "../state/state";

export const offeredViews = computed<readonly View[]>(() => {
  const store = shown.value;
  const has: Record<View, boolean> = {
    overview: usualView.value === "overview",
    graph: true,
    gradients: series.value.some((one) => one.name.endsWith(".grad")),
    scalars: series.value.some((one) => !one.kind),
    findings: !!store?.findings.value.length,
    activations: !!store?.maps.value.length,
    time: !!store?.spans.value.length,
    memory: !!store?.memory.value,
  };
  return (Object.keys(has) as View[]).filter((one) => has[one]);
});
