/** Requests layouts from a worker, or from the page's own thread if there is no worker. */

import type { Boxes, Placed } from "./layout";
import type { Answer, Question } from "./layout.worker";

type Ask = (question: Question) => Promise<Answer>;

let asking: Promise<Ask> | undefined;
let asked = 0;

export async function placeBoxes(level: Boxes): Promise<Placed> {
  asking ??= startWorker().catch(loadHere);
  const { placed, problem } = await (await asking)({ number: asked++, level });
  if (!placed) throw new Error(`the graph could not be laid out: ${problem}`);
  return placed;
}

/** The layout's code: a separate file, or inside the page. */
function codeAddress(): string {
  const inside = document.getElementById("torchglass-layout");
  if (!inside) return "layout.js";
  return URL.createObjectURL(new Blob([inside.textContent ?? ""], { type: "text/javascript" }));
}

async function startWorker(): Promise<Ask> {
  const worker = new Worker(codeAddress());
  const waiting = new Map<number, (answer: Answer) => void>();
  worker.onmessage = ({ data }: MessageEvent<Answer>) => {
    waiting.get(data.number)?.(data);
    waiting.delete(data.number);
  };
  const ask: Ask = (question) =>
    new Promise((resolve) => {
      waiting.set(question.number, resolve);
      worker.postMessage(question);
    });
  const failed = new Promise<never>((_, reject) => {
    worker.onerror = (event) => reject(new Error(event.message || "no worker"));
  });
  // A browser may refuse a worker only later: the first answer shows that it works.
  await Promise.race([ask({ number: -1, level: { boxes: [], links: [] } }), failed]);
  return ask;
}

function loadHere(): Promise<Ask> {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.onload = () => {
      const here = globalThis as unknown as { torchglassLayout: (question: Question) => Answer };
      resolve((question) => Promise.resolve(here.torchglassLayout(question)));
    };
    script.onerror = () => reject(new Error("the layout could not be loaded"));
    script.src = codeAddress();
    document.head.append(script);
  });
}
