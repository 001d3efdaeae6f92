"""The accounts of base layer `host`: the host's system users, `user` (uid 1000, home /box), and no password of anybody.

Pure text in, text out. Nothing of /etc/shadow is ever read.
"""

from __future__ import annotations

USER = "user"
USER_ID = 1000
USER_HOME = "/box"
_NOBODY = 65534


def _system(line: str, fields: int) -> list[str] | None:
    """The fields of a passwd or group line if it is a system account (id below 1000, or nobody), else None."""
    parts = line.split(":")
    if len(parts) != fields or not parts[0] or not parts[2].isdigit():
        return None
    number = int(parts[2])
    return parts if (number < USER_ID or number == _NOBODY) and parts[0] != USER else None


def passwd(host: str) -> str:
    """/etc/passwd of the layer, from the host's: system accounts keep ids, homes and shells; no hashes, no people."""
    lines = []
    for line in host.splitlines():
        parts = _system(line, 7)
        if parts:
            parts[1], parts[4] = "x", parts[4].split(",")[0]
            lines.append(":".join(parts))
    if not any(line.startswith("root:") for line in lines):
        lines.insert(0, "root:x:0:0:root:/root:/bin/bash")
    lines.append(f"{USER}:x:{USER_ID}:{USER_ID}::{USER_HOME}:/bin/bash")
    return "\n".join(lines) + "\n"


def group(host: str) -> str:
    """/etc/group of the layer, from the host's: system groups, with those members only that the layer knows."""
    lines = []
    for line in host.splitlines():
        parts = _system(line, 4)
        if parts:
            lines.append(f"{parts[0]}:x:{parts[2]}:")
    if not any(line.startswith("root:") for line in lines):
        lines.insert(0, "root:x:0:")
    lines.append(f"{USER}:x:{USER_ID}:")
    return "\n".join(lines) + "\n"


def shadow(passwd_text: str) -> str:
    """/etc/shadow for the names of `passwd_text`: every password locked, no ages."""
    return "".join(f"{line.split(':')[0]}:*:19000:0:99999:7:::\n" for line in passwd_text.splitlines())


def gshadow(group_text: str) -> str:
    """/etc/gshadow for the names of `group_text`: no passwords, administrators or members."""
    return "".join(f"{line.split(':')[0]}:*::\n" for line in group_text.splitlines())
