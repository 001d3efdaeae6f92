"""The first answer under an idempotency key, per tenant and route: kept in SQLite, and given again to every repeat.

Writes happen in one thread, in batches; reads too. While the first request works, its repeats wait for the same answer.
Faults of ours (5xx) and 429 are not kept: a repeat of those is meant to try again."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from gateway.errors import BadRequest, Mismatch

KEY_MAX = 256
ROWS_MAX = 200_000
ANSWER_MAX = 8 << 20
"""Larger answers are kept while they are being worked out, and not longer."""

Where = tuple[str, str, str]
"""Tenant, route, key."""
_Result = TypeVar("_Result")


class Answer(msgspec.Struct, frozen=True):
    """What was answered."""

    status: int
    media: str
    body: bytes


class Kept(msgspec.Struct, frozen=True):
    """What is known of a key: the digest of the body that came with it, and the answer if there is one."""

    digest: bytes
    answer: Answer | None


class Answers:
    """The table of kept answers. `close` returns once everything is written."""

    def __init__(self, path: Path | str, keep_s: float) -> None:
        self._keep_s = keep_s
        self._thread = ThreadPoolExecutor(1, "answers")
        self._base = self._thread.submit(self._open, str(path)).result()
        self._since_sweep = 0

    def _open(self, path: str) -> sqlite3.Connection:
        base = sqlite3.connect(path, isolation_level=None)
        base.execute("pragma journal_mode = wal")
        base.execute("pragma synchronous = normal")
        base.execute(
            "create table if not exists answers (tenant text, route text, key text, digest blob not null, status integer,"
            " media text, body blob, at real not null, primary key (tenant, route, key)) without rowid"
        )
        base.execute("create index if not exists answers_at on answers (at)")
        return base

    async def _do(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def get(self, where: Where) -> Kept | None:
        row = await self._do(
            lambda: self._base.execute(
                "select digest, status, media, body, at from answers where tenant = ? and route = ? and key = ?", where
            ).fetchone()
        )
        if row is None or row[4] < time.time() - self._keep_s:
            return None
        return Kept(row[0], Answer(row[1], row[2], row[3]) if row[1] is not None else None)

    async def put(self, where: Where, digest: bytes, answer: Answer | None) -> None:
        """Returns once it is written. `answer` None: only that the key is taken."""
        tail = (answer.status, answer.media, answer.body) if answer else (None, None, None)
        await self._do(lambda: self._put((*where, digest, *tail, time.time())))

    def _put(self, row: tuple[object, ...]) -> None:
        self._base.execute("insert or replace into answers values (?, ?, ?, ?, ?, ?, ?, ?)", row)
        self._since_sweep += 1
        if self._since_sweep >= 1000:
            self._since_sweep = 0
            self._base.execute("delete from answers where at < ?", (time.time() - self._keep_s,))
            self._base.execute("delete from answers where at < (select at from answers order by at desc limit 1 offset ?)", (ROWS_MAX,))

    async def drop(self, where: Where) -> None:
        await self._do(lambda: self._base.execute("delete from answers where tenant = ? and route = ? and key = ?", where))

    def close(self) -> None:
        self._thread.submit(self._base.close).result()
        self._thread.shutdown()


class _Work:
    """An answer being worked out, and how many wait for it."""

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        self.waiting = 0
        self.task: asyncio.Task[tuple[Answer, bool]] | None = None


class Idempotency:
    """Runs the work of a key once."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._working: dict[Where, _Work] = {}

    async def once(
        self, where: Where, digest: bytes, work: Callable[[], Awaitable[Answer]], *, keep_working: bool = False, claim: bool = False
    ) -> tuple[Answer, bool]:
        """The answer, and whether it is an earlier one (or another request's). Raises Mismatch, and what `work` raises.

        When nobody waits for it any more the work is cancelled, unless `keep_working`. `claim`: the key is written down
        before the work begins, so that another body is refused after a restart too."""
        entry = self._working.get(where)
        attached = entry is not None
        if entry is None:
            entry = self._working[where] = _Work(digest)
            entry.task = asyncio.create_task(self._work(where, entry, work, claim))
            entry.task.add_done_callback(lambda task: self._done(where, task))
        elif entry.digest != digest:
            raise Mismatch("this key was used with another body", field=None)
        assert entry.task is not None
        entry.waiting += 1
        try:
            answer, replayed = await asyncio.shield(entry.task)
        finally:
            entry.waiting -= 1
            if not entry.waiting and not keep_working and not entry.task.done():
                entry.task.cancel()
        return answer, replayed or attached

    async def _work(self, where: Where, entry: _Work, work: Callable[[], Awaitable[Answer]], claim: bool) -> tuple[Answer, bool]:
        kept = await self._answers.get(where)
        if kept is not None:
            if kept.digest != entry.digest:
                raise Mismatch("this key was used with another body")
            if kept.answer is not None:
                return kept.answer, True
        elif claim:
            await self._answers.put(where, entry.digest, None)
        answer = await work()
        if answer.status < 500 and answer.status != 429 and len(answer.body) <= ANSWER_MAX:
            await self._answers.put(where, entry.digest, answer)
        return answer, kept is not None

    def _done(self, where: Where, task: asyncio.Task[tuple[Answer, bool]]) -> None:
        self._working.pop(where, None)
        if not task.cancelled():
            task.exception()

    async def aclose(self) -> None:
        """Cancel what is being worked out, and write the rest."""
        tasks = [entry.task for entry in self._working.values() if entry.task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
        self._answers.close()


def key_of(text: str | None) -> str | None:
    """A usable key. Raises BadRequest."""
    if text is None:
        return None
    if not 0 < len(text) <= KEY_MAX:
        raise BadRequest(f"an Idempotency-Key has 1 to {KEY_MAX} characters")
    return text
