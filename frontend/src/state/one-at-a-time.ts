/** Runs a task again after the current run if it was requested meanwhile, never in parallel. */
export function oneAtATime(task: () => Promise<void>): () => Promise<void> {
  let busy = false;
  let again = false;
  return async () => {
    again = true;
    if (busy) return;
    busy = true;
    try {
      while (again) {
        again = false;
        await task();
      }
    } finally {
      busy = false;
    }
  };
}
