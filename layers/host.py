"""Builds base layer `host`: `python -m layers.host DIR` (as root).

DIR/root/           the skeleton: everything of a sandbox's root but /usr
DIR/binds           read-only binds, lines `target<TAB>source`
DIR/languages.json  what the layer offers to calls (`runtimes.languages` reads it; the gateway may not look itself)
DIR/stamp           a digest of all inputs: a second build that finds nothing changed does nothing

Idempotent: built in a directory beside DIR and renamed into place, under a lock. Must run while no spawner uses DIR.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from layers import gocache, skeleton, toolchains
from layers.accounts import USER_ID


class Language(msgspec.Struct, frozen=True):
    """One entry of languages.json: tools as absolute paths inside a sandbox."""

    version: str
    path: str
    more: dict[str, str] = {}


class Languages(msgspec.Struct, frozen=True):
    """languages.json."""

    path: str
    """PATH of programs in a sandbox."""
    languages: dict[str, Language]


def build(directory: Path) -> bool:
    """Make DIR current; True if it had to be built. Raises RuntimeError (not usr-merged, not root), OSError."""
    if os.geteuid() != 0:
        raise RuntimeError("the host layer keeps owners and modes: run as root (sudo)")
    os.umask(0o022)
    directory = directory.absolute()
    directory.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with _locked(directory.with_name(f".{directory.name}.lock")):
        items = list(skeleton.copies())
        stamp = _stamp(items, directory)
        if _current(directory, stamp):
            return False
        fresh = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
        try:
            fresh.chmod(0o755)
            _make(fresh, directory, items)
            (fresh / "stamp").write_text(stamp)
            if directory.exists():
                gone = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
                directory.rename(gone)
                fresh.rename(directory)
                shutil.rmtree(gone)
            else:
                fresh.rename(directory)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
    return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _stamp(items: list[skeleton.Item], directory: Path) -> str:
    digest = hashlib.sha256(str(directory).encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    digest.update(msgspec.json.encode(items))
    for path in ("/etc/passwd", "/etc/group", *toolchains.inputs()):
        try:
            info = Path(path).stat()
        except OSError:
            continue
        digest.update(f"{path} {info.st_size} {info.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _current(directory: Path, stamp: str) -> bool:
    try:
        if (directory / "stamp").read_text() != stamp or not (directory / "languages.json").is_file():
            return False
        binds = (directory / "binds").read_text().splitlines()
    except OSError:
        return False
    return all(Path(line.partition("\t")[2]).is_dir() for line in binds) and (directory / "root/etc/passwd").is_file()


def _make(fresh: Path, final: Path, items: list[skeleton.Item]) -> None:
    root = fresh / "root"
    root.mkdir(mode=0o755)
    found = toolchains.find()
    binds = {"/usr": "/usr", **found.binds}
    tools = {name: Language(tool.version, tool.path, tool.more) for name, tool in found.tools.items()}
    go = tools.get("go")
    if go is not None:
        host_go = found.binds.get("/opt/go", "") + "/bin/go" if go.path.startswith("/opt/go/") else go.path
        if gocache.prepare(fresh / "gocache", host_go, go.version, final / "gocache"):
            binds[gocache.TARGET] = str(final / "gocache")
            tools["go"] = Language(go.version, go.path, {**go.more, "cache": gocache.TARGET})

    for name, mode in skeleton.DIRECTORIES.items():
        _directory(root / name, mode)
    for target in binds:
        _directory(root / target.lstrip("/"), 0o755)
    for item in items:
        _copy(root, item)
    for name, (text, mode) in skeleton.generated().items():
        _write(root / name, text.encode(), mode)
    _own_shadow(root)
    os.chown(root / "box", USER_ID, USER_ID)
    for name, link in {**skeleton.usr_merged(), **skeleton.LINKS}.items():
        (root / name).unlink(missing_ok=True)
        (root / name).symlink_to(link)
    for source in (root / "etc/skel").glob(".*"):
        shutil.copyfile(source, root / "root" / source.name)

    (fresh / "binds").write_text("".join(f"{target}\t{source}\n" for target, source in binds.items()))
    listing = Languages(found.path, tools)
    (fresh / "languages.json").write_bytes(msgspec.json.format(msgspec.json.encode(listing)))


def _directory(path: Path, mode: int) -> None:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)


def _copy(root: Path, item: skeleton.Item) -> None:
    source, target = "/" + item.path, root / item.path
    if item.kind == stat.S_IFDIR:
        _directory(target, item.mode)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if item.kind == stat.S_IFLNK:
        target.symlink_to(Path(source).readlink())
        return
    try:
        data = Path(source).read_bytes()
    except FileNotFoundError:  # a package manager is at work; its new stamp makes the next build differ
        return
    if not (item.path.startswith("etc/") and skeleton.carries_login(data)):
        _write(target, data, item.mode)
        os.utime(target, ns=(item.mtime_ns, item.mtime_ns))


def _write(path: Path, data: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


def _own_shadow(root: Path) -> None:
    """shadow and gshadow belong to the layer's own group `shadow`, as on a Debian system."""
    groups = (line.split(":") for line in (root / "etc/group").read_text().splitlines())
    number = next((int(parts[2]) for parts in groups if parts[0] == "shadow"), 0)
    for name in ("shadow", "gshadow"):
        os.chown(root / "etc" / name, 0, number)


def main(arguments: list[str]) -> int:
    """`python -m layers.host DIR`. Prints `built` or `current`."""
    if len(arguments) != 1:
        print("usage: python -m layers.host DIR", file=sys.stderr)
        return 2
    try:
        print("built" if build(Path(arguments[0])) else "current")
    except (RuntimeError, OSError) as problem:
        print(f"layers.host: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
