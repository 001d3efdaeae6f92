"""Attacks on a helper while it enters, stopped at each step, by what runs in the lease already.

At `setns` it is the host's root in the host's user namespace; at `userns` it is in the sandbox's, not yet one of its users;
at `resuid` it is one, before its capabilities are cut; at `nnp` they are; at `exec` the filter stands and nothing is left to
do. Each state is closed by credentials that the attacker lacks ("caps" gives them), by not being dumpable, or by both.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest

from runtimes.backend import BackendError, Collect, Command, Descriptor, Ended, Input, Outcome, Process
from runtimes.native.sandbox import NativeSandbox

from .arena import LEASE, Arena, Said, helpers, is_stopped, members, said, until_printed
from .attacks import arenas

pytestmark = pytest.mark.anyio

STEPS = ("setns", "userns", "resuid", "nnp", "exec")
USERS = ("0", "1000")


def stopped_by(step: str, attacker: str, victim: str) -> tuple[str, ...]:
    if step == "setns":
        return ()
    if step == "userns" or (attacker, victim) == ("1000", "0"):
        return ("dumpable", "caps")
    return ("dumpable",)


def rows() -> Iterator[object]:
    for step in STEPS:
        for attacker in USERS:
            for victim in USERS:
                layers = stopped_by(step, attacker, victim)
                name = f"{step}-{attacker}-on-{victim}"
                yield pytest.param(("", step), attacker, victim, False, id=f"{name}-fails")
                for alone in layers if len(layers) > 1 else ():
                    without = ",".join(sorted({*layers} - {alone}))
                    yield pytest.param((without, step), attacker, victim, False, id=f"{name}-fails-by-{alone}")
                yield pytest.param(("caps,dumpable" if step == "setns" else ",".join(sorted(layers)), step), attacker, victim,
                                   bool(layers), id=f"{name}-{'bites' if layers else 'fails-anyway'}")


async def until_stopped(box: NativeSandbox, id: str) -> int:
    """The host's pid of a command's helper, once it has stopped at its step."""
    async with asyncio.timeout(15):
        while True:
            for pid in members(box.name, id):
                if is_stopped(pid):
                    return pid
            await asyncio.sleep(0.002)


async def enter(box: NativeSandbox, command: Command) -> Process:
    """Start it and let it pass its stop."""
    process = await box.start(command)
    os.kill(await until_stopped(box, command.id), signal.SIGCONT)
    return process


@contextlib.asynccontextmanager
async def stopped(arena: Arena, attacker: str, victim: str, *arguments: str) -> AsyncIterator[tuple[Said, Process, int]]:
    """An attacker has had its go at a victim that is stopped at the arena's step."""
    async with arena.sandbox(LEASE) as box:
        descriptors: dict[int, Descriptor] = {0: Input(), 1: Collect(1 << 16), 2: Collect(1 << 16)}
        attack = arena.command("entry", *arguments, spec=LEASE, user=attacker, descriptors=descriptors)
        attacking = await enter(box, attack)
        await until_printed(attacking, "WAITING")
        target = msgspec.structs.replace(arena.command("entry", spec=LEASE, user=victim, place=False), argv=("/usr/bin/true",), cwd="/")
        process = await box.start(target)
        pid = await until_stopped(box, target.id)
        await attacking.write(b"go")
        result = said(await attacking.wait())
        yield result, process, pid


@pytest.mark.parametrize(("arena", "attacker", "victim", "bites"), list(rows()), indirect=["arena"])
async def test_an_entering_helper_is_closed(arena: Arena, attacker: str, victim: str, bites: bool) -> None:
    async with stopped(arena, attacker, victim, "attack") as (result, process, pid):
        assert result.harmed == bites, result
        if not bites:
            os.kill(pid, signal.SIGCONT)
            outcome = await process.wait()
            assert (outcome.ended, outcome.exit_code) == (Ended.EXIT, 0), outcome


@arenas(*(("", step) for step in STEPS))
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
async def test_a_killed_helper_is_no_verdict(arena: Arena, number: int) -> None:
    """Root in a lease may signal what is one of its users already; what comes of it is a fault, never the program's doing."""
    async with stopped(arena, "0", "0", "signal", str(int(number))) as (result, process, pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        outcome = await process.wait()
    if result.harmed:
        assert outcome.ended == Ended.FAULT and outcome.signal is None, outcome
    else:
        assert arena.stop_at == "setns" and (outcome.ended, outcome.exit_code) == (Ended.EXIT, 0), outcome


@arenas(("", "nnp"))
async def test_a_stopped_helper_holds_nothing_up_for_ever(arena: Arena) -> None:
    """Nobody lets them go on: the command ends as a fault of ours, a file operation when its caller gives up."""
    async with arena.sandbox(LEASE) as box:
        command = msgspec.structs.replace(arena.command("entry", spec=LEASE, place=False), argv=("/usr/bin/true",), cwd="/")

        async def run() -> Outcome:
            async with asyncio.timeout(30):
                return await box.run(command)

        async def stat() -> None:
            with pytest.raises((TimeoutError, BackendError)):
                async with asyncio.timeout(5):
                    await box.stat("/etc/passwd")

        outcome, _ = await asyncio.gather(run(), stat())
        assert helpers(box.name) == [], "the given up helper is gone, stopped or not"
    assert outcome.ended == Ended.FAULT, outcome
