"""Taking steps out of a run file that has become too large, so that it still tells the whole story.

The newest quarter of the frames stays whole. Before it, frames go where they stand closest, so that
what remains is spread evenly over the run, however long it lasts; the first one always stays.
"""

from __future__ import annotations

import sqlite3

import numpy as np
import numpy.typing as npt

FEWEST_FRAMES = 16
"""A file with no more than these is not thinned any further."""


def used_bytes(connection: sqlite3.Connection) -> int:
    """What the file holds, without the room that it can fill again before it grows."""
    ((pages,),) = connection.execute("PRAGMA page_count")
    ((free,),) = connection.execute("PRAGMA freelist_count")
    ((size,),) = connection.execute("PRAGMA page_size")
    return int((pages - free) * size)


def thin(connection: sqlite3.Connection) -> int:
    """Take out some of the frames, a quarter at most; how many that were."""
    # Sorted here, because in the order of the index nothing but the index is read.
    rows = sorted(connection.execute("SELECT id, step FROM frames INDEXED BY frames_by_step"))
    if len(rows) <= FEWEST_FRAMES:
        return 0
    ids, steps = np.array(rows, np.int64).T
    superfluous = ids[choose(steps)].tolist()
    connection.executemany("DELETE FROM frames WHERE id = ?", [(each,) for each in superfluous])
    return len(superfluous)


def choose(steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The places of the frames that are missed least, a quarter of them at most, in order."""
    # Every second one, so that no two neighbours go at once and a gap at most doubles.
    candidates = np.arange(1, len(steps) * 3 // 4, 2)
    gaps = np.abs(steps[candidates + 1] - steps[candidates - 1])
    close = max(2 * gaps.min(), np.quantile(gaps, 1 / 4))
    closest = np.argsort(gaps, kind="stable")[: len(steps) // 4]
    return np.sort(candidates[closest[gaps[closest] <= close]])
