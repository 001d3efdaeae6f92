"""`stokehold-spawner launch`: what a program started through it may do, and what it sees."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

NATIVE = Path(__file__).resolve().parents[4] / "runtimes/native"
SPAWNER = NATIVE / "bin/stokehold-spawner"
UID = 61499

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="starts programs as another user: needs root")


@pytest.fixture(scope="module", autouse=True)
def binary() -> None:
    subprocess.run(["make", "-s", "-C", NATIVE], check=True)


@pytest.fixture
def closed() -> Iterator[Path]:
    """A directory that only root may pass, on a path that others may."""
    with TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        private = Path(name, "private")
        private.mkdir(mode=0o700)
        yield private


def launch(script: str, *expose: Path) -> subprocess.CompletedProcess[str]:
    options = [word for path in expose for word in ("--expose", str(path))]
    return subprocess.run(
        [SPAWNER, "launch", "--uid", str(UID), "--gid", str(UID), *options, "--", "/bin/sh", "-c", script],
        capture_output=True, text=True, timeout=30, check=False, env={"PATH": "/usr/bin:/bin", "KEPT": "yes"},
    )  # fmt: skip


def test_every_privilege_is_gone() -> None:
    status = dict(line.split(":\t", 1) for line in launch("cat /proc/self/status").stdout.splitlines() if ":\t" in line)
    assert status["Uid"].split() == status["Gid"].split() == [str(UID)] * 4
    assert status["Groups"].strip() == ""
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"


def test_environment_passes_and_descriptors_do_not() -> None:
    assert launch("echo $KEPT; ls /proc/self/fd").stdout.split() == ["yes", "0", "1", "2", "3"]  # 3 is ls's own


def test_an_exposed_directory_is_readable_below_a_closed_one(closed: Path) -> None:
    for name in ("code", "data", "secret"):
        (closed / name).mkdir()
        (closed / name / "file").write_text(name)
    shown = launch(f"cat {closed}/code/file {closed}/data/file; ls {closed}", closed / "code", closed / "data")
    assert shown.stdout == "codedatacode\ndata\n"
    assert shown.returncode == 0


def test_what_is_exposed_cannot_be_changed(closed: Path) -> None:
    (closed / "code").mkdir(mode=0o777)
    (closed / "code").chmod(0o777)
    done = launch(f"touch {closed}/code/new", closed / "code")
    assert done.returncode != 0
    assert list((closed / "code").iterdir()) == []


def test_a_directory_within_an_exposed_one_is_shown_once(closed: Path) -> None:
    (closed / "code/inner").mkdir(parents=True)
    (closed / "code/inner/file").write_text("x")
    assert launch(f"cat {closed}/code/inner/file", closed / "code/inner", closed / "code").stdout == "x"


def test_nothing_of_ours_stays_in_the_hosts_mounts(closed: Path) -> None:
    (closed / "code").mkdir()
    launch("true", closed / "code")
    assert str(closed) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize(
    "arguments",
    [["--uid", "0", "--gid", "1", "--", "true"], ["--uid", "1", "--gid", "1"], ["--uid", "x", "--gid", "1", "--", "true"],
     ["--gid", "1", "--", "true"], ["--uid", "-1", "--gid", "1", "--", "true"], ["--what", "--", "true"]],
)  # fmt: skip
def test_bad_options_are_refused_with_the_usage(arguments: list[str]) -> None:
    done = subprocess.run([SPAWNER, "launch", *arguments], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "usage:" in done.stderr


def test_a_program_that_is_not_there_is_named() -> None:
    done = subprocess.run(
        [SPAWNER, "launch", "--uid", "1", "--gid", "1", "--", "/nowhere"], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert "/nowhere: No such file" in done.stderr
