/** Which views have something to show. */

import { computed } from "@preact/signals";
import { reportKinds, series, shown, status, type View } from "../state/state";

export const offeredViews = computed<readonly View[]>(() => {
  const store = shown.value;
  const has: Record<View, boolean> = {
    reports: reportKinds.value.length > 0,
    overview: !status.value.finished || status.value.last_step >= 0,
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
