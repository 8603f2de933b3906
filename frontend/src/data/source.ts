/** Where the page reads from: its server, or the data inside its own file. */

import type {
  ActivationsPayload,
  CurvesQuery,
  DistancesPayload,
  FindingsPayload,
  GlancePayload,
  GraphPayload,
  HistogramsPayload,
  LayerHeatPayload,
  LayerStatistic,
  MeasuresPayload,
  MemoryPayload,
  ModelPayload,
  NoModelPayload,
  PointsPayload,
  ReportsPayload,
  RunCurve,
  RunPayload,
  RunsPayload,
  SentColumn,
  SeriesPayload,
  Snapshot,
  SourcePayload,
  SpansPayload,
  StatisticsPayload,
  Status,
  TablePayload,
  TableQuery,
} from "./records";
import { unpack } from "./packed";

/** Requests without parameters. */
export interface Documents {
  readonly run: RunPayload;
  readonly model: ModelPayload | NoModelPayload;
  readonly graph: GraphPayload;
  readonly findings: FindingsPayload;
  readonly measures: MeasuresPayload;
  readonly statistics: StatisticsPayload;
  readonly spans: SpansPayload;
  readonly activations: ActivationsPayload;
  readonly memory: MemoryPayload;
  readonly series: SeriesPayload;
}

export interface Source {
  /** Whether no more data can come. */
  readonly saved: boolean;
  runs(): Promise<RunsPayload>;
  read<Name extends keyof Documents>(run: number, name: Name): Promise<Documents[Name]>;
  points(run: number, series: readonly number[], after: number): Promise<PointsPayload>;
  histograms(run: number, series: readonly number[], after: number): Promise<HistogramsPayload>;
  glance(run: number, series: readonly number[], step: number): Promise<GlancePayload>;
  layers(run: number, statistic: LayerStatistic, after: number): Promise<LayerHeatPayload>;
  code(run: number, className: string): Promise<SourcePayload>;
  distances(run: number, other: number): Promise<DistancesPayload>;
  /** The reports about the first run. */
  reports(): Promise<ReportsPayload>;
  /** The runs of a folder, where there is one. */
  table?(query: TableQuery): Promise<TablePayload>;
  /** The loss of some runs of the folder. */
  curves?(query: CurvesQuery): Promise<{ readonly curves: readonly RunCurve[] }>;
  /** Opens a run of the folder by its path or id. */
  open?(which: string): Promise<{ readonly number: number }>;
  /** Reports new steps while a run is running, and new runs if there may be any. */
  follow(listener: Listener, grows: boolean): void;
}

export interface Listener {
  statuses(statuses: readonly Status[]): void;
  connected(connected: boolean): void;
}

export async function findSource(): Promise<Source> {
  const inside = document.getElementById("torchglass-data");
  if (!inside) return new ServerSource();
  const text = inside.textContent?.trim() ?? "";
  return text ? new SavedSource(await unpack<Saved>(text)) : new LiveSource(askFrame(), poll);
}

export interface Saved {
  readonly runs: readonly Snapshot[];
  readonly compare?: readonly number[];
  readonly distances?: Readonly<Record<string, DistancesPayload>>;
  readonly reports?: ReportsPayload;
}

export class SavedSource implements Source {
  readonly saved = true;

  constructor(private readonly inside: Saved) {}

  runs = () =>
    Promise.resolve({
      runs: this.inside.runs.map((snapshot) => snapshot.run.run),
      compare: this.inside.compare ?? [],
      reports: this.inside.reports?.kinds ?? [],
    });

  reports = () => Promise.resolve(this.inside.reports ?? { kinds: [], reports: [] });

  read<Name extends keyof Documents>(run: number, name: Name): Promise<Documents[Name]> {
    return Promise.resolve(this.snapshot(run)[name]);
  }

  points(run: number, series: readonly number[], after: number): Promise<PointsPayload> {
    const { points } = this.snapshot(run).points;
    return Promise.resolve({ points: after < 0 ? points.filter((one) => series.includes(one.series)) : [] });
  }

  histograms(run: number, series: readonly number[], after: number): Promise<HistogramsPayload> {
    const { histograms } = this.snapshot(run).histograms;
    return Promise.resolve({ histograms: after < 0 ? histograms.filter((one) => series.includes(one.series)) : [] });
  }

  glance(run: number, series: readonly number[], step: number): Promise<GlancePayload> {
    const { histograms } = this.snapshot(run).histograms;
    const asked = histograms.filter((one) => series.includes(one.series));
    const glances = asked.map((one) => ({ series: one.series, column: columnAt(one.columns, step) }));
    return Promise.resolve({ step, glances });
  }

  layers(run: number, statistic: LayerStatistic): Promise<LayerHeatPayload> {
    return Promise.resolve(this.snapshot(run).layers[statistic]!);
  }

  code = (run: number, className: string) => Promise.resolve({ source: this.snapshot(run).sources[className] ?? null });

  distances = (run: number, other: number) =>
    Promise.resolve(this.inside.distances?.[`${run},${other}`] ?? { distances: null });

