/** What the server sends: the records of `torchglass.records`, without fields at their defaults. */

export interface TensorSpec {
  readonly shape: readonly number[] | null;
  readonly dtype: string;
  readonly device?: string;
  readonly bytes?: number;
  readonly layout?: string;
}

export interface Stats {
  readonly count: number;
  readonly min: Sent;
  readonly max: Sent;
  readonly mean: Sent;
  readonly std: Sent;
  readonly nan?: number;
  readonly inf?: number;
}

export interface Slot {
  readonly name: string;
  readonly role: "parameter" | "buffer" | "packed";
  readonly spec: TensorSpec;
  readonly tensor: number;
  readonly trainable?: boolean;
  readonly persistent?: boolean;
}

export interface Module {
  readonly id: number;
  readonly path: string;
  readonly name: string;
  readonly class_name: string;
  readonly parent?: number;
  readonly children?: readonly number[];
  readonly slots?: readonly Slot[];
  readonly extra?: string;
  readonly training?: boolean;
  readonly hooks?: readonly string[];
  readonly alias_of?: number;
  readonly problem?: string;
}

/** Sent while a run has no model. */
export interface NoModelPayload {
  readonly model: null;
}

export interface ModelPayload {
  readonly model: {
    readonly name: string;
    readonly origin?: string;
    readonly modules: readonly Module[];
    readonly classes?: Readonly<Record<string, { readonly file: string; readonly forward_line?: number }>>;
  };
  readonly counts: {
    readonly fields: readonly string[];
    /** A row of `fields` per module: its own, and including all modules below it. */
    readonly own: readonly (readonly number[])[];
    readonly total: readonly (readonly number[])[];
  };
}

export type NodeKind = "call" | "op" | "input" | "output" | "attached";

/** Its id is its index in the list; tensors are indices in the list of specs. */
export interface SentNode {
  readonly kind: NodeKind;
  readonly path: string;
  readonly parent?: number;
  readonly name?: string;
  readonly number?: number;
  readonly count?: number;
  readonly facts?: Readonly<Record<string, string>>;
  readonly inputs?: readonly number[];
  readonly outputs?: readonly number[];
}

export interface SentGraph {
  readonly passes: number;
  readonly nodes: readonly SentNode[];
  /** Source, target, spec (-1 for none), in how many passes it was seen. */
  readonly edges: readonly (readonly [number, number, number, number])[];
  readonly specs: readonly TensorSpec[];
}

export interface GraphPayload {
  readonly graph: SentGraph | null;
}

export interface Place {
  readonly file: string;
  readonly line: number;
  readonly function: string;
}

export interface Finding {
  readonly severity: "error" | "warning" | "info";
  readonly kind: string;
  readonly message: string;
  readonly path?: string;
  readonly call?: number;
  readonly op?: string;
  readonly phase?: string;
  readonly source?: Place;
  readonly step?: number;
  readonly facts?: Readonly<Record<string, unknown>>;
  readonly series?: string;
  readonly first_step?: number;
  readonly last_step?: number;
  readonly remedy?: string;
  /** Its consequences, one sentence each. */
  readonly consequences?: readonly string[];
}

export interface FindingsPayload {
  readonly findings: readonly Finding[];
}

export interface Measure {
  readonly path: string;
  readonly calls?: number;
  readonly total_forward_ns?: number;
  readonly self_forward_ns?: number;
  readonly total_backward_ns?: number;
  readonly total_forward_flops?: number;
  readonly total_activation_bytes?: number;
  readonly total_peak_bytes?: number;
}

export interface MeasuresPayload {
  readonly measures: { readonly rows?: readonly Measure[]; readonly notes?: readonly string[] } | null;
}

export interface Measured {
  readonly place: string;
  readonly spec: TensorSpec;
  readonly stats?: Stats;
}

