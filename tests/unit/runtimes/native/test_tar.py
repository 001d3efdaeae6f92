"""Archives made and extracted by the file helper's C code, against Python's own tarfile."""

from __future__ import annotations

import ctypes
import errno
import io
import os
import random
import tarfile
from pathlib import Path

import pytest

from .c_library import load

RESOLVE_BENEATH = 0x08
PATH_ROOM = 4096


class Ask(ctypes.Structure):
    _fields_ = [("fop", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("mode", ctypes.c_uint32), ("depth", ctypes.c_uint32),
                ("offset", ctypes.c_uint64), ("length", ctypes.c_uint64), ("limit", ctypes.c_uint64),
                ("path", ctypes.c_char * PATH_ROOM), ("path2", ctypes.c_char * PATH_ROOM), ("user", ctypes.c_char * 128)]


class Child(ctypes.Structure):
    _fields_ = [("ask", ctypes.POINTER(Ask)), ("talk", ctypes.c_int), ("data", ctypes.c_int), ("root", ctypes.c_int)]


class In(ctypes.Structure):
    _fields_ = [("fd", ctypes.c_int), ("at", ctypes.POINTER(ctypes.c_long)), ("data", ctypes.c_char_p), ("left", ctypes.c_size_t)]


def check(result: int) -> None:
    if result < 0:
        raise OSError(-result, os.strerror(-result))


def archive(root: Path, path: str, to: Path, limit: int = 2**63) -> int:
    """`path` below `root`, written to `to` by a process of its own (as a helper is: the walk's state is the process's)."""
    size = ctypes.c_uint64()
    child = os.fork()
    if child == 0:
        ask = Ask(path=path.encode(), limit=limit)
        fd = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        result = load().walk_archive(ctypes.byref(Child(ctypes.pointer(ask), -1, fd, os.open(root, os.O_PATH))), ctypes.byref(size))
        os._exit(-result)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    check(-code)
    return to.stat().st_size


def extract(data: bytes, target: Path) -> None:
    fd = os.open(target, os.O_PATH | os.O_DIRECTORY)
    load().untar.argtypes = [ctypes.POINTER(In), ctypes.c_int, ctypes.c_uint64]
    try:
        check(load().untar(In(-1, None, data, len(data)), fd, RESOLVE_BENEATH))
    finally:
        os.close(fd)


def members(*entries: tuple[str, bytes, str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind, link, data in entries:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, link, len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def snapshot(root: Path) -> dict[str, tuple[int, object]]:
    found: dict[str, tuple[int, object]] = {}
    for path in sorted(root.rglob("*")):
        content = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(root))] = (path.lstat().st_mode, content)
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "sub" / ("d" * 90) / ("e" * 90)).mkdir(parents=True)
    (root / "sub" / ("d" * 90) / ("e" * 90) / "leaf").write_bytes(b"leaf")
    (root / "program").write_bytes(random.Random(1).randbytes(200_001))
    (root / "program").chmod(0o755)
    (root / "empty").touch()
    (root / "späce \n").write_bytes(b"x" * 512)
    (root / "link").symlink_to("program")
    (root / "dangling").symlink_to("/nowhere/" + "n" * 200)
    (root / "sealed").mkdir()
    (root / "sealed" / "inside").write_bytes(b"!")
    (root / "sealed").chmod(0o555)
    os.mkfifo(root / "fifo")
    return root


def test_round_trip(tree: Path, tmp_path: Path) -> None:
    packed = tmp_path / "out.tar"
    archive(tmp_path, "tree", packed)
    with tarfile.open(packed) as tar:
        names = tar.getnames()
        assert names == sorted(names, key=lambda name: name.split("/")) and "fifo" not in names
        program = tar.extractfile("program")
        assert program is not None and program.read() == (tree / "program").read_bytes()
    target = tmp_path / "target"
    target.mkdir()
    extract(packed.read_bytes(), target)
    (tree / "fifo").unlink()
    assert snapshot(target) == snapshot(tree)
    extract(packed.read_bytes(), target)  # over itself
    assert snapshot(target) == snapshot(tree)


def test_one_file(tree: Path, tmp_path: Path) -> None:
    archive(tmp_path, "tree/program", tmp_path / "out.tar")
    with tarfile.open(tmp_path / "out.tar") as tar:
        assert tar.getnames() == ["program"]


def test_limit(tree: Path, tmp_path: Path) -> None:
    size = archive(tmp_path, "tree", tmp_path / "out.tar")
    with pytest.raises(OSError) as caught:
        archive(tmp_path, "tree", tmp_path / "out.tar", limit=size // 2)
    assert caught.value.errno == errno.EFBIG
    assert (tmp_path / "out.tar").stat().st_size <= size // 2


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_forms_of_others(tree: Path, tmp_path: Path, form: int) -> None:
    out, target = io.BytesIO(), tmp_path / "target"
    target.mkdir()
    (tree / "fifo").unlink()
    (tree / "dangling").unlink()  # ustar has no room for its target
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        tar.add(tree, arcname=".")
    extract(out.getvalue(), target)
    assert snapshot(target) == snapshot(tree)


def test_hard_links(tmp_path: Path) -> None:
    extract(members(("b", tarfile.LNKTYPE, "a", b""), ("a", tarfile.REGTYPE, "", b"data")), tmp_path)
    assert (tmp_path / "b").read_bytes() == b"data" and (tmp_path / "a").stat().st_nlink == 2


HOSTILE = {
    "climbs": members(("../out", tarfile.REGTYPE, "", b"x")),
    "climbs inside": members(("a/../../out", tarfile.REGTYPE, "", b"x")),
    "hard link out": members(("h", tarfile.LNKTYPE, "../secret", b"")),
    "garbage": b"garbage" * 1000,
    "cut": members(("a", tarfile.REGTYPE, "", b"x" * 5000))[:3000],
    "through its own link": members(("l", tarfile.SYMTYPE, "..", b""), ("l/out", tarfile.REGTYPE, "", b"x")),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_archives(data: bytes, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "secret").write_bytes(b"s")
    with pytest.raises(OSError):
        extract(data, target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret", "target"]
    assert (tmp_path / "secret").stat().st_nlink == 1


def test_absolute_names_stay_inside(tmp_path: Path) -> None:
    extract(members(("/etc/inside", tarfile.REGTYPE, "", b"x")), tmp_path)
    assert (tmp_path / "etc" / "inside").read_bytes() == b"x"


def test_planted_link_leads_nowhere(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "l").symlink_to(tmp_path)
    with pytest.raises(OSError) as caught:
        extract(members(("l/out", tarfile.REGTYPE, "", b"x")), target)
    assert caught.value.errno == errno.EXDEV
    assert not (tmp_path / "out").exists()


def test_devices_are_left_out(tmp_path: Path) -> None:
    extract(members(("null", tarfile.CHRTYPE, "", b""), ("pipe", tarfile.FIFOTYPE, "", b""), ("ok", tarfile.REGTYPE, "", b"1")), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["ok"]


def test_mutated_archives_end(tree: Path, tmp_path: Path) -> None:
    archive(tmp_path, "tree", tmp_path / "out.tar")
    whole, chance = (tmp_path / "out.tar").read_bytes(), random.Random(2)
    for number in range(150):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        target = tmp_path / f"t{number}"
        target.mkdir()
        try:
            extract(bytes(data[:chance.randrange(len(data))]), target)
        except OSError as error:
            assert error.errno
