"""Spawners to attack. One runs at a time: tests are sorted by the one that they need."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from stokehold.service.slot import claim_slot

from . import arena as arenas
from .arena import Arena, Ground, Programs


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="stokehold-escape-") as directory:
        Path(directory).chmod(0o755)  # what it holds could be read by anybody who found the way
        yield Path(directory)


@pytest.fixture(scope="session")
def ground(pytestconfig: pytest.Config, scratch: Path) -> Iterator[Ground]:
    """Both spawners and the base layer are built; uid ranges are held against every other service and session."""
    if os.geteuid() != 0:
        pytest.skip("sandboxes need root")
    assert pytestconfig.cache is not None
    layer = pytestconfig.cache.mkdir("layers") / "host"
    arenas.build(scratch)
    arenas.make_layer(layer)
    slot, held = claim_slot()
    try:
        yield Ground(layer=layer, scratch=scratch, programs=Programs(scratch), slot=slot)
    finally:
        os.close(held)


@pytest.fixture(scope="session")
async def arena(request: pytest.FixtureRequest, anyio_backend: str, ground: Ground) -> AsyncIterator[Arena]:
    without, stop_at = request.param
    async with arenas.arena(ground, without, stop_at) as made:
        yield made
