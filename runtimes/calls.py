"""The call engine: compiles a validated call's program, runs its tests and judges them. Knows nothing of HTTP.

Every compile and every test has a sandbox of its own. What a program did is a value in the result; a fault of ours
raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import time
from collections.abc import AsyncIterator, Mapping

import msgspec

from runtimes import checkers, verdicts
from runtimes.artifacts import CompileCache, Compiled, key_of
from runtimes.backend import Collect, Command, Data, File, FileFailure, Files, Null, Outcome, Sandbox, Spec
from runtimes.call import (
    BackendFault,
    Call,
    CallRefused,
    CallResult,
    CompileResult,
    DeadlinePassed,
    InputFile,
    RunResult,
    Status,
    Test,
    Timing,
)
from runtimes.languages import Languages, overlay
from runtimes.limits import RunLimits
from runtimes.recipes import BOX, OUT, Plan
from runtimes.runner import Claim, Claimed, Release, Runner, Tally
from runtimes.values import Value, encode

__all__ = ["BackendFault", "CallRefused", "Claimed", "DeadlinePassed", "Engine", "spec_of"]

USER = "1000:1000"
_FILES_BYTES = 64 << 20
"""Of all `files_out` of one run."""
_INLINE_CHECK = 1 << 18
"""A checker with more to compare than this works beside the event loop."""
_EMPTY_TAR = bytes(1024)
"""Placing it makes a directory."""


def spec_of(call: Call, limits: RunLimits) -> Spec:
    """Which sandbox a program of `call` needs. Whole MiB of disk, so that near-equal calls share a pool."""
    return Spec(kind=call.kind, role="call", disk_bytes=-(-limits.disk_bytes // (1 << 20)) << 20)


class Engine:
    """Runs calls. One per node."""

    def __init__(self, claim: Claim, release: Release, languages: Languages, cache: CompileCache, slots: int) -> None:
        """`slots`: how many programs run at once: as many as there are cores, so no limit is reached for our load."""
        self._runner = Runner(claim, release, slots)
        self._languages = languages
        self._cache = cache

    async def run(self, call: Call, *, tenant: str, deadline_ns: int | None = None) -> CallResult:
        """Compile (or find compiled) and run. `deadline_ns` is of time.monotonic_ns().

        Raises CallRefused before anything runs, BackendFault, DeadlinePassed, and what claiming a sandbox raises."""
        plan = self._languages.plan(call)
        try:
            checker = checkers.named(call.checker)
        except ValueError as error:
            raise CallRefused("/checker", str(error)) from None
        job = _Job(self, call, plan, checker, tenant)
        loop = asyncio.get_running_loop()
        at = None if deadline_ns is None else loop.time() + (deadline_ns - time.monotonic_ns()) / 1e9
        timeout = asyncio.timeout_at(at)
        try:
            async with timeout:
                return await job.run()
        except TimeoutError:
            if timeout.expired():
                raise DeadlinePassed from None
            raise

    @property
    def runner(self) -> Runner:
        return self._runner

    @property
    def cache(self) -> CompileCache:
        return self._cache

    def environment(self, *layers: Mapping[str, str | None]) -> dict[str, str]:
        """The default variables with `layers` laid over them; None removes."""
        full: dict[str, str | None] = {"PATH": self._languages.path, "HOME": BOX, "LANG": "C.UTF-8", "TMPDIR": "/tmp"}
        for layer in layers:
            full.update(layer)
        return {name: value for name, value in full.items() if value is not None}

    def compile_key(self, call: Call, plan: Plan) -> str:
        """What a compiled program is known by: all that decides what the compiler makes."""
        env = sorted(self.environment(plan.compile_env, call.compile.env).items())
        parts: list[bytes | str] = [self._languages.compiler(call), call.kind, *(plan.compile or ())]
        parts += ["\0env", *(word for pair in env for word in pair)]
        parts += ["\0limits", msgspec.json.encode(call.compile.limits)]
        for file in sorted(plan.files, key=lambda file: file.path):
            parts += ["\0file", file.path, str(file.mode), file.data]
        return key_of(parts)


class _Job:
    """One call on its way."""

    def __init__(self, engine: Engine, call: Call, plan: Plan, checker: checkers.Checker, tenant: str) -> None:
        self.engine = engine
        self.call = call
        self.plan = plan
        self.checker = checker
        self.tenant = tenant
        self.tally = Tally()

    async def run(self) -> CallResult:
        async with self._compiled() as compiled:
            result = compiled.result if compiled else None
            runs: tuple[RunResult, ...] = ()
            if result is None or result.status == "Accepted":
                runs = await self._tests(compiled)
        status: Status = next((run.status for run in runs if run.status != "Accepted"), "Accepted")
        if result is not None and result.status != "Accepted":
            status = result.status
        tally = self.tally
        return CallResult(status, result, runs, tally.warmth, Timing(tally.queue_ns, tally.claim_ns, tally.total_ns))

    # -- compiling ---------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _compiled(self) -> AsyncIterator[Compiled | None]:
        if self.plan.compile is None:
            yield None
            return
        size = sum(len(file.data) for file in self.plan.files)
        if size > _INLINE_CHECK:
            key = await asyncio.to_thread(self.engine.compile_key, self.call, self.plan)
        else:
            key = self.engine.compile_key(self.call, self.plan)
        with await self.engine.cache.get(self.tenant, key, self._compile) as compiled:
            yield compiled

    async def _compile(self, fd: int) -> CompileResult:
        """Run the compiler and put what it made into `fd`."""
        ask, limits = self.call.compile, self.call.compile.limits

        def command(id: str) -> Command:
            return Command(
                id=id,
                argv=self.plan.compile or (),
                env=self.engine.environment(self.plan.compile_env, ask.env),
                cwd=BOX,
                user=USER,
                limits=limits.command(),
                descriptors={0: Null(), 1: Collect(limits.output_bytes), 2: Collect(limits.output_bytes)},
                files=(*_placed(self.plan.files), File(OUT, _EMPTY_TAR, tar=True)),
                exclusive=True,
                background="end",
            )

        async def look(sandbox: Sandbox, outcome: Outcome) -> CompileResult:
            result = verdicts.compile_result(outcome, limits)
            if result.status != "Accepted":
                return result
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)
            try:
                await _files(sandbox).archive_to(OUT, fd, user=USER, limit=limits.disk_bytes + (1 << 20))
            except FileFailure as failure:
                if failure.code in ("ENOSPC", "EDQUOT", "EIO"):  # of our disk: the tree is only read
                    raise verdicts.OurFault(f"keeping what was compiled: {failure}") from failure
                return msgspec.structs.replace(result, status="Compile Error", error=f"{OUT}: {failure.code}")
            return result

        return await self.engine.runner.run(spec_of(self.call, limits), command, look, self.tally)

    # -- running -----------------------------------------------------------------------------------------------------

    async def _tests(self, compiled: Compiled | None) -> tuple[RunResult, ...]:
        """All tests in order, at most `parallel` at once; with `stop_on_first_failure`, up to the first failure."""
        tests = self.call.tests
        results: dict[int, RunResult] = {}
        running: dict[int, asyncio.Task[RunResult]] = {}
        waiting = iter(enumerate(tests))
        end = len(tests)
        try:
            while True:
                while len(running) < self.call.parallel and (following := next(waiting, None)):
                    index, test = following
                    if index < end:
                        running[index] = asyncio.create_task(self._test(test, compiled))
                if not running:
                    break
                await asyncio.wait(running.values(), return_when=asyncio.FIRST_COMPLETED)
                for index in [i for i, task in running.items() if task.done()]:
                    results[index] = running.pop(index).result()
                    if self.call.stop_on_first_failure and results[index].status != "Accepted":
                        end = min(end, index + 1)
                for index in [i for i in running if i >= end]:
                    await _ended(running.pop(index))
        finally:
            for task in running.values():
                await _ended(task)
        return tuple(results[i] for i in range(end))

    async def _test(self, test: Test, compiled: Compiled | None) -> RunResult:
        limits = test.limits or self.call.limits
        spec = spec_of(self.call, limits)

        async def look(sandbox: Sandbox, outcome: Outcome) -> tuple[Outcome, RunResult]:
            return outcome, await self._look(sandbox, outcome, test.name, limits)

        with contextlib.ExitStack() as opened:

            def command(id: str) -> Command:
                fd = compiled.open() if compiled else None
                if fd is not None:
                    opened.callback(os.close, fd)
                return self._command(id, test, limits, fd)

            outcome, result = await self.engine.runner.run(spec, command, look, self.tally)
        if result.status != "Accepted" or test.expected is None:
            return result
        stream = outcome.streams.get(1)
        output = stream.head + stream.tail if stream else b""
        if len(output) + len(test.expected) > _INLINE_CHECK:
            right = await asyncio.to_thread(self.checker, output, test.expected)
        else:
            right = self.checker(output, test.expected)
        return result if right else msgspec.structs.replace(result, status="Wrong Answer")

    def _command(self, id: str, test: Test, limits: RunLimits, fd: int | None) -> Command:
        call = self.call
        cwd = posixpath.normpath(posixpath.join(BOX, call.cwd or "."))
        files = _placed(overlay(self.plan.run_files, test.files))
        if fd is not None:
            files = (*files, File(BOX, fd=fd, tar=True))
        if cwd != BOX:
            files = (*files, File(cwd, _EMPTY_TAR, tar=True))
        collect = Collect(limits.output_bytes, "kill")
        return Command(
            id=id,
            argv=(*self.plan.run(limits), *(call.args if test.args is None else test.args)),
            env=self.engine.environment(call.env),
            cwd=cwd,
            user=USER,
            limits=limits.command(),
            descriptors={0: Data(test.stdin), 1: collect, 2: collect},
            files=files,
            exclusive=True,
            background="end",
            on_denied=call.on_denied_syscall,
        )

    async def _look(self, sandbox: Sandbox, outcome: Outcome, name: str, limits: RunLimits) -> RunResult:
        call = self.call
        verdict = verdicts.judge(outcome, limits, denied_kills=call.on_denied_syscall == "kill")
        files, error = await _files_out(sandbox, call.files_out, limits.file_bytes) if call.files_out else ({}, None)
        if error is not None and verdict.status == "Accepted":
            verdict = verdicts.Verdict("File Error")
        return verdicts.run_result(name, outcome, verdict, error=error, files=files, return_bytes=call.return_bytes)


def _placed(files: tuple[InputFile, ...]) -> tuple[File, ...]:
    return tuple(File(posixpath.join(BOX, file.path), file.data, file.mode) for file in files)


def _files(sandbox: Sandbox) -> Files:
    if not isinstance(sandbox, Files):
        raise BackendFault("this kind of sandbox gives no access to its files")
    return sandbox


async def _files_out(sandbox: Sandbox, names: tuple[str, ...], one_bytes: int) -> tuple[dict[str, Value], str | None]:
    """The files asked for, as far as they can be had, and what is wrong with the first that cannot."""
    found: dict[str, Value] = {}
    error: str | None = None
    left = _FILES_BYTES
    for asked in names:
        name = asked.removesuffix("?")
        limit = min(left, one_bytes)
        try:
            data = await _read(_files(sandbox), posixpath.join(BOX, name), limit)
        except FileFailure as failure:
            if not (asked.endswith("?") and failure.code in ("ENOENT", "ENOTDIR")):
                error = error or f"{name}: {failure.code}"
            continue
        left -= len(data)
        found[name] = encode(data)
    return found, error


async def _read(files: Files, path: str, limit: int) -> bytes:
    if (await files.stat(path, user=USER)).type != "file":  # nor a link to one
        raise FileFailure("EINVAL", path, "not a regular file")
    _, chunks = await files.read(path, user=USER, length=limit + 1)
    data = bytearray()
    async for chunk in chunks:
        data += chunk
    if len(data) > limit:
        raise FileFailure("EFBIG", path)
    return bytes(data)


async def _ended(task: asyncio.Task[RunResult]) -> None:
    """Cancel a test and wait until it has let its sandbox go."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
