"""What operators and clients ask about the service itself. Open to everybody: nothing here names a tenant."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.services import Services


class HealthRoutes:
    """`/healthz`, `/readyz`, `/metrics`, `/openapi.json`."""

    def __init__(self, services: Services, document: Callable[[], bytes]) -> None:
        self.services = services
        self._document = document
        self._openapi: bytes | None = None

    async def healthz(self, request: Request) -> Response:
        """The process answers."""
        return JSONResponse({"status": "ok"})

    async def readyz(self, request: Request) -> Response:
        """Work is taken; 503 with the reason if not."""
        reason = "draining" if self.services.drain.begun else self.services.ready()
        if reason is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": reason}, 503, {"Retry-After": "1"})

    async def metrics(self, request: Request) -> Response:
        """Prometheus text."""
        return Response(self.services.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def openapi(self, request: Request) -> Response:
        """The OpenAPI document, made once."""
        if self._openapi is None:
            self._openapi = self._document()
        return Response(self._openapi, media_type="application/json")
