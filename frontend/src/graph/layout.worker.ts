/** The layout in a worker; as a plain script it serves pages without workers. */

import { type Boxes, place, type Placed } from "./layout";

export interface Question {
  readonly number: number;
  readonly level: Boxes;
}

export interface Answer {
  readonly number: number;
  readonly placed: Placed | null;
  readonly problem: string;
}

function answer({ number, level }: Question): Answer {
  try {
    return { number, placed: place(level), problem: "" };
  } catch (problem) {
    return { number, placed: null, problem: String(problem) };
  }
}

const outside = globalThis as unknown as { document?: unknown; torchglassLayout?: typeof answer };
if (outside.document) outside.torchglassLayout = answer;
else addEventListener("message", (event: MessageEvent<Question>) => postMessage(answer(event.data)));
