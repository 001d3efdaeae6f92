"""A command's live output as server-sent events. Owns their form and ids; starts and ends nothing.

An event's id is `<stdout offset>.<stderr offset>` after it, so that `Last-Event-ID` says where to go on."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Protocol

import orjson

from gateway.errors import BadRequest
from gateway.values import Splitter
from runtimes.backend import Chunk, Outcome, Process, Stream
from runtimes.values import Shown, Value, kept_parts

PIECE = 32 << 10
KEEP_ALIVE = b": keep-alive\n\n"
NAMES: Mapping[Stream, str] = {1: "stdout", 2: "stderr"}


def event(name: str, data: object, id: str | None = None) -> bytes:
    """One event. `data` is a JSON value."""
    head = f"id: {id}\n" if id is not None else ""
    return f"{head}event: {name}\ndata: ".encode() + orjson.dumps(data, option=orjson.OPT_NON_STR_KEYS) + b"\n\n"


def offsets_after(last_event_id: str | None) -> dict[Stream, int]:
    """Where each stream goes on after that event. Raises BadRequest for an id that is not ours."""
    if not last_event_id:
        return {1: 0, 2: 0}
    found = re.fullmatch(r"(\d{1,18})\.(\d{1,18})", last_event_id)
    if not found:
        raise BadRequest("this Last-Event-ID is not one of ours")
    return {1: int(found[1]), 2: int(found[2])}


class Recorded(Protocol):
    """What is kept of a command that has ended."""

    @property
    def stdout(self) -> Value: ...
    @property
    def stderr(self) -> Value: ...
    @property
    def stdout_bytes(self) -> int: ...
    @property
    def stderr_bytes(self) -> int: ...
    @property
    def stdout_truncated(self) -> bool: ...
    @property
    def stderr_truncated(self) -> bool: ...


def _both(run: Recorded) -> tuple[tuple[Stream, Shown], tuple[Stream, Shown]]:
    out = Shown(run.stdout, run.stdout_bytes, run.stdout_truncated)
    return (1, out), (2, Shown(run.stderr, run.stderr_bytes, run.stderr_truncated))


def recorded_events(run: Recorded, offsets: Mapping[Stream, int]) -> Iterator[bytes]:
    """Events of what was kept of both streams after `offsets`."""
    at = dict(offsets)
    for stream, shown in _both(run):
        for start, data in kept_parts(shown):
            if start > at[stream]:
                lost = {"stream": NAMES[stream], "from": at[stream], "to": start}
                at[stream] = start
                yield event("dropped", lost, f"{at[1]}.{at[2]}")
            split, rest = Splitter(), data[at[stream] - start :]
            for begin in range(0, len(rest), PIECE):
                for piece in split.feed(rest[begin : begin + PIECE], begin + PIECE >= len(rest)):
                    offset, at[stream] = at[stream], start + len(data) - len(rest) + min(begin + PIECE, len(rest)) - split.held
                    yield event(NAMES[stream], {"offset": offset, **piece}, f"{at[1]}.{at[2]}")


class _Reader:
    """One stream: the read that is under way, and where it stands."""

    def __init__(self, process: Process, stream: Stream, offset: int) -> None:
        self.stream = stream
        self.offset = offset
        self.shown = offset
        self.split = Splitter()
        self._process = process
        self.task: asyncio.Task[Chunk] | None = None

    def read(self) -> asyncio.Task[Chunk]:
        if self.task is None:
            self.task = asyncio.create_task(self._process.read(self.stream, self.offset, PIECE))
        return self.task

    def take(self, chunk: Chunk) -> Iterator[tuple[str, dict[str, Any]]]:
        """The events of a chunk; when one is yielded, `shown` is where it ends."""
        self.task = None
        name = NAMES[self.stream]
        if chunk.offset > self.offset:
            yield from self.rest()
            lost = {"stream": name, "from": self.offset, "to": chunk.offset}
            self.offset = self.shown = chunk.offset
            yield "dropped", lost
        pieces = self.split.feed(chunk.data, chunk.end)
        start, self.offset = self.shown, self.offset + len(chunk.data)
        self.shown = self.offset - self.split.held
        for piece in pieces:
            yield name, {"offset": start, **piece}

    def rest(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """What waited for the rest of its character that never came."""
        start, self.shown = self.shown, self.offset
        for piece in self.split.feed(b"", True):
            yield NAMES[self.stream], {"offset": start, **piece}


async def output_events(process: Process, offsets: Mapping[Stream, int], streams: tuple[Stream, ...] = (1, 2)) -> AsyncIterator[bytes]:
    """Events of the streams until both are over, or the process has ended and all that it wrote was told.

    (What it left in the background may hold its streams open for ever.) Raises SandboxLost."""
    readers = {stream: _Reader(process, stream, offsets[stream]) for stream in streams}
    everyone = list(readers.values())
    waiting: asyncio.Task[Outcome] = asyncio.create_task(process.wait())
    outcome: Outcome | None = None

    def id_now() -> str:
        shown = {reader.stream: reader.shown for reader in everyone}
        return f"{shown.get(1, offsets[1])}.{shown.get(2, offsets[2])}"

    try:
        while readers:
            tasks: set[asyncio.Task[Any]] = {reader.read() for reader in readers.values()}
            await asyncio.wait(tasks if outcome is not None else tasks | {waiting}, return_when=asyncio.FIRST_COMPLETED)
            if outcome is None and waiting.done():
                outcome = waiting.result()
            for stream, reader in list(readers.items()):
                if reader.task is not None and reader.task.done():
                    chunk = reader.task.result()
                    for name, data in reader.take(chunk):
                        yield event(name, data, id_now())
                    if chunk.end:
                        del readers[stream]
                        continue
                told = outcome.streams.get(stream) if outcome is not None else None
                if outcome is not None and reader.offset >= (told.total if told else 0):
                    for name, data in reader.rest():
                        yield event(name, data, id_now())
                    del readers[stream]
    finally:
        pending = [task for task in (waiting, *(reader.task for reader in everyone)) if task is not None]
        for task in pending:
            task.cancel()
        for task in pending:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