export interface CallStatistics {
  readonly number: number;
  readonly forward: number;
  readonly inputs?: readonly Measured[];
  readonly outputs?: readonly Measured[];
  readonly total_ns?: number;
  readonly self_ns?: number;
  readonly error?: string;
}

export interface ModuleStatistics {
  readonly path: string;
  readonly class_name: string;
  readonly calls?: readonly CallStatistics[];
}

export interface StatisticsPayload {
  readonly modules: readonly ModuleStatistics[];
}

/** Kind, name, depth, start and end. */
export type Span = readonly ["call" | "op", string, number, number, number];

export interface SpansPayload {
  readonly spans: readonly Span[];
  /** Whether they are measured durations placed end to end, not actual start times. */
  readonly profiled?: boolean;
}

/** A part of one output in shades of gray. */
export interface FeatureMap {
  readonly path: string;
  readonly name: string;
  readonly step: number;
  readonly spec: TensorSpec;
  readonly low: Sent;
  readonly high: Sent;
  readonly rows: number;
  readonly columns: number;
  /** One byte per pixel, in base64. */
  readonly pixels: string;
  /** Number of maps per row; 1 if left out. */
  readonly tiles?: number;
}

export interface ActivationsPayload {
  readonly maps: readonly FeatureMap[];
}

/** Time, allocated bytes, phase, module, op. */
export type Moment = readonly [number, number, string, string, string];

export interface MemoryUse {
  readonly device: string;
  readonly before_bytes: number;
  readonly moments: readonly Moment[];
  readonly holders: readonly {
    readonly path: string;
    readonly kind: string;
    readonly op: string;
    readonly bytes: number;
  }[];
}

export interface MemoryPayload {
  readonly memory: MemoryUse | null;
}

export interface ClassCode {
  readonly file: string;
  readonly line: number;
  readonly text: string;
  readonly forward_line?: number;
}

export interface SourcePayload {
  readonly source: ClassCode | null;
}

export interface Status {
  readonly last_step: number;
  readonly finished: boolean;
  /** What went wrong with the run, if anything, and the same as text. */
  readonly state?: "stopped" | "interrupted" | "killed" | "stalled";
  readonly how?: string;
  /** Number of series so far. */
  readonly series: number;
  /** Increases when the model or a document changes. */
  readonly revision: number;
  readonly problem?: string;
}

export type Setting = string | number | boolean | null;

export interface Run {
  readonly name: string;
  readonly created_ns: number;
  /** Its file. */
  readonly file?: string;
  /** Its id in links. */
  readonly id?: string;
  readonly host?: string;
  readonly command?: string;
  readonly torch_version?: string;
  /** The settings of the training; nested ones have dotted names. */
  readonly config?: Readonly<Record<string, Setting>>;
  readonly notes?: string;
  readonly git_commit?: string;
  readonly rank?: number;
  readonly world_size?: number;
  /** Number of values per tensor that histograms sample; null for all. */
  readonly sample_n?: number | null;
  /** The share of outliers that histograms hide by default. */
  readonly reject_outlier_proportion?: number;
}

/** A run in the table of a folder. */
export interface RunRow {
  /** What opens it. */
  readonly path: string;
  readonly id: string;
  readonly verdict: "healthy" | "warning" | "broken" | "";
  readonly cells: readonly string[];
}

export interface RunsTable {
  readonly answer: string;
  readonly notes: readonly string[];
  /** How many runs pass the filter. */
  readonly total: number;
  readonly columns: readonly { readonly key: string; readonly heading: string; readonly right: boolean }[];
  readonly rows: readonly RunRow[];
}

/** The loss of a run of the folder. */
export interface RunCurve {
  readonly path: string;
  /** Its steps, then its values, as float32 in base64: numbers as text take four times as long. */
  readonly points: string;
}

/** Some runs of the table, by their paths or as the table lists them. */
export type CurvesQuery = { readonly path: readonly string[] } | TableQuery;

