"""How run files of earlier versions are read and resumed; `store.schema` tells what they hold."""

from __future__ import annotations

VIEWS = {
    1: """
    PRAGMA temp_store = MEMORY;
    CREATE TEMP VIEW documents AS
        SELECT 2 * id AS id, 'model' AS kind, json FROM main.model
        UNION ALL SELECT 2 * id + 1, 'trace', json FROM main.trace;
    CREATE TEMP VIEW sessions AS
        SELECT 1 AS id, value AS run, (SELECT min(step) FROM main.frames) AS first_step
        FROM main.meta WHERE key = 'run';
    CREATE TEMP VIEW frames AS
        SELECT id, step, time_ns, 1 AS session, blob, NULL AS bins FROM main.frames;
    """,
}
"""What makes a file of an earlier version look like one of today, without writing to it."""

UPGRADES = {
    1: """
    CREATE TABLE documents (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, json BLOB NOT NULL);
    INSERT INTO documents (kind, json) SELECT 'model', json FROM model;
    INSERT INTO documents (kind, json) SELECT 'trace', json FROM trace;
    DROP TABLE model;
    DROP TABLE trace;
    CREATE TABLE sessions (id INTEGER PRIMARY KEY, run TEXT NOT NULL, first_step INTEGER);
    INSERT INTO sessions SELECT 1, value, (SELECT min(step) FROM frames)
        FROM meta WHERE key = 'run';
    ALTER TABLE frames ADD COLUMN session INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE frames ADD COLUMN bins BLOB;
    DROP INDEX frames_by_step;
    CREATE INDEX frames_by_step ON frames (step, session);
    PRAGMA user_version = 2;
    """,
}
"""What turns a file of an earlier version into one of today, when a run is resumed."""
