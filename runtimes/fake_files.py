"""The file system of a fake sandbox, in memory, and the `Files` operations on it.

Errors are errno names, as a real helper would report them. Nothing here touches the host's files, except `archive_to`,
which writes to a descriptor that the caller gave.
"""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import stat as st
import tarfile
import time
from collections.abc import AsyncIterator, Iterator
from typing import Literal

from runtimes.backend import Entry, FileFailure

USERS = {"root": 0, "user": 1000}
_CHUNK = 256 << 10
_Type = Literal["file", "directory", "symlink", "fifo", "socket", "device"]


class Node:
    """One file, directory or link."""

    def __init__(self, type_: _Type, mode: int, uid: int, *, data: bytes = b"", target: str | None = None) -> None:
        self.type = type_
        self.mode = mode
        self.uid = uid
        self.data = data
        self.target = target
        self.children: dict[str, Node] = {}
        self.mtime_ns = time.time_ns()

    def entry(self, path: str) -> Entry:
        names = {uid: name for name, uid in USERS.items()}
        kind = {"file": st.S_IFREG, "directory": st.S_IFDIR, "symlink": st.S_IFLNK}.get(self.type, st.S_IFIFO)
        return Entry(name=posixpath.basename(path) or "/", path=path, type=self.type, size=len(self.data),
                     mode=kind | self.mode, uid=self.uid, gid=self.uid, mtime_ns=self.mtime_ns,
                     user=names.get(self.uid), group=names.get(self.uid), target=self.target)


