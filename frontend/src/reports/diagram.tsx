/** The block diagram of a traced model, as `tg.diagram` draws it. */

import { useEffect, useMemo } from "preact/hooks";

export interface DiagramData {
  readonly kind: "diagram";
  readonly name: string;
  /** "" if it could not be drawn. */
  readonly svg: string;
  readonly problem?: string;
}

export function Diagram({ data }: { data: DiagramData }) {
  const url = useMemo(() => URL.createObjectURL(new Blob([data.svg], { type: "image/svg+xml" })), [data.svg]);
  useEffect(() => () => URL.revokeObjectURL(url), [url]);
  if (!data.svg) return <p class="empty">The diagram could not be drawn: {data.problem}</p>;
  return (
    <figure class="diagram">
      <img src={url} alt={`Block diagram of ${data.name}`} />
      <figcaption>
        <a class="jump" href={url} download={`${data.name}.svg`}>
          Download SVG
        </a>
      </figcaption>
    </figure>
  );
}
