"""`POST /v1/run` and `GET /v1/languages`: from HTTP to the call engine and back."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway import codec
from gateway.admission import urgency_of
from gateway.calls import call_of
from gateway.errors import BadRequest, DeadlineExceeded, Unsupported
from gateway.requests import RunAsk
from gateway.services import Services
from runtimes.call import CallRefused, DeadlinePassed


class RunRoutes:
    """Endpoints of calls."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self._limit = services.settings.bodies.request_mb << 20

    async def run(self, request: Request) -> Response:
        """`POST /v1/run`: 200 whenever the program was run, whatever became of it."""
        begin = time.perf_counter_ns()
        ask, _ = await codec.read(request, RunAsk, self._limit)
        if "respond-async" in request.headers.get("prefer", ""):
            raise Unsupported("asynchronous calls are not part of this service: wait for the answer")
        if codec.accepts(request, codec.EVENTS):
            raise Unsupported("calls as event streams are not part of this service: ask for application/json")
        self.services.need_kind(ask.kind)
        call = call_of(ask, self.services.settings.maximum)
        self.services.need_backend(ask.backend)
        tenant = request.scope["caller"].tenant
        async with self.services.admission.turn(tenant, urgency_of(request.headers.get("priority"))):
            queue_ns = time.perf_counter_ns() - begin
            try:
                result = await self.services.engine.run(call, tenant=tenant, deadline_ns=request.scope["deadline_ns"])
            except CallRefused as refused:
                raise BadRequest(refused.detail, field=refused.field) from None
            except DeadlinePassed as passed:
                raise DeadlineExceeded("Stokehold-Timeout-Ms has passed; the work was cancelled") from passed
        timing = msgspec.structs.replace(result.timing, queue_ns=result.timing.queue_ns + queue_ns, total_ns=time.perf_counter_ns() - begin)
        self.services.metrics.call_ended(result.status)
        if result.warmth is not None:
            self.services.metrics.claimed("call", result.warmth, result.timing.claim_ns)
        return codec.reply(request, msgspec.structs.replace(result, timing=timing))

    async def languages(self, request: Request) -> Response:
        """`GET /v1/languages`: those whose tools this node has."""
        return codec.reply(request, {"languages": self.services.languages.list()})