class Tree:
    """A file system of at most `disk_bytes` of content."""

    def __init__(self, disk_bytes: int) -> None:
        self.root = Node("directory", 0o755, 0)
        self._left = disk_bytes
        for name, mode, uid in (("tmp", 0o1777, 0), ("box", 0o755, 1000), ("workspace", 0o777, 0), ("etc", 0o755, 0)):
            self.root.children[name] = Node("directory", mode, uid)
        self.put("/etc/passwd", b"root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/box:/bin/sh\n", uid=0)

    # -- look-up ------------------------------------------------------------------------------------------------------

    def find(self, path: str, uid: int = 0, *, follow: bool = True) -> Node:
        """Raises FileFailure ENOENT, ENOTDIR, EACCES, ELOOP."""
        return self._walk(path, uid, follow, [0])

    def _walk(self, path: str, uid: int, follow: bool, hops: list[int]) -> Node:
        at, where = self.root, "/"
        parts = [part for part in _whole(path).split("/") if part]
        for index, part in enumerate(parts):
            if at.type != "directory":
                raise FileFailure("ENOTDIR", path)
            self._may(at, uid, 1, path)
            child = at.children.get(part)
            if child is None:
                raise FileFailure("ENOENT", path)
            if child.type == "symlink" and (follow or index < len(parts) - 1):
                hops[0] += 1
                if hops[0] > 40:
                    raise FileFailure("ELOOP", path)
                rest = "/".join(parts[index + 1 :])
                return self._walk(posixpath.join(where, child.target or "", rest), uid, follow, hops)
            at, where = child, posixpath.join(where, part)
        return at

    @staticmethod
    def _may(node: Node, uid: int, bit: int, path: str) -> None:
        """Root may all; the owner by the owner's bits; everybody else by the others'."""
        if uid and not node.mode >> (6 if node.uid == uid else 0) & bit:
            raise FileFailure("EACCES", path)

    def _parent(self, path: str, uid: int, *, mkdirs: bool = False) -> tuple[Node, str]:
        path = _whole(path)
        folder, name = posixpath.split(path)
        if not name:
            raise FileFailure("EISDIR", path)
        if mkdirs:
            with contextlib.suppress(FileFailure):  # what is wrong with it is said below
                self.mkdir(folder, uid)
        parent = self.find(folder, uid)
        if parent.type != "directory":
            raise FileFailure("ENOTDIR", path)
        return parent, name

    # -- changes ------------------------------------------------------------------------------------------------------

    def content(self, path: str, uid: int = 0) -> bytes:
        node = self.find(path, uid)
        if node.type != "file":
            raise FileFailure("EISDIR" if node.type == "directory" else "EINVAL", path)
        self._may(node, uid, 4, path)
        return node.data

    def put(self, path: str, data: bytes, *, uid: int = 0, mode: int | None = None, mkdirs: bool = False,
            append: bool = False) -> Node:
        """The file whole. An existing file keeps its mode and owner unless `mode` is given."""
        parent, name = self._parent(path, uid, mkdirs=mkdirs)
        old = parent.children.get(name)
        if old is not None and old.type == "symlink":
            raise FileFailure("ELOOP", path) if not append else FileFailure("EINVAL", path)
        if old is not None and old.type == "directory":
            raise FileFailure("EISDIR", path)
        self._may(parent if old is None else old, uid, 2, path)
        if append and old is not None:
            data = old.data + data
        self._charge(len(data) - (len(old.data) if old is not None else 0), path)
        node = Node("file", 0o644, uid, data=data)
        if old is not None:
            node.mode, node.uid = old.mode, old.uid
        if mode is not None:
            node.mode = mode & 0o7777
        parent.children[name] = node
        return node

    def link(self, path: str, target: str, uid: int = 0) -> None:
        parent, name = self._parent(path, uid)
        parent.children[name] = Node("symlink", 0o777, uid, target=target)

    def mkdir(self, path: str, uid: int = 0, mode: int = 0o755) -> None:
        at = ""
        for part in (part for part in _whole(path).split("/") if part):
            parent = self.find(at or "/", uid)
            at += "/" + part
            if parent.type != "directory":
                raise FileFailure("ENOTDIR", path)
            if part not in parent.children:
                self._may(parent, uid, 2, path)
                parent.children[part] = Node("directory", mode & 0o7777, uid)
        if self.find(path, uid).type != "directory":
            raise FileFailure("EEXIST", path)

    def delete(self, path: str, uid: int = 0, *, recursive: bool = False) -> None:
        parent, name = self._parent(path, uid)
        node = parent.children.get(name)
        if node is None:
            raise FileFailure("ENOENT", path)
        if node.children and not recursive:
            raise FileFailure("ENOTEMPTY", path)
        self._may(parent, uid, 2, path)
        del parent.children[name]
        self._charge(-sum(len(below.data) for _, below in self.walk(node, "")), path)

    def move(self, source: str, target: str, uid: int = 0) -> None:
        parent, name = self._parent(source, uid)
        node = parent.children.get(name)
        if node is None:
            raise FileFailure("ENOENT", source)
        new_parent, new_name = self._parent(target, uid)
        old = new_parent.children.get(new_name)
        if old is not None and old.type == "directory":
            raise FileFailure("EISDIR" if node.type != "directory" else "ENOTEMPTY", target)
        self._may(parent, uid, 2, source)
        self._may(new_parent, uid, 2, target)
        del parent.children[name]
        new_parent.children[new_name] = node

    def chmod(self, path: str, mode: int, uid: int = 0) -> None:
        node = self.find(path, uid)
        if uid not in (0, node.uid):
            raise FileFailure("EPERM", path)
        node.mode = mode & 0o7777

    def walk(self, node: Node, path: str, depth: int = 1 << 30) -> Iterator[tuple[str, Node]]:
        """`node` itself and what lies below it, to `depth`."""
        yield path, node
        if depth > 0:
            for name in sorted(node.children):
                yield from self.walk(node.children[name], posixpath.join(path, name), depth - 1)

    def _charge(self, size: int, path: str) -> None:
        if size > self._left:
            raise FileFailure("ENOSPC", path)
        self._left -= size

    # -- archives -----------------------------------------------------------------------------------------------------

    def pack(self, path: str, uid: int = 0) -> bytes:
        root = self.find(path, uid)
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name, node in self.walk(root, ""):
                info = tarfile.TarInfo(name or (posixpath.basename(path) if root.type == "file" else "."))
                info.mode, info.uid, info.gid, info.mtime = node.mode, node.uid, node.uid, node.mtime_ns // 10**9
                info.type = {"directory": tarfile.DIRTYPE, "symlink": tarfile.SYMTYPE}.get(node.type, tarfile.REGTYPE)
                info.linkname = node.target or ""
                info.size = len(node.data)
                tar.addfile(info, io.BytesIO(node.data))
        return out.getvalue()

    def unpack(self, path: str, archive: bytes, uid: int = 0) -> None:
        self.mkdir(path, uid)
        try:
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                for info in tar:
                    name = posixpath.normpath("/" + info.name)
                    at = posixpath.join(path, name[1:])
                    if info.isdir():
                        self.mkdir(at, uid, info.mode)
                    elif info.issym():
                        self.link(at, info.linkname, uid)
                    elif info.isreg():
                        content = tar.extractfile(info)
                        self.put(at, content.read() if content else b"", uid=uid, mode=info.mode, mkdirs=True)
        except tarfile.TarError as error:
            raise FileFailure("EBADMSG", path, str(error)) from error


