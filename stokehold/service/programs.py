"""The programs that a service is made of: where they are, and their command lines. Starts only the short ones."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from stokehold.service.places import GATEWAY_UID, Places

PREFLIGHT_S = 4.5
LAYER_S = 600.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class CannotServe(Exception):
    """This host or these settings cannot serve. The message holds the remedy."""


def preflight() -> None:
    """Ask `guard.preflight`, in a process of its own, whether this host can make sandboxes. Raises CannotServe."""
    argv = [sys.executable, "-P", "-m", "guard.preflight", "--json"]
    try:
        asked = subprocess.run(argv, capture_output=True, timeout=PREFLIGHT_S, check=False)
        needs = json.loads(asked.stdout)["needs"]
    except subprocess.TimeoutExpired as problem:
        raise CannotServe("this host did not answer the preflight checks in time; see `stokehold doctor`") from problem
    except (ValueError, KeyError) as problem:
        raise CannotServe(f"the preflight checks failed: {asked.stderr.decode(errors='replace')[-500:]}") from problem
    missing = [f"  {need['name']}: {need['found']}\n    remedy: {need['remedy']}" for need in needs if not need["met"]]
    if missing:
        raise CannotServe("this host cannot run sandboxes:\n" + "\n".join(missing))


def make_layer(folder: Path) -> None:
    """Make the base layer `host` in `folder`, or bring it up to date. Raises CannotServe."""
    argv = [sys.executable, "-P", "-m", "layers.host", str(folder)]
    try:
        made = subprocess.run(argv, capture_output=True, timeout=LAYER_S, check=False)
    except subprocess.TimeoutExpired as problem:
        raise CannotServe(f"the base layer was not made within {LAYER_S:.0f} s") from problem
    if made.returncode != 0:
        raise CannotServe(f"the base layer cannot be made: {made.stderr.decode(errors='replace')[-500:]}")


def spawner_binary() -> Path:
    """The built spawner. Raises CannotServe with the command that builds it."""
    folder = _package("runtimes.native")
    binary = folder / "bin" / "stokehold-spawner"
    if not os.access(binary, os.X_OK):
        raise CannotServe(f"the spawner is not built: run `make -C {folder}` (needs gcc)")
    return binary


def spawner_argv(where: Places, slot: int) -> list[str]:
    """The spawner's command line. Raises CannotServe."""
    return [
        *(str(spawner_binary()), "serve"),
        *("--socket", str(where.socket)),
        *("--gateway-uid", str(GATEWAY_UID)),
        *("--cgroup", where.cgroup),
        *("--slot", str(slot)),
        *("--layer", f"host={where.layers / 'host'}"),
    ]


def spawner_environment() -> dict[str, str]:
    return {"PATH": PATH, "LANG": "C.UTF-8"}


def gateway_argv(where: Places) -> list[str]:
    """The gateway's command line: through `launch`, which takes every privilege away and shows it its own code
    even where that lies below a directory which its user cannot pass (a clone in /root). Raises CannotServe."""
    code = _package("gateway").resolve().parent
    shown = [folder for folder in dict.fromkeys((sys.prefix, sys.base_prefix, str(code))) if folder != "/usr"]
    return [
        *(str(spawner_binary()), "launch"),
        *("--uid", str(GATEWAY_UID), "--gid", str(GATEWAY_UID)),
        *(part for folder in shown for part in ("--expose", folder)),
        *("--", sys.executable, "-P", "-m", "gateway", "--config", str(where.config)),
    ]


def gateway_environment(where: Places) -> dict[str, str]:
    return {
        "PATH": PATH,
        "LANG": "C.UTF-8",
        "HOME": str(where.gateway),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _package(name: str) -> Path:
    """The directory of an installed package. Raises CannotServe."""
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found is None or found.origin is None:
        raise CannotServe(f"the package {name} is not installed: run `make setup`")
    return Path(found.origin).parent
