import { formatShort } from "../data/formats";
import type { BothHistograms } from "./comparison-rows";

const WIDTH = 300;
const HEIGHT = 64;

/** The old values as an area, the new ones as a line, in the same bins. */
export function BeforeAndAfter({ name, bins }: { name: string; bins: BothHistograms }) {
  const highest = Math.max(1, ...bins.before, ...bins.after);
  return (
    <figure class="histogram" data-testid="histogram">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={`Values of ${name} before and after`}>
        <path class="before" d={`${outline(bins.before, highest)} L${WIDTH} ${HEIGHT} L0 ${HEIGHT} Z`} />
        <path class="after" d={outline(bins.after, highest)} />
      </svg>
      <figcaption>
        <span>{formatShort(bins.low)}</span>
        <span>
          <i class="before" /> a <i class="after" /> b
        </span>
        <span>{formatShort(bins.high)}</span>
      </figcaption>
    </figure>
  );
}

function outline(counts: readonly number[], highest: number): string {
  const width = WIDTH / counts.length;
  const y = (count: number) => (HEIGHT - 1 - (count / highest) * (HEIGHT - 3)).toFixed(1);
  return counts.map((count, at) => `${at ? "L" : "M"}${(at * width).toFixed(1)} ${y(count)} H${((at + 1) * width).toFixed(1)}`).join(" ");
}
