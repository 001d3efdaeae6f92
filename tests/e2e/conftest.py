"""One service for all tests of this folder; the layer that it makes is kept between runs, as in a real state directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.service import Service


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("e2e")
    for parent in [folder, *folder.parents]:  # the gateway's user must be able to pass
        if parent == Path("/tmp") or parent == Path("/"):
            break
        parent.chmod(0o755)
    running = Service(folder / "state")
    running.start()
    yield running
    running.stop()
    left = {name: count for name, count in running.status()["resources"].items() if count}
    assert not left, f"left behind: {left}"
