/** Runs a task once more after the current time if it was asked for meanwhile, never side by side. */
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
