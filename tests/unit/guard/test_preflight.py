"""The preflight checks on this host, and on hosts that lack something."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from guard import preflight

ROOT = Path(__file__).resolve().parents[3]


def as_user(uid: int) -> subprocess.CompletedProcess[bytes]:
    """The checks as another user, by the system's own Python: before anything is installed."""
    return subprocess.run(
        ["/usr/bin/env", "python3", "-P", "-"],
        input=(ROOT / "guard/preflight.py").read_bytes(),
        capture_output=True,
        user=uid,
        group=uid,
        extra_groups=[],
        timeout=20,
        check=False,
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_this_host_is_asked_within_five_seconds_and_left_as_it_was() -> None:
    before = Path("/proc/self/mountinfo").read_text()
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "guard.preflight", "--json"], capture_output=True, timeout=20, check=False
    )
    assert time.monotonic() - began < 5
    report = json.loads(done.stdout)
    assert report["ok"] == all(need["met"] for need in report["needs"])
    assert done.returncode == (0 if report["ok"] else 1)
    assert {need["name"] for need in report["needs"]} >= {
        "root",
        "cgroup v2",
        "cgroup memory",
        "namespaces",
        "overlayfs",
        "seccomp",
    }
    assert Path("/proc/self/mountinfo").read_text() == before
    assert not list(Path("/sys/fs/cgroup").rglob("stokehold-preflight-*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_without_root_it_says_what_to_do() -> None:
    done = as_user(1000)
    assert done.returncode == 1
    assert b"MISSING root: uid 1000" in done.stdout
    assert b"remedy: Start it as root (sudo)" in done.stdout


def test_a_host_without_v2_groups_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_hierarchies", list)
    assert not preflight._v2_groups().met
    need = preflight._controller("memory")
    assert (need.met, need.found) == (False, "no hierarchy has it")
    assert "cgroup_enable=memory" in need.remedy


def test_a_hierarchy_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_hierarchies", lambda: [(str(tmp_path / "absent"), "cgroup2", {"rw"})])
    need = preflight._v2_groups()
    assert (need.met, need.found) == (False, f"{tmp_path}/absent: No such file or directory")


def test_a_trial_that_fails_or_hangs_is_a_need() -> None:
    def fails() -> str:
        raise OSError(1, "Operation not permitted", "unshare")

    def hangs() -> str:
        signal.pause()
        return ""

    assert preflight._tried("x", fails, "r") == preflight.Need("x", False, "Operation not permitted: unshare", "r")
    preflight_s, preflight.TRIAL_S = preflight.TRIAL_S, 1
    try:
        assert preflight._tried("x", hangs, "r") == preflight.Need("x", False, "no answer in time", "r")
    finally:
        preflight.TRIAL_S = preflight_s
