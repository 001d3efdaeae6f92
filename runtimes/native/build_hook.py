"""Builds the spawner when a wheel is built, so that `pip install .` is enough. Needs a C compiler and make."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BINARY = Path("runtimes/native/bin/stokehold-spawner")
NEEDS = {"make": "make", "cc": "gcc"}


class SpawnerBuildHook(BuildHookInterface[Any]):
    """Runs make and marks the wheel as being of this platform. Raises RuntimeError, naming what to install."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        missing = [package for tool, package in NEEDS.items() if shutil.which(tool) is None]
        if missing:
            raise RuntimeError(f"the spawner is written in C: apt-get install {' '.join(missing)} libc6-dev")
        native = Path(self.root) / BINARY.parent.parent
        done = subprocess.run(["make", "-C", str(native)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"building the spawner failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
        if version == "editable":
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"].append(str(BINARY))
