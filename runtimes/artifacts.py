"""The compile cache: what compilers made, per tenant, by the content of all that decided it; bounded on disk.

An entry is `<tenant>/<key>.tar` and `<key>.json` (its size, digest and the compiler's result), each renamed into place,
the JSON last: what is half there or damaged is a miss. Identical compiles at the same time are one. Knows nothing of
sandboxes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import msgspec

from runtimes.call import CompileResult

Make = Callable[[int], Awaitable[CompileResult]]
"""Compiles, and writes the tar into the given descriptor if it is Accepted."""


class Compiled:
    """One compile's result and, if Accepted, its tar. Close it: the tar stays readable until then, evicted or not."""

    def __init__(self, result: CompileResult, fd: int | None) -> None:
        self.result = result
        self._fd = fd

    def open(self) -> int:
        """Another descriptor of the tar, which the caller closes; its offset is shared: read by pread. Raises ValueError if
        there is none."""
        if self._fd is None:
            raise ValueError("nothing was compiled")
        return os.dup(self._fd)

    def copy(self) -> Compiled:
        return Compiled(self.result, None if self._fd is None else self.open())

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Compiled:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Note(msgspec.Struct, frozen=True):
    size: int
    sha256: str
    result: CompileResult


class _Making:
    """A compile that several callers may wait for; it is ended when the last of them is gone."""

    def __init__(self, task: asyncio.Task[Compiled]) -> None:
        self.task = task
        self.waiters = 0

    def finish(self) -> None:
        """Nobody waits any more: end it, or close what it made."""
        if not self.task.done():
            self.task.cancel()
        elif not self.task.cancelled() and self.task.exception() is None:
            self.task.result().close()


