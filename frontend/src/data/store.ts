/** What the page knows of one run, as signals. */

import { computed, signal } from "@preact/signals";
import { type CallGraph, graphOfTree, readGraph } from "../graph/calls";
import type { Heat } from "./histograms";
import type { LayerHeat } from "./layer-heat";
import { Model } from "./model";
import type { Points } from "./points";
import type {
  FeatureMap,
  Finding,
  LayerStatistic,
  Measure,
  MemoryUse,
  ModuleStatistics,
  Run,
  Series,
  SeriesPayload,
  Span,
  Status,
} from "./records";
import type { Source } from "./source";

export const NOTHING_YET: Status = { last_step: -1, finished: true, series: 0, revision: -1 };

/** How many components use each series; a changed map is a new object. */
type Wanted<Key = number> = ReadonlyMap<Key, number>;

export class RunStore {
  readonly run = signal<Run | null>(null);
  readonly status = signal<Status>(NOTHING_YET);
  readonly finished = computed(() => this.status.value.finished);
  readonly model = signal<Model | null>(null);
  readonly graph = signal<CallGraph | null>(null);
  readonly series = signal<readonly Series[]>([]);
  readonly findings = signal<readonly Finding[]>([]);
  readonly measures = signal<ReadonlyMap<string, Measure>>(new Map());
  readonly statistics = signal<ReadonlyMap<string, ModuleStatistics>>(new Map());
  readonly spans = signal<readonly Span[]>([]);
  readonly profiled = signal(false);
  readonly maps = signal<readonly FeatureMap[]>([]);
  readonly memory = signal<MemoryUse | null>(null);
  readonly points = signal<ReadonlyMap<number, Points>>(new Map());
  readonly heats = signal<ReadonlyMap<number, Heat>>(new Map());
  readonly wantedPoints = signal<Wanted>(new Map());
  readonly wantedHeats = signal<Wanted>(new Map());
  /** The series that is the training loss. */
  readonly loss = signal<number | null>(null);
  readonly layerStatistics = signal<readonly LayerStatistic[]>([]);
  readonly layers = signal<ReadonlyMap<LayerStatistic, LayerHeat>>(new Map());
  readonly wantedLayers = signal<Wanted<LayerStatistic>>(new Map());
  /** When the latest step arrived, in ms; 0 before the first. */
  readonly lastNews = signal(0);

  constructor(readonly number: number) {}

  takeSeries({ series, loss = null, layers = [] }: SeriesPayload): void {
    this.series.value = series;
    this.loss.value = loss;
    this.layerStatistics.value = layers;
  }

  /** Reads a new revision of the run: its model and its documents. */
  async readDocuments(source: Source): Promise<void> {
    const [model, graph, findings, measures, statistics, spans, activations, memory] = await Promise.all([
      source.read(this.number, "model"),
      source.read(this.number, "graph"),
      source.read(this.number, "findings"),
      source.read(this.number, "measures"),
      source.read(this.number, "statistics"),
      source.read(this.number, "spans"),
      source.read(this.number, "activations"),
      source.read(this.number, "memory"),
    ]);
    this.findings.value = findings.findings;
    this.measures.value = byPath(measures.measures?.rows ?? []);
    this.statistics.value = byPath(statistics.modules);
    this.spans.value = spans.spans;
    this.profiled.value = !!spans.profiled;
    this.maps.value = activations.maps;
    this.memory.value = memory.memory;
    if (!model.model) return;
    const known = new Model(model);
    this.graph.value = graph.graph?.nodes.length ? readGraph(graph.graph) : graphOfTree(known);
    this.model.value = known;
  }
}

function byPath<T extends { readonly path: string }>(rows: readonly T[]): ReadonlyMap<string, T> {
  return new Map(rows.map((row) => [row.path, row]));
}
