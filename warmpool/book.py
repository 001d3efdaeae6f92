"""All leases that this node knows: by id, by tenant in the order they were made, by deadline. Pure."""

from __future__ import annotations

import base64
import bisect
import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping

import msgspec

from warmpool.errors import BadLease, NotFound
from warmpool.leases import Lease, LeaseState


class Page(msgspec.Struct, frozen=True):
    """One page of a listing; `next` is the cursor of the following one, None on the last."""

    leases: list[Lease]
    next: str | None


class Usage(msgspec.Struct):
    """What a tenant's leases that have not ended hold together."""

    leases: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    cpu_milli: int = 0


class _Tenant:
    __slots__ = ("leases", "order", "usage")

    def __init__(self) -> None:
        self.leases: dict[str, Lease] = {}
        self.order: list[tuple[int, str]] = []
        self.usage = Usage()


class Book:
    """`ended_kept` is how many ended leases stay in memory; the ones that ended first are dropped first."""

    def __init__(self, ended_kept: int) -> None:
        self._ended_kept = ended_kept
        self._tenants: dict[str, _Tenant] = {}
        self._ended: OrderedDict[str, Lease] = OrderedDict()  # the one that ended first first
        self._deadlines: list[tuple[int, str, str]] = []  # heap of (when, tenant, id); may hold stale entries
        self._stale = 0
        self.earlier: Callable[[], object] = lambda: None
        """Called when the first deadline of all has become earlier."""
        self._last_created = 0

    def stamp(self, wall: int) -> int:
        """A creation time that no other lease has: `wall`, or just after the last one."""
        self._last_created = max(wall, self._last_created + 1)
        return self._last_created

    def add(self, lease: Lease) -> None:
        """Takes in a lease that is not over. Its id must be new."""
        self._enter(lease)
        self._account(lease, 1)
        self.schedule(lease)

    def add_ended(self, lease: Lease) -> None:
        """Takes in a lease that was over before this process began."""
        self._enter(lease)
        self._keep_ended(lease)

    def over(self, lease: Lease) -> None:
        """`lease`, which is in the book, has ended just now."""
        self._account(lease, -1)
        self._unschedule(lease)
        self._keep_ended(lease)

    def remove(self, lease: Lease) -> None:
        """Forgets it: an ended one that was kept long enough, or one that nobody ever heard of."""
        tenant = self._tenants.get(lease.tenant)
        if tenant is None or tenant.leases.pop(lease.id, None) is None:
            return
        if self._ended.pop(lease.id, None) is None and lease.ended is None:
            self._account(lease, -1)
            self._unschedule(lease)
        at = bisect.bisect_left(tenant.order, (lease.created_ns, lease.id))
        del tenant.order[at]
        if not tenant.leases:
            del self._tenants[lease.tenant]

    def get(self, tenant: str, id: str) -> Lease:
        """Raises NotFound, for another tenant's too."""
        known = self._tenants.get(tenant)
        lease = known.leases.get(id) if known else None
        if lease is None:
            raise NotFound(id)
        return lease

    def usage(self, tenant: str) -> Usage:
        known = self._tenants.get(tenant)
        return known.usage if known else Usage()

    def counts(self) -> dict[str, int]:
        """Leases by state; of ended ones, those in memory."""
        counts = {"starting": 0, "running": 0, "paused": 0, "ended": len(self._ended)}
        for lease in self.live():
            counts[lease.state] += 1
        return counts

    def live(self) -> Iterator[Lease]:
        """Every lease that has not ended."""
        for tenant in self._tenants.values():
            for lease in tenant.leases.values():
                if lease.state != "ended":
                    yield lease

    def find(
        self, tenant: str, *, state: LeaseState | None = None, metadata: Mapping[str, str] | None = None,
        limit: int = 100, cursor: str | None = None,
    ) -> Page:
        """The tenant's leases in the order they were made, those in `state` and with all of `metadata`.

        Raises BadLease for a cursor that is none."""
        known = self._tenants.get(tenant)
        if known is None:
            return Page([], None)
        at = 0 if cursor is None else bisect.bisect_right(known.order, _from_cursor(cursor))
        found: list[Lease] = []
        wanted = (metadata or {}).items()
        for _, id in known.order[at:]:
            lease = known.leases[id]
            if (state is None or lease.state == state) and wanted <= lease.metadata.items():
                if len(found) == limit:
                    return Page(found, _to_cursor(found[-1]))
                found.append(lease)
        return Page(found, None)

    # -- deadlines

    def schedule(self, lease: Lease) -> None:
        """Sees to it that `lease` comes up at its deadline. To be called whenever that may have become earlier."""
        deadline = lease.deadline()
        if deadline is None or (lease.scheduled is not None and lease.scheduled <= deadline):
            return  # it comes up early enough and is then put back
        self._unschedule(lease)
        lease.scheduled = deadline
        heapq.heappush(self._deadlines, (deadline, lease.tenant, lease.id))
        if self._deadlines[0][0] == deadline:
            self.earlier()

    def come_up(self, now: int) -> list[Lease]:
        """The leases that are due at `now`. Those whose deadline moved meanwhile are put back."""
        due: list[Lease] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            at, tenant, id = heapq.heappop(self._deadlines)
            known = self._tenants.get(tenant)
            lease = known.leases.get(id) if known else None
            if lease is None or lease.scheduled != at:
                self._stale -= 1
                continue
            lease.scheduled = None
            if lease.due(now) is not None:
                due.append(lease)
            else:
                self.schedule(lease)
        return due

    def next_deadline(self) -> int | None:
        return self._deadlines[0][0] if self._deadlines else None

    def old(self, before_wall: int) -> list[Lease]:
        """The ended leases that ended before `before_wall`."""
        found: list[Lease] = []
        for lease in self._ended.values():
            if lease.ended is None or lease.ended.at >= before_wall:
                break
            found.append(lease)
        return found

    # -- inside

    def _unschedule(self, lease: Lease) -> None:
        if lease.scheduled is None:
            return
        lease.scheduled = None
        self._stale += 1
        if self._stale > 1024 and self._stale > len(self._deadlines) // 2:  # else short leases with long ttls pile up
            self._stale = 0
            self._deadlines = [(lease.scheduled, lease.tenant, lease.id) for lease in self.live()
                               if lease.scheduled is not None]
            heapq.heapify(self._deadlines)

    def _enter(self, lease: Lease) -> None:
        tenant = self._tenants.setdefault(lease.tenant, _Tenant())
        if lease.id in tenant.leases:
            raise ValueError(f"lease {lease.id} is in the book already")
        tenant.leases[lease.id] = lease
        bisect.insort(tenant.order, (lease.created_ns, lease.id))
        self._last_created = max(self._last_created, lease.created_ns)

    def _keep_ended(self, lease: Lease) -> None:
        self._ended[lease.id] = lease
        while len(self._ended) > self._ended_kept:
            self.remove(next(iter(self._ended.values())))

    def _account(self, lease: Lease, sign: int) -> None:
        usage, spec = self._tenants[lease.tenant].usage, lease.spec
        usage.leases += sign
        usage.memory_bytes += sign * spec.memory_bytes
        usage.disk_bytes += sign * spec.disk_bytes
        usage.cpu_milli += sign * spec.cpu_milli


def _to_cursor(lease: Lease) -> str:
    return base64.urlsafe_b64encode(f"{lease.created_ns}.{lease.id}".encode()).decode().rstrip("=")


def _from_cursor(cursor: str) -> tuple[int, str]:
    try:
        created, id = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().split(".")
        return int(created), id
    except ValueError:
        raise BadLease("/cursor", "not a cursor of this listing") from None