export interface TableQuery {
  readonly where: string;
  readonly sort: string;
  readonly count: number;
}

export interface TablePayload {
  readonly table?: RunsTable;
  /** What is wrong with the filter. */
  readonly problem?: string;
}

export interface RunsPayload {
  readonly runs: readonly Run[];
  /** Whether there is a table of all runs of a folder. */
  readonly table?: boolean;
  /** Whether runs may be added while the page is open. */
  readonly grows?: boolean;
  /** The runs that the first one is compared with when the page opens. */
  readonly compare?: readonly number[];
  /** The kinds of reports about the first run, such as "Comparison". */
  readonly reports?: readonly string[];
}

/** What verbs such as `tg.compare` returned about the first run; only reports.js reads them. */
export interface ReportsPayload {
  readonly kinds: readonly string[];
  readonly reports: readonly unknown[];
}

/** Distances between the weights of two runs, by dotted name; null if they cannot be compared. */
export interface DistancesPayload {
  readonly distances: Readonly<Record<string, Sent>> | null;
}

export interface RunPayload {
  readonly run: Run;
  readonly status: Status;
}

export interface Series {
  readonly id: number;
  readonly path: string;
  readonly name: string;
  readonly kind?: "stats" | "histogram";
}

export interface SeriesPayload {
  readonly series: readonly Series[];
  /** The series that is the training loss. */
  readonly loss?: number | null;
  /** The statistics of layers that were recorded. */
  readonly layers?: readonly LayerStatistic[];
}

/** A number; "NaN", "Infinity" and "-Infinity" as text, which JSON cannot write as numbers. */
export type Sent = number | string;

export interface PointsPayload {
  readonly points: readonly {
    readonly series: number;
    readonly steps: readonly number[];
    /** One list per field of a point: `value`, or `mean`, `min`, `max` … */
    readonly columns: Readonly<Record<string, readonly Sent[]>>;
  }[];
}

/**
 * First and last step, exponent, first bin and counts: bin i begins at (first + i) · 2**exponent; and how many
 * values were no finite numbers.
 */
export type SentColumn = readonly [number, number, number, number, readonly number[], number];

export interface HistogramsPayload {
  readonly histograms: readonly {
    readonly series: number;
    /** Steps per column; when it changes, earlier columns are outdated. */
    readonly width: number;
    readonly columns: readonly SentColumn[];
  }[];
}

export interface GlancePayload {
  readonly step: number;
  readonly glances: readonly { readonly series: number; readonly column: SentColumn | null }[];
}

export const LAYER_STATISTICS = ["gradient", "activation", "update", "dead"] as const;
export type LayerStatistic = (typeof LAYER_STATISTICS)[number];

/** A statistic of layers × steps. */
export interface LayerHeatPayload {
  readonly title: string;
  readonly logarithmic: boolean;
  /** The number of layers and their paths; left out if only new data was requested. */
  readonly rows: number;
  readonly paths?: readonly string[];
  /** First and last step of each column. */
  readonly starts: readonly number[];
  readonly ends: readonly number[];
  /** The columns with new steps: a value per layer, null if there is none. */
  readonly columns: readonly (readonly (Sent | null)[])[];
}

/** Everything about one run, as a saved page contains it. */
export interface Snapshot {
  readonly run: RunPayload;
  readonly model: ModelPayload | NoModelPayload;
  readonly graph: GraphPayload;
  readonly findings: FindingsPayload;
  readonly measures: MeasuresPayload;
  readonly statistics: StatisticsPayload;
  readonly spans: SpansPayload;
  readonly activations: ActivationsPayload;
  readonly memory: MemoryPayload;
  readonly sources: Readonly<Record<string, ClassCode | null>>;
  readonly series: SeriesPayload;
  readonly points: PointsPayload;
  readonly histograms: HistogramsPayload;
  readonly layers: Readonly<Partial<Record<LayerStatistic, LayerHeatPayload>>>;
}