def _whole(path: str) -> str:
    if not path or "\0" in path:
        raise FileFailure("EINVAL", path, "not a path")
    if len(os.fsencode(path)) > 4095:
        raise FileFailure("ENAMETOOLONG", path)
    return posixpath.normpath("/" + path.lstrip("/"))


def uid_of(user: str) -> int:
    """The uid of `uid`, `uid:gid` or a known name. Raises FileFailure EINVAL."""
    name = user.partition(":")[0]
    if name in USERS:
        return USERS[name]
    if name.isdigit():
        return int(name)
    raise FileFailure("EINVAL", user, "no such user")


class FakeFiles:
    """The `Files` protocol over a `Tree`. `_files()` gives the tree, or raises SandboxLost."""

    def _files(self) -> Tree:
        raise NotImplementedError

    async def stat(self, path: str, *, user: str = "0", follow: bool = False) -> Entry:
        return self._files().find(path, uid_of(user), follow=follow).entry(path)

    async def list(self, path: str, *, user: str = "0", depth: int = 1) -> AsyncIterator[Entry]:
        tree = self._files()
        root = tree.find(path, uid_of(user))
        if root.type != "directory":
            raise FileFailure("ENOTDIR", path)
        for at, node in tree.walk(root, path, depth):
            if node is not root:
                yield node.entry(at)

    async def read(self, path: str, *, user: str = "0", offset: int = 0,
                   length: int | None = None) -> tuple[Entry, AsyncIterator[bytes]]:
        tree = self._files()
        data = tree.content(path, uid_of(user))
        part = data[offset:] if length is None else data[offset : offset + length]
        return tree.find(path).entry(path), _pieces(part)

    async def write(self, path: str, chunks: AsyncIterator[bytes], *, user: str = "0", mode: int | None = None,
                    mkdirs: bool = False, append: bool = False) -> Entry:
        data = b"".join([chunk async for chunk in chunks])
        node = self._files().put(path, data, uid=uid_of(user), mode=mode, mkdirs=mkdirs, append=append)
        return node.entry(path)

    async def delete(self, path: str, *, user: str = "0", recursive: bool = False) -> None:
        self._files().delete(path, uid_of(user), recursive=recursive)

    async def move(self, source: str, target: str, *, user: str = "0") -> None:
        self._files().move(source, target, uid_of(user))

    async def mkdir(self, path: str, *, user: str = "0", mode: int = 0o755) -> None:
        self._files().mkdir(path, uid_of(user), mode)

    async def chmod(self, path: str, mode: int, *, user: str = "0") -> None:
        self._files().chmod(path, mode, uid_of(user))

    async def archive(self, path: str, *, user: str = "0") -> AsyncIterator[bytes]:
        return _pieces(self._files().pack(path, uid_of(user)))

    async def extract(self, path: str, chunks: AsyncIterator[bytes], *, user: str = "0") -> None:
        data = b"".join([chunk async for chunk in chunks])
        self._files().unpack(path, data, uid_of(user))

    async def archive_to(self, path: str, fd: int, *, user: str = "0", limit: int) -> int:
        data = self._files().pack(path, uid_of(user))
        if len(data) > limit:
            raise FileFailure("EFBIG", path)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        return len(data)


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), _CHUNK):
        yield data[at : at + _CHUNK]


