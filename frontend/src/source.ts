/** Where the page reads from: the server it came from, or the data inside its own file. */

import type { ModelPayload, NoModelPayload, PointsPayload, RunPayload, SeriesPayload, Snapshot, Status } from "./records";

export interface Source {
  /** Whether it can say no more than it does now. */
  readonly saved: boolean;
  run(): Promise<RunPayload>;
  model(): Promise<ModelPayload | NoModelPayload>;
  series(): Promise<SeriesPayload>;
  points(series: readonly number[], after: number): Promise<PointsPayload>;
  /** Tells of new steps for as long as the run goes on. */
  follow(listener: Listener): void;
}

export interface Listener {
  status(status: Status): void;
  connected(connected: boolean): void;
}

export function findSource(): Source {
  const inside = document.getElementById("torchglass-data");
  return inside ? new SavedSource(JSON.parse(inside.textContent ?? "") as Snapshot) : new ServerSource();
}

class SavedSource implements Source {
  readonly saved = true;

  constructor(private readonly snapshot: Snapshot) {}

  run = () => Promise.resolve(this.snapshot.run);
  model = () => Promise.resolve(this.snapshot.model);
  series = () => Promise.resolve(this.snapshot.series);

  points(series: readonly number[], after: number): Promise<PointsPayload> {
    const wanted = after < 0 ? this.snapshot.points.points.filter((one) => series.includes(one.series)) : [];
    return Promise.resolve({ points: wanted });
  }

  follow(): void {}
}

class ServerSource implements Source {
  readonly saved = false;

  run = () => read<RunPayload>("api/run");
  model = () => read<ModelPayload | NoModelPayload>("api/model");
  series = () => read<SeriesPayload>("api/series");

  points(series: readonly number[], after: number): Promise<PointsPayload> {
    const query = new URLSearchParams(series.map((id) => ["series", String(id)]));
    query.set("after", String(after));
    return read<PointsPayload>(`api/points?${query}`);
  }

  follow(listener: Listener): void {
    const stream = new EventSource("api/events");
    stream.onopen = () => listener.connected(true);
    stream.onerror = () => listener.connected(false);
    stream.onmessage = (event: MessageEvent<string>) => {
      const status = JSON.parse(event.data) as Status;
      listener.status(status);
      if (status.finished) stream.close();
    };
  }
}

async function read<T>(address: string): Promise<T> {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`${address} answered ${answer.status}: ${await answer.text()}`);
  return (await answer.json()) as T;
}
