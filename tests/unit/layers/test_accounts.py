"""Accounts of the host layer: system users stay, people and passwords do not."""

from __future__ import annotations

from layers import accounts

PASSWD = """root:$6$hash:0:0:Root,Room 1,,:/root:/bin/bash
_apt:x:42:65534::/nonexistent:/usr/sbin/nologin
alice:x:1000:1000:Alice,,,:/home/alice:/bin/zsh
bob:x:1001:1001::/home/bob:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
user:x:999:999::/srv:/bin/sh
broken line
"""
GROUP = """root:x:0:alice
sudo:x:27:alice,bob
alice:x:1000:
nogroup:x:65534:
"""


def test_people_are_left_out_and_user_is_there() -> None:
    assert accounts.passwd(PASSWD).splitlines() == [
        "root:x:0:0:Root:/root:/bin/bash",
        "_apt:x:42:65534::/nonexistent:/usr/sbin/nologin",
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin",
        "user:x:1000:1000::/box:/bin/bash",
    ]


def test_groups_lose_their_members() -> None:
    assert accounts.group(GROUP).splitlines() == ["root:x:0:", "sudo:x:27:", "nogroup:x:65534:", "user:x:1000:"]


def test_every_password_is_locked() -> None:
    shadow = accounts.shadow(accounts.passwd(PASSWD))
    assert [line.split(":")[:2] for line in shadow.splitlines()] == [[n, "*"] for n in ("root", "_apt", "nobody", "user")]
    assert all(len(line.split(":")) == 9 for line in shadow.splitlines())
    assert accounts.gshadow("a:x:1:\n") == "a:*::\n"


def test_an_empty_host_still_has_root() -> None:
    assert accounts.passwd("").startswith("root:x:0:0:") and accounts.group("").startswith("root:x:0:")
