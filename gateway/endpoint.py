"""One route: method, path, who may use it, what it takes and gives. Everything that is the same for all routes happens here.

The order: routing, authentication, scope, draining, idempotency, the endpoint."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from gateway.body import read_body
from gateway.codec import content_type
from gateway.commands import digest_of
from gateway.errors import Draining, Unsupported
from gateway.idempotency import Answer, key_of
from gateway.services import Services
from gateway.stream import Whole

Handler = Callable[[Request], Awaitable[Response]]
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


@dataclass(frozen=True)
class Endpoint:
    """A row of the route table. `scope` None: open to everybody. `data`: a lease's own token may use it. `keyed`: answers
    under an idempotency key are kept here (other routes do that themselves)."""

    method: str
    path: str
    handler: Handler
    scope: str | None = None
    takes: type | None = None
    gives: Any = None
    data: bool = False
    keyed: bool = True

    def route(self, services: Services) -> Route:
        """The Starlette route."""
        return Route(self.path, _Guard(self, services), methods=[self.method])


class _Guard:
    """An ASGI endpoint: lets a request through to its handler, or raises."""

    def __init__(self, endpoint: Endpoint, services: Services) -> None:
        self.endpoint = endpoint
        self.services = services
        self._limit = services.settings.bodies.request_mb << 20

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route_path"] = self.endpoint.path
        request = Request(scope, receive, send)
        if self.endpoint.scope is None:
            response = await self.endpoint.handler(request)
            await response(scope, receive, send)
            return
        caller = scope["caller"] = self.services.auth.caller(request.headers)
        caller.need(self.endpoint.scope, lease=request.path_params.get("id"), data=self.endpoint.data)
        drain = self.services.drain
        if drain.begun:
            raise Draining("the service is going away and takes no new work")
        drain.working += 1
        try:
            response = await self._answer(request, caller.tenant)
            await response(scope, receive, send)
        finally:
            drain.leave()

    async def _answer(self, request: Request, tenant: str) -> Response:
        key = key_of(request.headers.get("idempotency-key"))
        if key is None or not self.endpoint.keyed or request.method != "POST":
            return await self.endpoint.handler(request)
        body = await read_body(request, self._limit)

        async def work() -> Answer:
            response = await self.endpoint.handler(Request(request.scope, _replay(body, request.receive)))
            return Answer(response.status_code, response.headers.get("content-type", ""), bytes(response.body))

        query = (request.url.query.encode(),) if request.url.query else ()
        where = (tenant, f"{request.method} {request.url.path}", key)
        answer, replayed = await self.services.once.once(where, digest_of(content_type(request).encode(), *query, body), work)
        headers = {"Idempotency-Replayed": "true"} if replayed else {}
        return Whole(answer.body, answer.status, headers, media_type=answer.media or None)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A receive that gives the body which was read already, then goes on with the connection's own."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def unbuilt(paths: Mapping[str, str]) -> list[Route]:
    """Routes of the API that this service does not have: 501 with a hint, whatever the method."""
    return [Route(path, _Absent(path, hint), methods=METHODS) for path, hint in paths.items()]


class _Absent:
    def __init__(self, path: str, hint: str) -> None:
        self._path = path
        self._hint = hint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route_path"] = self._path
        raise Unsupported(f"this route is not part of this service: {self._hint}")
