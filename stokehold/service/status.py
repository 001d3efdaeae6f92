"""`stokehold status`: what runs and what exists. Looks; asks the gateway only for its counts of sandboxes."""

from __future__ import annotations

import re
from http.client import HTTPException

import msgspec

from stokehold.service import probe, resources
from stokehold.service.places import Places, read_service
from stokehold.service.slot import held

_SANDBOXES = re.compile(r"^stokehold_sandboxes\{(?P<labels>[^}]*)\} (?P<value>[0-9.e+]+)$", re.MULTILINE)


class GatewayStatus(msgspec.Struct, frozen=True):
    """All None: no gateway runs."""

    pid: int | None = None
    url: str | None = None
    version: str | None = None


class SpawnerStatus(msgspec.Struct, frozen=True):
    """None: no spawner runs."""

    pid: int | None = None


class Status(msgspec.Struct, frozen=True):
    """The reply of `status --json` (DESIGN §5)."""

    gateway: GatewayStatus
    spawner: SpawnerStatus
    sandboxes: dict[str, int]
    resources: resources.Resources


def look(where: Places) -> Status:
    """What runs now and what of ours exists. Never fails: what cannot be seen is not counted."""
    service = read_service(where) if held(where.lock) else None
    counted = resources.count(where, every=not where.private)
    if service is None:
        return Status(gateway=GatewayStatus(), spawner=SpawnerStatus(), sandboxes={}, resources=counted)
    up = service.gateway is not None
    return Status(
        gateway=GatewayStatus(service.gateway, service.url, service.version) if up else GatewayStatus(),
        spawner=SpawnerStatus(service.spawner),
        sandboxes=_sandboxes(service.health or service.url, where) if up else {},
        resources=counted,
    )


def _sandboxes(url: str, where: Places) -> dict[str, int]:
    """Sandboxes by state, from the gateway's metrics; empty if it does not answer."""
    try:
        text = probe.get(url, "/metrics", where.ca, 2.0)
    except (OSError, HTTPException, ValueError):
        return {}
    return by_state(text)


def by_state(metrics: str) -> dict[str, int]:
    """The sums of `stokehold_sandboxes` by its label `state`."""
    sums: dict[str, int] = {}
    for found in _SANDBOXES.finditer(metrics):
        state = re.search(r'state="([^"]*)"', found["labels"])
        if state:
            sums[state[1]] = sums.get(state[1], 0) + int(float(found["value"]))
    return sums
