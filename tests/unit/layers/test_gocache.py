"""Go's prebuilt library: taken over while the release is the same, built with the tools at hand, never half there."""

from __future__ import annotations

from pathlib import Path

import pytest

from layers import gocache


def test_go_cache_is_taken_over_if_it_is_of_the_same_release(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    mark = f"go 1\n{' '.join(gocache._PACKAGES)}\n"
    (old / "stokehold-version").write_text(mark)
    assert gocache.prepare(tmp_path / "new", "/no/such/go", "go 1", old)
    assert (tmp_path / "new/stokehold-version").read_text() == mark and not old.exists()


@pytest.mark.parametrize(("build", "made"), [("touch $GOCACHE/x", True), ("touch $GOCACHE/x; exit 1", False)])
def test_it_is_built_with_what_the_release_has(tmp_path: Path, build: str, made: bool) -> None:
    go = tmp_path / "go"
    go.write_text(f'#!/bin/sh\n[ "$1" = list ] && {{ echo fmt; echo os; exit; }}\necho "$@" >> {tmp_path}/log\n{build}\n')
    go.chmod(0o755)
    assert gocache.prepare(tmp_path / "new", str(go), "go 2", tmp_path / "old") is made
    assert (tmp_path / "log").read_text() == "build -trimpath fmt os\n"
    assert (tmp_path / "new/x").exists() is made