def key_of(parts: Iterable[bytes | str]) -> str:
    """A digest over parts of any content; where one ends and the next begins counts."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


class CompileCache:
    """`limit_bytes` on disk for all tenants; the least recently used of the tenant who holds most goes first."""

    def __init__(self, directory: Path, limit_bytes: int = 2 << 30) -> None:
        """Takes over what an earlier process left in `directory` (made if absent). Raises OSError."""
        self._directory = directory
        self._limit = limit_bytes
        self._total = 0
        self._sizes: dict[str, dict[str, int]] = {}
        """Tenant's folder → key → bytes, least recently used first."""
        self._verified: set[tuple[str, str]] = set()
        self._making: dict[tuple[str, str], _Making] = {}
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._scan()
        self._evict()

    @property
    def bytes(self) -> int:
        """Bytes of tars on disk."""
        return self._total

    async def get(self, tenant: str, key: str, make: Make) -> Compiled:
        """The cached compile of `key`, or that of `make`, which is stored if Accepted. Raises what `make` raises."""
        place = (hashlib.sha256(tenant.encode()).hexdigest()[:32], key)
        making = self._making.get(place)
        if making is None:
            found = await self._find(place)
            if found is not None:
                return found
            making = self._making.get(place)  # somebody else may have begun while we looked
        if making is None:
            making = _Making(asyncio.create_task(self._make(place, make), name=f"compile {key[:12]}"))
            self._making[place] = making
        making.waiters += 1
        try:
            return (await asyncio.shield(making.task)).copy()
        finally:
            making.waiters -= 1
            if making.waiters == 0:
                self._making.pop(place, None)
                making.finish()

    # -- making ------------------------------------------------------------------------------------------------------

    async def _make(self, place: tuple[str, str], make: Make) -> Compiled:
        scratch, fd = self._scratch(place[0])
        try:
            result = await make(fd)
            if result.status != "Accepted":
                return Compiled(result, None)
            result = msgspec.structs.replace(result, artifact=f"sha256:{place[1]}")
            if scratch is not None:
                await self._store(place, scratch, fd, result)
            return Compiled(result, os.dup(fd))
        finally:
            os.close(fd)
            if scratch is not None:
                scratch.unlink(missing_ok=True)

    def _scratch(self, folder: str) -> tuple[Path | None, int]:
        """A new file in the cache; one in memory if that cannot be had: a full disk stops no compile."""
        try:
            (self._directory / folder).mkdir(mode=0o700, exist_ok=True)
            path = self._directory / folder / f".{secrets.token_hex(8)}"
            return path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            return None, os.memfd_create("artifact", os.MFD_CLOEXEC)

    async def _store(self, place: tuple[str, str], scratch: Path, fd: int, result: CompileResult) -> None:
        size = os.fstat(fd).st_size
        if size > self._limit:
            return
        note = _Note(size, await asyncio.to_thread(_digest, fd), result)
        try:
            self._place(place, scratch, note)
        except OSError:
            self._drop(place)
            return
        self._add(place, size)
        self._verified.add(place)
        self._evict()

    def _place(self, place: tuple[str, str], scratch: Path, note: _Note) -> None:
        tar, text = self._paths(place)
        beside = scratch.with_name(scratch.name + "j")
        beside.write_bytes(msgspec.json.encode(note))
        scratch.rename(tar)
        beside.rename(text)

    # -- finding -----------------------------------------------------------------------------------------------------

    async def _find(self, place: tuple[str, str]) -> Compiled | None:
        folder, key = place
        if key not in self._sizes.get(folder, {}):
            return None
        tar, text = self._paths(place)
        try:
            note = msgspec.json.decode(text.read_bytes(), type=_Note)
            fd = os.open(tar, os.O_RDONLY | os.O_CLOEXEC)
        except (OSError, msgspec.DecodeError):
            self._drop(place)
            return None
        try:
            good = os.fstat(fd).st_size == note.size
            if good and place not in self._verified:
                good = await asyncio.to_thread(_digest, fd) == note.sha256
            if not good:
                self._drop(place)
                os.close(fd)
                return None
        except BaseException:
            os.close(fd)
            raise
        self._verified.add(place)
        self._add(place, note.size)
        with contextlib.suppress(OSError):
            os.utime(text)
        return Compiled(msgspec.structs.replace(note.result, cached=True), fd)

    # -- disk --------------------------------------------------------------------------------------------------------

    def _paths(self, place: tuple[str, str]) -> tuple[Path, Path]:
        folder = self._directory / place[0]
        return folder / f"{place[1]}.tar", folder / f"{place[1]}.json"

    def _scan(self) -> None:
        found = []
        for folder in self._directory.iterdir():
            if not folder.is_dir():
                continue
            for path in folder.iterdir():
                tar = path.with_suffix(".tar")
                if path.name.startswith(".") or (path.suffix == ".tar" and not path.with_suffix(".json").exists()):
                    path.unlink(missing_ok=True)
                elif path.suffix == ".json" and tar.exists():
                    found.append((path.stat().st_mtime_ns, folder.name, path.stem, tar.stat().st_size))
        for _, name, key, size in sorted(found):
            self._add((name, key), size)

    def _add(self, place: tuple[str, str], size: int) -> None:
        entries = self._sizes.setdefault(place[0], {})
        self._total += size - entries.pop(place[1], 0)
        entries[place[1]] = size

    def _evict(self) -> None:
        while self._total > self._limit:
            folder = max(self._sizes, key=lambda name: sum(self._sizes[name].values()))
            self._drop((folder, next(iter(self._sizes[folder]))))

    def _drop(self, place: tuple[str, str]) -> None:
        entries = self._sizes.get(place[0], {})
        self._total -= entries.pop(place[1], 0)
        if not entries:
            self._sizes.pop(place[0], None)
        self._verified.discard(place)
        tar, text = self._paths(place)
        for path in (text, tar):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _digest(fd: int) -> str:
    digest, at = hashlib.sha256(), 0
    while data := os.pread(fd, 1 << 20, at):
        digest.update(data)
        at += len(data)
    return digest.hexdigest()
