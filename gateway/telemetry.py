"""What an operator can see: request ids, one JSON log line per request, Prometheus metrics. Never logs a body, a query or a token.

Labels come from our own route table and vocabularies only, so their number is bounded whatever clients send."""

from __future__ import annotations

import logging
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TextIO

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

Counts = Callable[[], Mapping[str, Mapping[str, int]]]


class Metrics:
    """The metrics of one gateway, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("stokehold_requests", "Requests answered", ["route", "method", "status"], registry=self.registry)
        self.seconds = Histogram(
            "stokehold_request_seconds",
            "From the request's headers to the answer's end",
            ["route"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.active = Gauge("stokehold_requests_active", "Requests being worked on", registry=self.registry)
        self.verdicts = Counter("stokehold_verdicts", "Calls by status", ["status"], registry=self.registry)
        self.execs = Counter("stokehold_execs", "Commands in leases by status", ["status"], registry=self.registry)
        self.claims = Counter("stokehold_claims", "Sandboxes claimed, by how ready they were", ["for", "warmth"], registry=self.registry)
        self.claim_seconds = Histogram(
            "stokehold_claim_seconds", "How long a claim took", ["for"], buckets=_SECONDS, registry=self.registry
        )
        self.problems = Counter("stokehold_problems", "Problem answers by code", ["code"], registry=self.registry)
        self.unexpected = Counter("stokehold_unexpected_errors", "Errors that nobody expected", registry=self.registry)

    def claimed(self, what: str, warmth: str, claim_ns: int) -> None:
        self.claims.labels(what, warmth).inc()
        self.claim_seconds.labels(what).observe(claim_ns / 1e9)

    def call_ended(self, status: str) -> None:
        self.verdicts.labels(status).inc()

    def exec_ended(self, status: str) -> None:
        self.execs.labels(status).inc()

    def watch(self, name: str, help: str, labels: tuple[str, str], counts: Counts) -> None:
        """A gauge by two labels whose values are asked for when metrics are read."""
        self.registry.register(_Asked(name, help, labels, counts))

    def watch_value(self, name: str, help: str, value: Callable[[], float]) -> None:
        Gauge(name, help, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        """In Prometheus's text format."""
        return generate_latest(self.registry)


class _Asked(Collector):
    def __init__(self, name: str, help: str, labels: tuple[str, str], counts: Counts) -> None:
        self._made = (name, help, labels)
        self._counts = counts

    def collect(self) -> Iterable[GaugeMetricFamily]:
        name, help, labels = self._made
        family = GaugeMetricFamily(name, help, labels=labels)
        for outer, inner in self._counts().items():
            for label, value in inner.items():
                family.add_metric([outer, label], value)
        yield family

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return []


def configure_logging(level: str, output: TextIO | None = None) -> None:
    """JSON lines on stderr, ours and those of libraries (from warnings up)."""
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    shared: list[Any] = [structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True)]
    render: list[Any] = [structlog.processors.format_exc_info, _bounded, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(output or sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(output or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render]
        )
    )
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)


def _bounded(logger: Any, method: str, event: Any) -> Any:
    """No field longer than 4,000 characters, whatever it came from."""
    return {name: value[:4000] + "…" if isinstance(value, str) and len(value) > 4000 else value for name, value in event.items()}


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The caller's X-Request-Id if it is a sane one, else a new one."""
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return value.decode()
    return secrets.token_hex(8)


class Observed:
    """Middleware: gives each request its id, measures it, and logs one line when it is over."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics
        self.log = structlog.get_logger("gateway")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = scope["request_id"] = request_id_of(scope["headers"])
        status, begin = 0, time.perf_counter()

        async def send_observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        self.metrics.active.inc()
        try:
            await self.app(scope, receive, send_observed)
        finally:
            self.metrics.active.dec()
            self._over(scope, status or 499, time.perf_counter() - begin, request_id)

    def _over(self, scope: Scope, status: int, seconds: float, request_id: str) -> None:
        route: str = scope.get("route_path", "none")
        method = scope["method"] if route != "none" else "none"
        self.metrics.requests.labels(route, method, str(status)).inc()
        self.metrics.seconds.labels(route).observe(seconds)
        if route in ("/healthz", "/readyz", "/metrics"):
            return
        caller = scope.get("caller")
        self.log.info(
            "request",
            request_id=request_id,
            method=scope["method"][:16],
            path=scope["path"][:200],
            route=route,
            status=status,
            ms=round(seconds * 1000, 2),
            http=scope.get("http_version"),
            tenant=caller.tenant if caller else None,
        )
