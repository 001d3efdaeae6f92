"""What tests of planted files share: planting, and a client's operations read to their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import msgspec
import pytest

from runtimes.backend import FileFailure
from runtimes.native.sandbox import NativeSandbox

from .arena import LEASE, Arena, said

AT = "/workspace/trap"
ROOMY = msgspec.structs.replace(LEASE, disk_bytes=128 << 20)
"""Has inodes for trees of 10,000."""


def setting() -> bytes:
    """A setting of the host that planted links point to."""
    return Path("/proc/sys/vm/overcommit_memory").read_bytes()


async def chunks(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


async def content(box: NativeSandbox, path: str, length: int | None = None) -> bytes:
    _, pieces = await box.read(path, length=length)
    return b"".join([piece async for piece in pieces])


async def archived(box: NativeSandbox, path: str) -> bytes:
    return b"".join([piece async for piece in await box.archive(path)])


async def listed(box: NativeSandbox, path: str, depth: int = 1) -> list[str]:
    return [entry.path async for entry in box.list(path, depth=depth)]


async def plant(arena: Arena, box: NativeSandbox, *arguments: str, cwd: str = AT) -> None:
    await box.mkdir(cwd, user="0", mode=0o777)
    command = msgspec.structs.replace(arena.command("plant", *arguments, spec=LEASE), cwd=cwd)
    outcome = await box.run(command)
    assert not said(outcome).harmed, outcome


async def refused(act: Awaitable[object]) -> str:
    """The code with which an operation is refused; never a result, and never later than soon."""
    with pytest.raises(FileFailure) as failure:
        async with asyncio.timeout(5):
            await act
    return failure.value.code
