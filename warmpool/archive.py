"""Leases in the journal: what is noted of them, and what is read back. With no journal, nothing is kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from warmpool.errors import NotFound
from warmpool.ids import ID
from warmpool.journal import Journal, Row
from warmpool.leases import Ended, Lease
from warmpool.pacing import NS
from warmpool.record import BadRecord, decode, decode_ended, encode, encode_ended, ended_lease

log = logging.getLogger(__name__)


class Archive:
    """`wall` is the time of day in ns; `retention_s` is how long ended leases can be read."""

    def __init__(self, journal: Journal | None, retention_s: float, wall: Callable[[], int]) -> None:
        self._journal = journal
        self._retention_ns = int(retention_s * NS)
        self._wall = wall

    async def open(self, ended_max: int) -> list[Row]:
        """Every lease that had not ended, and the last `ended_max` that had."""
        return [] if self._journal is None else await asyncio.to_thread(self._journal.open, ended_max=ended_max)

    async def close(self) -> None:
        """Returns once everything noted is written."""
        if self._journal is not None:
            await asyncio.to_thread(self._journal.close)

    def note(self, lease: Lease) -> None:
        """The lease as it is now. Never blocks."""
        if self._journal is None:
            return
        ended = lease.ended
        self._journal.put(Row(
            lease.id, lease.tenant, encode(lease.facts),
            None if ended is None else encode_ended(ended), None if ended is None else ended.at,
        ))

    def drop(self, lease: Lease) -> None:
        """There never was such a lease. Never blocks."""
        if self._journal is not None:
            self._journal.drop(lease.id)

    def oldest(self) -> int:
        """Leases that ended before this moment (wall clock) are forgotten."""
        return self._wall() - self._retention_ns

    def purge(self) -> None:
        """Removes what is too old. Never blocks."""
        if self._journal is not None:
            self._journal.purge(self.oldest())

    def find(self, tenant: str, id: str) -> Lease:
        """An ended lease, read from the disk. Raises NotFound."""
        row = self._journal.find(tenant, id) if self._journal is not None and ID.fullmatch(id) else None
        lease = None if row is None or row.ended is None else self.lease(row)
        if lease is None or lease.ended is None or lease.ended.at < self.oldest():
            raise NotFound(id)
        return lease

    def lease(self, row: Row) -> Lease | None:
        """The row's lease, which is over: one that lived when it was written ended by its ttl since, or was lost.

        None if the row cannot be read."""
        try:
            facts = decode(row.record)
            ended = None if row.ended is None else decode_ended(row.ended)
        except BadRecord as error:
            log.error("the journal's row of lease %s cannot be read (%s)", row.id, error)
            return None
        if ended is None:
            wall = self._wall()
            over = facts.expires_wall <= wall
            ended = Ended(facts.expires_wall, "ttl") if over else Ended(wall, "lost", "it was gone after a restart")
        return ended_lease(facts, ended)
