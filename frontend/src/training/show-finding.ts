/** Shows a finding: its call or op, at its step, with its series in a column. */

import { batch } from "@preact/signals";
import type { Finding } from "../data/records";
import { graph, chosenOps } from "../graph/state";
import { pin, pins, sought } from "../panels/state";
import { keepWayBack, revealModule, revealNode } from "../state/places";
import { chosenView, model, series } from "../state/state";
import { goToStep } from "../state/time";
import { leadOf, stepsOf } from "./finding-groups";

export function follow(finding: Finding): void {
  const lead = leadOf(finding, series.value, graph.value);
  batch(() => {
    keepWayBack();
    chosenView.value = "graph";
    const first = stepsOf([finding])?.[0];
    if (first !== undefined) goToStep(first);
    if (lead.op) chosenOps.value = true;
    if (lead.call) revealNode(lead.op ?? lead.call);
    else revealModule(model.value?.find(lead.path) ?? 0);
    if (!lead.series || !lead.call) return;
    if (!pins.value.has(lead.call.key)) pin(lead.call.key);
    sought.value = { series: lead.series.id };
  });
}
