"""What leases there were, in SQLite: written behind by a thread of its own, read at start. Never on the claim path.

The spawner's records are the truth about leases that live; the journal adds those that have ended, and lets a start
notice the ones that vanished with a spawner. Killing this process loses at most what the thread had not written yet.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import msgspec

log = logging.getLogger(__name__)

_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS leases (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, record BLOB NOT NULL, ended BLOB, ended_at INTEGER
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS leases_ended_at ON leases (ended_at);
"""
_PUT = "INSERT OR REPLACE INTO leases (id, tenant, record, ended, ended_at) VALUES (?, ?, ?, ?, ?)"
_BATCH = 2048


class Row(msgspec.Struct, frozen=True):
    """One lease. `ended` and `ended_at` (wall clock, ns) are None while it lives."""

    id: str
    tenant: str
    record: bytes
    ended: bytes | None = None
    ended_at: int | None = None


class Journal:
    """`pending_max` bounds the rows that wait to be written; beyond it the oldest are lost and counted in `dropped`.

    A write waits `busy_s` for another process's lock; one that fails is tried again every `retry_s`."""

    def __init__(
        self, path: Path, *, rows_max: int = 1_000_000, pending_max: int = 65_536, busy_s: float = 5.0,
        retry_s: float = 1.0,
    ) -> None:
        self._path = path
        self._rows_max = rows_max
        self._pending_max = pending_max
        self._busy_s = busy_s
        self._retry_s = retry_s
        self._pending: OrderedDict[str, Row | None] = OrderedDict()  # None: delete the row
        self._purge_before: int | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._writing = False
        self._thread: threading.Thread | None = None
        self._reader: sqlite3.Connection | None = None
        self.dropped = 0
        self.failures = 0
        """Writes that failed."""

    def open(self, *, ended_max: int) -> list[Row]:
        """Opens or makes the file and starts the thread. Blocks.

        Returns every lease that had not ended, and of the ended ones the last `ended_max`, by when they ended.
        A damaged file is put aside (`.damaged`) and begun anew. Raises OSError, sqlite3.Error."""
        try:
            rows = self._read(ended_max)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            log.error("the lease journal %s is damaged (%s); it is put aside", self._path, error)
            self._path.replace(self._path.with_name(self._path.name + ".damaged"))
            for suffix in ("-wal", "-shm"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
            rows = self._read(ended_max)
        self._thread = threading.Thread(target=self._write_behind, name="lease journal", daemon=True)
        self._thread.start()
        return rows

    def put(self, row: Row) -> None:
        """Queues the row; a later one of the same id replaces it. Never blocks."""
        self._queue(row.id, row)

    def drop(self, id: str) -> None:
        """Queues the row's removal. Never blocks."""
        self._queue(id, None)

    def purge(self, before_wall: int) -> None:
        """Queues the removal of leases that ended before `before_wall`. Never blocks."""
        with self._changed:
            self._purge_before = before_wall
            self._changed.notify()

    def find(self, tenant: str, id: str) -> Row | None:
        """The row as it was last written; None if there is none of this tenant. Reads the disk (tens of µs)."""
        if self._reader is None:
            return None
        found = self._reader.execute(
            "SELECT id, tenant, record, ended, ended_at FROM leases WHERE id = ? AND tenant = ?", (id, tenant)
        ).fetchone()
        return Row(*found) if found else None

    def flush(self) -> None:
        """Blocks until everything queued so far is written, or cannot be."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._is_asked() or self._writing) or not self._is_alive(), timeout=10)

    def close(self) -> None:
        """Writes what is queued and closes the file. Blocks."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    # -- inside

    def _is_asked(self) -> bool:
        return bool(self._pending) or self._purge_before is not None

    def _is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=self._busy_s)

    def _read(self, ended_max: int) -> list[Row]:
        reader = self._connect()
        try:
            reader.executescript(_SCHEMA)
            columns = "SELECT id, tenant, record, ended, ended_at FROM leases"
            rows = [Row(*row) for row in reader.execute(f"{columns} WHERE ended_at IS NULL")]
            last = reader.execute(
                f"{columns} WHERE ended_at IS NOT NULL ORDER BY ended_at DESC LIMIT ?", (ended_max,)
            ).fetchall()
        except BaseException:
            reader.close()
            raise
        self._reader = reader
        return rows + [Row(*row) for row in reversed(last)]

    def _queue(self, id: str, row: Row | None) -> None:
        with self._changed:
            self._pending[id] = row
            self._pending.move_to_end(id)
            if len(self._pending) > self._pending_max:
                self._pending.popitem(last=False)
                self.dropped += 1
            self._changed.notify()

    def _write_behind(self) -> None:
        with contextlib.closing(self._connect()) as writer:
            while True:
                with self._changed:
                    self._writing = False
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._is_asked() or self._closing)
                    if not self._is_asked():
                        return
                    batch = [self._pending.popitem(last=False) for _ in range(min(_BATCH, len(self._pending)))]
                    purge, self._purge_before = self._purge_before, None
                    self._writing = True
                try:
                    with _transaction(writer):
                        self._write(writer, batch, purge)
                except sqlite3.Error:
                    self.failures += 1
                    log.exception("the lease journal cannot be written")
                    self._put_back(batch)
                    if self._closing:
                        return
                    time.sleep(self._retry_s)

    def _write(self, writer: sqlite3.Connection, batch: list[tuple[str, Row | None]], purge: int | None) -> None:
        writer.executemany(_PUT, [msgspec.structs.astuple(row) for _, row in batch if row is not None])
        writer.executemany("DELETE FROM leases WHERE id = ?", [(id,) for id, row in batch if row is None])
        if purge is not None:
            writer.execute("DELETE FROM leases WHERE ended_at < ?", (purge,))
            (rows,) = writer.execute("SELECT count(*) FROM leases").fetchone()
            if rows > self._rows_max:
                writer.execute(
                    "DELETE FROM leases WHERE id IN (SELECT id FROM leases WHERE ended_at IS NOT NULL "
                    "ORDER BY ended_at LIMIT ?)", (rows - self._rows_max,)
                )

    def _put_back(self, batch: list[tuple[str, Row | None]]) -> None:
        with self._changed:
            for id, row in reversed(batch):
                if id not in self._pending:
                    self._pending[id] = row
                    self._pending.move_to_end(id, last=False)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
