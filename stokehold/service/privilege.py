"""Becoming root, or saying how. Owns sudo and who asked; must not know what root is wanted for."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

KEPT = ("STOKEHOLD_STATE", "STOKEHOLD_NO_CLIENT_FILE")


class NotRoot(Exception):
    """Root is needed and cannot be had. The message holds the remedy."""


def asker() -> tuple[int, int, Path]:
    """uid, gid and home of the user who started this, seen through sudo."""
    uid = int(os.environ.get("SUDO_UID", "0")) if os.geteuid() == 0 else os.getuid()
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return uid, os.getgid(), Path(os.environ.get("HOME", "/"))
    return uid, entry.pw_gid, Path(entry.pw_dir)


def require_root(arguments: Sequence[str]) -> None:
    """Return if this is root; else start `stokehold ARGUMENTS` anew under sudo (and not return). Raises NotRoot."""
    if os.geteuid() == 0:
        return
    command = " ".join(("stokehold", *arguments))
    sudo = shutil.which("sudo")
    if sudo is None:
        raise NotRoot(f"this needs root and there is no sudo: run `{command}` as root")
    if not sys.stdin.isatty():
        asked = subprocess.run(["timeout", "4", sudo, "-n", "true"], capture_output=True, check=False)
        if asked.returncode != 0:
            raise NotRoot(f"this needs root and sudo would ask for a password: run `sudo -v` first, or `{command}` as root")
    kept = [f"{name}={os.environ[name]}" for name in KEPT if name in os.environ]
    os.execv(sudo, [sudo, "env", *kept, sys.executable, "-P", "-m", "stokehold", *arguments])
