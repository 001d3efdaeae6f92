"""Spawners to attack. One runs at a time: tests are sorted by the one that they need."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from . import arena as arenas
from .arena import TREE, Arena, Programs


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="stokehold-escape-") as directory:
        Path(directory).chmod(0o755)  # what it holds could be read by anybody who found the way
        yield Path(directory)


@pytest.fixture(scope="session")
def programs(scratch: Path) -> Programs:
    return Programs(scratch)


@pytest.fixture(scope="session")
def layer(scratch: Path) -> Path:
    """The base layer; both spawners are built too."""
    if os.geteuid() != 0:
        pytest.skip("sandboxes need root")
    arenas.build(scratch)
    return arenas.layer(TREE / "build/layers/host")


@pytest.fixture(scope="session")
async def arena(request: pytest.FixtureRequest, anyio_backend: str, layer: Path, scratch: Path,
                programs: Programs) -> AsyncIterator[Arena]:
    without, stop_at = request.param
    async with arenas.arena(layer, scratch, programs, without, stop_at) as made:
        yield made
