"""Leases: create (one, many, as a stream), get, list, patch, delete, tokens. What a lease is lies in `warmpool`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway import codec
from gateway.commands import digest_of
from gateway.errors import BadRequest, tell
from gateway.idempotency import key_of
from gateway.leases import ask_of
from gateway.requests import LeaseAsk, LeasePatch, PageQuery
from gateway.schema import convert
from gateway.services import Services
from gateway.stream import Stream
from warmpool.leases import IdempotencyKey, Lease, LeaseState
from warmpool.order import LeaseProblem

BATCH = 128
"""Lines of a stream of leases that may go out together, if they are ready together."""
_STATES = ("starting", "running", "paused", "ended")
DEFAULT_WAIT_S = 60.0

Made = AsyncGenerator[Lease | LeaseProblem, None]


def moment(wall_ns: int) -> str:
    """RFC 3339, UTC, milliseconds."""
    return datetime.fromtimestamp(wall_ns / 1e9, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class LeaseRoutes:
    """Endpoints of leases."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.leases = services.leases
        self._settings = services.settings

    def show(self, lease: Lease, *, token: bool = False) -> dict[str, Any]:
        """A lease as API.md shows it; with a token for its data routes when it is new."""
        shown: dict[str, Any] = {
            "id": lease.id,
            "kind": lease.kind,
            "backend": lease.backend,
            "state": lease.state,
            "node": self._settings.node,
            "endpoint": self._settings.endpoint,
            "created_at": moment(lease.created_ns),
            "expires_at": moment(lease.expires_ns),
            "idle_s": lease.idle_s,
            "metadata": lease.metadata,
            "warmth": lease.warmth,
            "timing": {"claim_ns": lease.claim_ns, "total_ns": lease.total_ns},
        }
        if token:
            shown["token"] = self._token(lease.tenant, lease.id)
        if lease.ended is not None:
            shown["ended"] = {"at": moment(lease.ended.at), "reason": lease.ended.reason, "detail": lease.ended.detail}
        return shown

    def _token(self, tenant: str, id: str) -> str:
        return self.services.auth.mint(tenant, {"lease"}, self._settings.maximum.ttl_s, lease=id)

    async def create(self, request: Request) -> Response:
        """`POST /v1/leases`."""
        ask, body = await codec.read(request, LeaseAsk, self._settings.bodies.request_mb << 20)
        self.services.need_kind(ask.kind)
        resolved = ask_of(ask, self._settings.maximum)
        self.services.need_backend(ask.backend)
        tenant = request.scope["caller"].tenant
        text = key_of(request.headers.get("idempotency-key"))
        key = None if text is None else IdempotencyKey("POST /v1/leases", text, digest_of(body).hex())
        count = ask.count or 1
        wait_s = DEFAULT_WAIT_S if ask.wait_s is None else ask.wait_s
        made = self.leases.create(resolved, tenant=tenant, count=count, wait_s=wait_s, key=key)
        if codec.accepts(request, codec.NDJSON):
            return Stream(self._lines(request, made), status=201, media_type=codec.NDJSON)
        return await self._whole(request, made, keep=key is not None, several=ask.count is not None and count > 1)

    async def _whole(self, request: Request, made: Made, *, keep: bool, several: bool) -> Response:
        """All leases in one answer; if one cannot be made, none is kept, unless a repeat under the key will ask for them."""
        leases: list[Lease] = []
        try:
            async with contextlib.aclosing(made):
                async for item in made:
                    if isinstance(item, LeaseProblem):
                        raise item.error
                    self._count(item)
                    leases.append(item)
        except BaseException:
            if not keep:
                self._undo(leases)
            raise
        leases.sort(key=lambda lease: lease.index)
        shown = [self.show(lease, token=True) for lease in leases]
        status = 202 if any(lease.state == "starting" for lease in leases) else 201
        data, media = codec.encode(request, shown if several else shown[0])
        return _Delivered(data, status, media_type=media, undo=lambda: None if keep else self._undo(leases))

    def _undo(self, leases: list[Lease]) -> None:
        for lease in leases:
            self.services.background(self.leases.delete(lease.tenant, lease.id))

    def _count(self, lease: Lease) -> None:
        if lease.state == "running":
            self.services.metrics.claimed("lease", lease.warmth, lease.claim_ns)

    async def _lines(self, request: Request, made: Made) -> AsyncIterator[bytes]:
        """A line per lease or problem. Lines that are ready together go out together; what was not written is undone."""
        request_id = request.scope["request_id"]
        step: asyncio.Future[Lease | LeaseProblem | None] = asyncio.ensure_future(_next(made))
        unwritten: list[Lease] = []
        try:
            while True:
                batch: list[bytes] = []
                item = await asyncio.shield(step)
                while item is not None:
                    if isinstance(item, LeaseProblem):
                        batch.append(codec.line({"index": item.index, "problem": tell(item.error, request_id).body}))
                    else:
                        self._count(item)
                        unwritten.append(item)
                        batch.append(codec.line({"index": item.index, "lease": self.show(item, token=True)}))
                    step = asyncio.ensure_future(_next(made))
                    await asyncio.sleep(0)
                    if len(batch) >= BATCH or not step.done():
                        break
                    item = step.result()
                if batch:
                    yield b"".join(batch)
                    if request.scope["interrupt"].reason is None:
                        unwritten.clear()
                if item is None:
                    return
        finally:
            if not step.done():
                step.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await step
            await made.aclose()
            if request.headers.get("idempotency-key") is None:
                self._undo(unwritten)

    async def list(self, request: Request) -> Response:
        """`GET /v1/leases`."""
        rest, metadata = filters(request)
        state = rest.pop("state", None)
        if state is not None and state not in _STATES:
            raise BadRequest(f"a state is one of {', '.join(_STATES)}", field="/state")
        query = convert(rest, PageQuery)
        page = self.leases.find(
            request.scope["caller"].tenant, state=cast(LeaseState | None, state), metadata=metadata, limit=query.limit, cursor=query.cursor
        )
        return codec.reply(request, {"leases": [self.show(lease) for lease in page.leases], "next": page.next})

    async def get(self, request: Request) -> Response:
        """`GET /v1/leases/{id}`, also for 24 h after its end."""
        return codec.reply(request, self.show(self.leases.get(request.scope["caller"].tenant, request.path_params["id"])))

    async def patch(self, request: Request) -> Response:
        """`PATCH /v1/leases/{id}`."""
        ask, _ = await codec.read(request, LeasePatch, 1 << 20)
        lease = await self.leases.patch(
            request.scope["caller"].tenant,
            request.path_params["id"],
            ttl_s=None if ask.ttl_s is msgspec.UNSET else ask.ttl_s,
            idle_s=ask.idle_s,
            metadata=None if ask.metadata is msgspec.UNSET else ask.metadata,
        )
        return codec.reply(request, self.show(lease))

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/leases/{id}`, as often as you like."""
        lease = await self.leases.delete(request.scope["caller"].tenant, request.path_params["id"])
        self.services.processes.drop(lease.id)
        return codec.reply(request, self.show(lease))

    async def delete_matching(self, request: Request) -> Response:
        """`DELETE /v1/leases?metadata.job=j1`."""
        rest, metadata = filters(request)
        if rest:
            raise BadRequest("only metadata.<key> can choose leases to delete", field=f"/{next(iter(rest))}")
        count = await self.leases.delete_matching(request.scope["caller"].tenant, metadata)
        return codec.reply(request, {"deleted": count})

    async def token(self, request: Request) -> Response:
        """`POST …/token`: for this lease's data routes alone."""
        tenant, id = request.scope["caller"].tenant, request.path_params["id"]
        async with self.leases.hold(tenant, id):
            return codec.reply(request, {"token": self._token(tenant, id)}, 201)


def filters(request: Request) -> tuple[dict[str, str], dict[str, str]]:
    """The query split into plain parameters and `metadata.<key>` ones."""
    rest: dict[str, str] = {}
    metadata: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name.startswith("metadata."):
            metadata[name.removeprefix("metadata.")] = value
        else:
            rest[name] = value
    return rest, metadata


class _Delivered(Response):
    """An answer that is undone if it could not be given to the connection."""

    def __init__(self, data: bytes, status: int, *, media_type: str, undo: Any) -> None:
        super().__init__(data, status, media_type=media_type)
        self._undo = undo

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The body goes out before the end is said: a client that closes once it has read everything has been given it."""
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self.body, "more_body": True})
        except BaseException:
            self._undo()
            raise
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _next(made: Made) -> Lease | LeaseProblem | None:
    return await anext(made, None)
