/** The names of series as `watch` gives them: "eval:2:output.0.grad" is about the second call in evaluation. */

export interface SeriesName {
  readonly isEvaluation: boolean;
  /** Which call of the module; "more" is all calls without separate series. */
  readonly call: number | "more";
  /** "output.0", "weight"; the same for a value and its gradient. */
  readonly what: string;
  /** The statistic, such as "grad" or "grad.zeros"; "" is the value itself. */
  readonly aspect: string;
}

const ASPECTS: Readonly<Record<string, string>> = {
  grad: "gradient",
  grad_norm: "gradient norm",
  update: "update / weight",
  zeros: "share of zeros",
};

const NAME = new RegExp(`^(eval:)?(?:(\\d+|more):)?(.*?)((?:\\.(?:${Object.keys(ASPECTS).join("|")}))*)$`, "s");

/** Calls after this one share their series. */
const MOST_CALLS = 16;

export function readName(name: string): SeriesName {
  const [, evaluation, call, what = "", aspects = ""] = NAME.exec(name)!;
  return {
    isEvaluation: !!evaluation,
    call: call === "more" ? "more" : Number(call ?? 1),
    what,
    aspect: aspects.slice(1),
  };
}

/** Whether it is an input or output of a module. */
export function isFlow({ what }: SeriesName, root: "input" | "output"): boolean {
  return what === root || what.startsWith(`${root}.`);
}

/** The prefix of series of the call with this number. */
export function callName(number: number): number | "more" {
  return number > MOST_CALLS ? "more" : number;
}

/** A readable name; without the call if its position shows that. */
export function titleOf(name: string, saysCall = true): string {
  const { isEvaluation, call, what, aspect } = readName(name);
  const which = call === "more" ? "later calls" : call > 1 ? `call ${call}` : "";
  const of = aspect && ` (${aspect.split(".").map((one) => ASPECTS[one]).join(", ")})`;
  const said = what.replace(/^(input|output)\./, "$1 ") + of;
  return [said, saysCall && which, isEvaluation && "evaluation"].filter(Boolean).join(" · ");
}

/** Readable names of what `watch` measures for the whole run. */
const OF_THE_RUN: Readonly<Record<string, string>> = {
  lr: "learning rate",
  grad_scale: "gradient scale",
  "time.forward": "seconds in forward",
  "time.step": "seconds per step",
  "ranks.slowest": "slowest rank",
  "ranks.longest_seconds": "seconds per step, slowest rank",
  "ranks.shortest_seconds": "seconds per step, fastest rank",
};

/** The name of a scalar of the whole run; logged values keep their names. */
export function titleOfRun(name: string): string {
  const group = /^lr\.(\d+)$/.exec(name)?.[1];
  return group ? `learning rate, group ${group}` : (OF_THE_RUN[name] ?? titleOf(name));
}

/** Sort order of scalars: logged values first, then the whole run, then modules. */
export function rankOfScalar(path: string, name: string): number {
  if (path || readName(name).aspect) return 2;
  return titleOfRun(name) === name ? 0 : 1;
}
