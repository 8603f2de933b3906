/** What the server sends: the records of `torchglass.records`, a field at its default left out. */

export interface TensorSpec {
  readonly shape: readonly number[] | null;
  readonly dtype: string;
  readonly device?: string;
  readonly bytes?: number;
  readonly layout?: string;
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

/** What is sent while a run has no model. */
export interface NoModelPayload {
  readonly model: null;
}

export interface ModelPayload {
  readonly model: { readonly name: string; readonly origin?: string; readonly modules: readonly Module[] };
  readonly counts: {
    readonly fields: readonly string[];
    /** A row of `fields` for each module: what it holds itself, and with all below it. */
    readonly own: readonly (readonly number[])[];
    readonly total: readonly (readonly number[])[];
  };
}

export interface Status {
  readonly last_step: number;
  readonly finished: boolean;
  /** How many series there are by now. */
  readonly series: number;
}

export interface RunPayload {
  readonly run: {
    readonly name: string;
    readonly created_ns: number;
    readonly host?: string;
    readonly command?: string;
    readonly torch_version?: string;
  };
  readonly status: Status;
}

export interface Series {
  readonly id: number;
  readonly path: string;
  readonly name: string;
  readonly kind?: "stats";
}

export interface SeriesPayload {
  readonly series: readonly Series[];
}

/** A number; "NaN", "Infinity" and "-Infinity" stand for what JSON cannot write. */
export type Sent = number | string;

export interface PointsPayload {
  readonly points: readonly {
    readonly series: number;
    readonly steps: readonly number[];
    /** One list for each number of a point: `value`, or `mean`, `min`, `max` … */
    readonly columns: Readonly<Record<string, readonly Sent[]>>;
  }[];
}

/** All of it at once: what a page that is saved as one file carries. */
export interface Snapshot {
  readonly run: RunPayload;
  readonly model: ModelPayload | NoModelPayload;
  readonly series: SeriesPayload;
  readonly points: PointsPayload;
}
