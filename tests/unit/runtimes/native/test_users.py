"""Who a user is inside a sandbox, from its own /etc/passwd and /etc/group."""

from __future__ import annotations

import ctypes
import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .c_library import load

PASSWD = b"""root:x:0:0:root:/root:/bin/sh
broken line
daemon:x:1:1::/usr/sbin:/x
ann:x:1000:1000:Ann,,,:/home/ann:/bin/bash
far:x:70000:1:::
relative:x:1001:1001::home:
"""
GROUP = b"""root:x:0:
staff:x:50:ann,daemon
video:x:44:joann,ann
audio:x:29:joann
users:x:100:
last:x:7:daemon"""


class Identity(ctypes.Structure):
    _fields_ = [("uid", ctypes.c_uint32), ("gid", ctypes.c_uint32), ("groups", ctypes.c_uint32 * 64),
                ("count", ctypes.c_size_t), ("home", ctypes.c_char * 256)]


def resolve(asked: str, passwd: bytes = PASSWD, group: bytes = GROUP) -> tuple[int, int, list[int], str]:
    found = Identity()
    error = load().users_resolve(asked.encode(), passwd, group, ctypes.byref(found))
    if error:
        raise OSError(-error, asked)
    return found.uid, found.gid, list(found.groups[:found.count]), found.home.decode()


@pytest.mark.parametrize("asked, expected", [
    ("root", (0, 0, [], "/root")),
    ("0", (0, 0, [], "/root")),
    ("ann", (1000, 1000, [50, 44], "/home/ann")),
    ("1000", (1000, 1000, [50, 44], "/home/ann")),
    ("daemon", (1, 1, [50, 7], "/usr/sbin")),
    ("1000:1000", (1000, 1000, [], "/home/ann")),
    ("ann:users", (1000, 100, [], "/home/ann")),
    ("4242", (4242, 0, [], "/")),
    ("4242:17", (4242, 17, [], "/")),
    ("relative", (1001, 1001, [], "/")),
])
def test_found(asked: str, expected: tuple[int, int, list[int], str]) -> None:
    assert resolve(asked) == expected


@pytest.mark.parametrize("asked, code", [
    ("nobody", errno.ENOENT), ("ann:nogroup", errno.ENOENT), ("far", errno.ENOENT), ("", errno.EINVAL), (":", errno.EINVAL),
    ("0:", errno.EINVAL), ("65536", errno.EINVAL), ("99999999999", errno.EINVAL), ("0:65536", errno.EINVAL), ("-1", errno.ENOENT)])
def test_refused(asked: str, code: int) -> None:
    with pytest.raises(OSError) as caught:
        resolve(asked)
    assert caught.value.errno == code


@given(st.binary(max_size=400), st.binary(max_size=400), st.text("abn019:,", max_size=12))
def test_whatever_the_files_hold(passwd: bytes, group: bytes, asked: str) -> None:
    try:
        uid, gid, groups, home = resolve(asked, passwd.replace(b"\0", b":"), group.replace(b"\0", b"\n"))
    except OSError as error:
        assert error.errno in (errno.EINVAL, errno.ENOENT)
    except UnicodeDecodeError:
        pass
    else:
        assert uid < 65536 and gid < 65536 and all(g < 65536 for g in groups) and home.startswith("/")
