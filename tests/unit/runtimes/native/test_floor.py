"""`stokehold-spawner floor`, and what every start of the spawner refuses: a host, a layer or an option that is not right."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

NATIVE = Path(__file__).resolve().parents[4] / "runtimes/native"
SPAWNER = NATIVE / "bin/stokehold-spawner"
CGROUP = "stokehold-unit-floor"
SKELETON = ("dev", "proc", "sys", "tmp", "usr", "box", "workspace")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes sandboxes: needs root")


@pytest.fixture(scope="module", autouse=True)
def binary() -> None:
    subprocess.run(["make", "-s", "-C", NATIVE], check=True)


@pytest.fixture
def layer() -> Iterator[Path]:
    """The smallest layer: directories, and the host's /usr."""
    with TemporaryDirectory(dir="/var/tmp") as name:
        base = Path(name)
        base.chmod(0o755)
        for directory in SKELETON:
            (base / "root" / directory).mkdir(parents=True)
        (base / "binds").write_text("/usr\t/usr\n")
        yield base


def floor(layer: Path, /, **changes: str) -> subprocess.CompletedProcess[str]:
    options = {"layer": f"host={layer}", "seconds": "1", "workers": "2", "cgroup": CGROUP, "slot": "4"} | changes
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    return subprocess.run([SPAWNER, "floor", *words], capture_output=True, text=True, timeout=60, check=False)


def groups() -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"**/{CGROUP}"))


def test_sandboxes_are_made_and_nothing_stays(layer: Path) -> None:
    done = floor(layer)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["made"] > 0
    assert said["failed"] == 0
    assert said["superblocks"] == 5
    assert said["rate"] == pytest.approx(said["made"] / said["seconds"], rel=0.01)
    assert groups() == []
    assert str(layer) not in Path("/proc/self/mountinfo").read_text()


def test_groups_of_a_dead_spawner_are_removed(layer: Path) -> None:
    assert floor(layer).returncode == 0
    for mount in {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup" in line}:
        if Path(mount, "memory.limit_in_bytes").exists() or Path(mount, "cgroup.controllers").exists():
            Path(mount, CGROUP, "leftover", "c", "command").mkdir(parents=True)
    assert floor(layer).returncode == 0
    assert groups() == []


@pytest.mark.parametrize(
    ("binds", "told"),
    [("usr /usr\n", "no tab"), ("/usr\tusr\n", "absolute"), ("/a/../usr\t/usr\n", "absolute"), ("/nowhere\t/usr\n", "lacks it"),
     ("/usr\t/nowhere\n", "cannot use")],
)  # fmt: skip
def test_a_layer_with_bad_binds_is_refused(layer: Path, binds: str, told: str) -> None:
    (layer / "binds").write_text(binds)
    done = floor(layer)
    assert done.returncode == 1
    assert told in done.stderr


def test_a_layer_that_others_can_write_is_refused(layer: Path) -> None:
    layer.chmod(0o777)
    done = floor(layer)
    assert done.returncode == 1
    assert "writable by nobody else" in done.stderr


def test_a_layer_that_cannot_be_a_root_is_refused_with_the_step(layer: Path) -> None:
    (layer / "root/proc").rmdir()
    done = floor(layer)
    assert done.returncode == 1
    assert "mounts: /proc" in done.stderr
    assert groups() == []


@pytest.mark.parametrize(
    "change",
    [{"cgroup": "system.slice"}, {"cgroup": "stokehold/../x"}, {"slot": "8"}, {"seconds": "0"}, {"workers": "many"},
     {"layer": "host"}, {"layer": "host=relative"}],
)  # fmt: skip
def test_bad_options_are_refused_with_the_usage(layer: Path, change: dict[str, str]) -> None:
    done = floor(layer, **change)
    assert done.returncode == 2
    assert "usage:" in done.stderr