  follow(): void {}

  private snapshot(run: number): Snapshot {
    const snapshot = this.inside.runs[run];
    if (!snapshot) throw new RangeError(`there is no run ${run}`);
    return snapshot;
  }
}

/** The column of a step, or the last one before it. */
export function columnAt(columns: readonly SentColumn[], step: number): SentColumn | null {
  return columns.findLast((column) => column[0] <= step) ?? null;
}

type Query = Readonly<Record<string, string | number | readonly (number | string)[]>>;
type Ask = <T>(name: string, query: Query) => Promise<T>;

/** Reads through `ask`; `follow` reports new data. */
class LiveSource implements Source {
  readonly saved = false;

  constructor(
    private readonly ask: Ask,
    private readonly following: (listener: Listener, grows: boolean, ask: Ask) => void,
  ) {}

  runs = () => this.ask<RunsPayload>("runs", {});

  read<Name extends keyof Documents>(run: number, name: Name): Promise<Documents[Name]> {
    return this.ask(name, { run });
  }

  points = (run: number, series: readonly number[], after: number) =>
    this.ask<PointsPayload>("points", { run, series, after });

  histograms = (run: number, series: readonly number[], after: number) =>
    this.ask<HistogramsPayload>("histograms", { run, series, after });

  glance = (run: number, series: readonly number[], step: number) =>
    this.ask<GlancePayload>("glance", { run, series, step });

  layers = (run: number, statistic: LayerStatistic, after: number) =>
    this.ask<LayerHeatPayload>("layers", { run, statistic, after });

  code = (run: number, className: string) => this.ask<SourcePayload>("source", { run, class: className });

  distances = (run: number, other: number) => this.ask<DistancesPayload>("distances", { run, with: other });

  reports = () => this.ask<ReportsPayload>("reports", {});

  table = (query: TableQuery) => this.ask<TablePayload>("table", { ...query });

  curves = (query: CurvesQuery) => this.ask<{ readonly curves: readonly RunCurve[] }>("curves", { ...query });

  open = (which: string) => this.ask<{ readonly number: number }>("open", { which });

  follow = (listener: Listener, grows: boolean) => this.following(listener, grows, this.ask);
}

class ServerSource extends LiveSource {
  constructor() {
    super(askServer, listen);
  }
}

/** Each name with all its values, as text. */
function valuesOf(query: Query): [string, string[]][] {
  return Object.entries(query).map(([name, value]) => [name, [value].flat().map(String)]);
}

async function askServer<T>(name: string, query: Query): Promise<T> {
  const parts = valuesOf(query).flatMap(([key, values]) => values.map((value) => [key, value]));
  const answer = await fetch(`api/${name}?${new URLSearchParams(parts)}`);
  if (!answer.ok) throw new Error(`api/${name} answered ${answer.status}: ${await answer.text()}`);
  return (await answer.json()) as T;
}

function listen(listener: Listener, grows: boolean): void {
  const stream = new EventSource("api/events");
  stream.onopen = () => listener.connected(true);
  stream.onerror = () => {
    listener.connected(false);
    // The server refused the stream for good, as it does when it has too many.
    if (stream.readyState === EventSource.CLOSED) poll(listener, grows, askServer);
  };
  stream.onmessage = (event: MessageEvent<string>) => {
    const { runs } = JSON.parse(event.data) as { runs: Status[] };
    listener.statuses(runs);
    if (!grows && runs.every((status) => status.finished)) stream.close();
  };
}

interface Reply {
  readonly id: number;
  readonly text?: string;
  readonly error?: string;
}

/** Asks the notebook around this frame, and waits for its kernel. */
function askFrame(): Ask {
  const waiting = new Map<number, (reply: Reply) => void>();
  let asked = 0;
  addEventListener("message", (event: MessageEvent<{ torchglass?: Reply }>) => {
    const reply = event.data?.torchglass;
    if (event.source !== parent || !reply) return;
    waiting.get(reply.id)?.(reply);
    waiting.delete(reply.id);
  });
  return async <T>(name: string, query: Query) => {
    const id = asked++;
    const reply = await new Promise<Reply>((resolve) => {
      waiting.set(id, resolve);
      parent.postMessage({ torchglass: { id, name, query: Object.fromEntries(valuesOf(query)) } }, "*");
    });
    if (reply.text === undefined) throw new Error(reply.error);
    return JSON.parse(reply.text) as T;
  };
}

const POLL_MS = 1000;

/** Polls: neither a notebook nor a server with too many streams reports new steps. */
function poll(listener: Listener, grows: boolean, ask: Ask): void {
  setTimeout(async () => {
    let goesOn = true;
    try {
      const { runs } = await ask<{ runs: Status[] }>("statuses", {});
      listener.statuses(runs);
      goesOn = grows || !runs.every((status) => status.finished);
    } catch {
      listener.connected(false);
    }
    if (goesOn) poll(listener, grows, ask);
  }, POLL_MS);
}
