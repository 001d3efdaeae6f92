"""Every test of the contract runs on each backend: `site` is one after the other, `real_site` those with a kernel."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from .native_site import NativeSite, Spawner
from .site import Box, FakeSite, Site


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def spawner(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Spawner]:
    assert pytestconfig.cache is not None
    layer = Path(pytestconfig.cache.mkdir("layers")) / "host"  # kept between runs: made anew only if the host changed
    Spawner.build()
    Spawner.make_layer(layer)
    running = Spawner(tmp_path_factory.mktemp("spawner"), layer)
    running.start()
    yield running
    running.stop()


def _sites(request: pytest.FixtureRequest) -> dict[str, Callable[[], Site]]:
    return {"fake": FakeSite, "native": lambda: NativeSite(request.getfixturevalue("spawner"))}


async def _open(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    made = _sites(request)[request.param]()
    before = descriptors()
    yield made
    await made.clear()
    gc.collect()
    assert descriptors() <= before, "a descriptor was left open"


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(params=["fake", "native"])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    async for made in _open(request):
        yield made


@pytest.fixture(params=["native"])
async def real_site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    async for made in _open(request):
        yield made


@pytest.fixture
async def box(site: Site) -> Box:
    return await site.box()


@pytest.fixture
async def real_box(real_site: Site) -> Box:
    return await real_site.box()
