"""Writing the settings by which clients on this machine find the service. Reading them is `stokehold.settings`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from stokehold.service import privilege, tokens
from stokehold.service.places import Places, write_whole
from stokehold.settings import Settings


def write(where: Places, url: str) -> Path | None:
    """Write settings for the user who started the service; the file, or None if none is wanted or could be written.

    The authority's certificate is copied beside it, since only the gateway reads its own directory. With a state
    directory of its own a service writes there, and never into anyone's home."""
    uid, gid, home = (0, 0, Path()) if where.private else privilege.asker()
    target = where.client if where.private else home / ".config" / "stokehold" / "client.json"
    if not where.private and os.environ.get("STOKEHOLD_NO_CLIENT_FILE"):
        return None
    authority = target.with_name("ca.pem")
    settings = Settings(url=url, token=tokens.mint(where.secret), ca=str(authority))
    files = {authority: where.ca.read_bytes(), target: msgspec.json.format(msgspec.json.encode(settings))}
    return target if _write_as(uid, gid, files) else None


def _write_as(uid: int, gid: int, files: dict[Path, bytes]) -> bool:
    """Write as that user, so that links in their home lead nowhere that they could not write themselves."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if os.geteuid() == 0 and uid != 0:
                os.setgroups([])
                os.setresgid(gid, gid, gid)
                os.setresuid(uid, uid, uid)
            for target, data in files.items():
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_whole(target, data, 0o600)
            code = 0
        except OSError as problem:
            print(f"client settings were not written: {problem}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0
