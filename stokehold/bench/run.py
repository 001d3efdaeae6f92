"""`bench run`: calls a second through `/v1/run`, beside the ceiling that the parts of a call set.

ceiling = cores ÷ (CPU seconds of the gateway and spawner for one request to an empty route
                   + CPU seconds of one sandbox made, entered, run and destroyed by C alone),
all measured in this run."""

from __future__ import annotations

import os
import time

import msgspec

from stokehold import settings
from stokehold.bench import floor
from stokehold.bench.cpu import Share, shares, usage
from stokehold.bench.load import Loaded, Target, load
from stokehold.service.places import Places, Service, read_service

PROGRAM = {"argv": ["/bin/true"]}
EMPTY_S = 2.0
FLOOR_S = 2.0


class NotMeasurable(Exception):
    """The service is not one whose processes can be seen from here."""


class RunBench(msgspec.Struct, frozen=True):
    """Figures of one run. `cpu` says where the machine's CPU seconds went while it was loaded, as shares of all
    cores."""

    rate: float
    ceiling: float
    ratio: float
    p50_ms: float
    p99_ms: float
    failed: int
    http: int
    connections: int
    empty_route_cpu_ms: float
    sandbox_cpu_ms: float
    cpu: Share


def measure(where: Places, *, seconds: float, http: int, connections: int) -> RunBench:
    """Measure the service of this machine. Raises NotMeasurable, FloorFailed, StokeholdError."""
    service = read_service(where)
    if service is None or service.gateway is None or service.spawner is None:
        raise NotMeasurable("no service runs here: `stokehold serve --detach`")
    found = settings.load(state=where.state if where.private else None)
    empty = Target(found.url, "GET", "/healthz", found.token, found.ca, b"", lambda status, body: status == 200)
    call = Target(found.url, "POST", "/v1/run", found.token, found.ca, msgspec.json.encode(PROGRAM), _accepted)
    empty_cpu_s = _empty_route(empty, service, http, connections)
    before, began = usage(service.gateway, service.spawner), time.perf_counter()
    loaded = load(call, seconds=seconds, http=http, concurrency=connections)
    after, took = usage(service.gateway, service.spawner), time.perf_counter() - began
    alone = floor.measure(where, seconds=FLOOR_S, role="call", program=PROGRAM["argv"][0])
    sandbox_cpu_s = alone.cpu_s / alone.made
    ceiling = (os.cpu_count() or 1) / (empty_cpu_s + sandbox_cpu_s)
    return RunBench(
        rate=loaded.rate,
        ceiling=ceiling,
        ratio=loaded.rate / ceiling,
        p50_ms=loaded.percentile_ms(0.50),
        p99_ms=loaded.percentile_ms(0.99),
        failed=loaded.failed,
        http=http,
        connections=connections,
        empty_route_cpu_ms=empty_cpu_s * 1e3,
        sandbox_cpu_ms=sandbox_cpu_s * 1e3,
        cpu=shares(before, after, loaded.cpu_s, took),
    )


def _accepted(status: int, body: bytes) -> bool:
    return status == 200 and b'"status":"Accepted"' in body.replace(b'": "', b'":"')


def _empty_route(target: Target, service: Service, http: int, connections: int) -> float:
    """CPU seconds of gateway and spawner for one request that does nothing."""
    before = usage(service.gateway, service.spawner)
    loaded: Loaded = load(target, seconds=EMPTY_S, http=http, concurrency=connections)
    after = usage(service.gateway, service.spawner)
    if not loaded.latencies:
        raise NotMeasurable(f"{target.url}{target.path} does not answer over HTTP/{http}")
    return (after.gateway_s - before.gateway_s + after.spawner_s - before.spawner_s) / len(loaded.latencies)
