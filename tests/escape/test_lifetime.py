"""Outliving a run, and holding up its reply."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import pytest

from runtimes.backend import Command, Ended, Limits, Outcome

from .arena import CALL, LEASE, LIMITS, MS, Arena, members, said
from .attacks import PRODUCT, arenas

pytestmark = pytest.mark.anyio

KINDS = ("setsid", "double_fork", "nohup", "hold_output", "run_away", "stopped")
BOTH_ARENAS = (PRODUCT, ("kill", ""))


async def survivors(arena: Arena, role: str, change: dict[str, object], *arguments: str) -> tuple[Outcome, Sequence[int], float]:
    spec = CALL if role == "call" else LEASE
    async with arena.sandbox(spec) as box:
        command: Command = msgspec.structs.replace(arena.command("outlive", "begin", *arguments, spec=spec), **change)
        began = time.monotonic()
        outcome = await box.run(command)
        took = time.monotonic() - began
        left = members(box.name, command.id)
    return outcome, left, took


@arenas(*BOTH_ARENAS)
@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_outlives_a_call(arena: Arena, kind: str) -> None:
    outcome, left, took = await survivors(arena, "call", {}, kind)
    assert (outcome.ended, outcome.exit_code) == (Ended.EXIT, 0)
    assert outcome.streams[1].head.endswith(b"BEGUN\n")
    assert took < 10, "the reply was held"
    assert bool(left) == bool(arena.without), left


@arenas(*BOTH_ARENAS)
@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_outlives_a_limit(arena: Arena, kind: str) -> None:
    change: dict[str, object] = {"limits": msgspec.structs.replace(LIMITS, wall_ns=300 * MS)}
    outcome, left, took = await survivors(arena, "call", change, kind, "wait")
    assert outcome.ended == Ended.WALL
    assert took < 10
    assert bool(left) == bool(arena.without), left


@arenas(*BOTH_ARENAS)
@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_outlives_a_commands_timeout_in_a_lease(arena: Arena, kind: str) -> None:
    outcome, left, _ = await survivors(arena, "lease", {"limits": Limits(wall_ns=300 * MS)}, kind, "wait")
    assert outcome.ended == Ended.WALL
    assert bool(left) == bool(arena.without), left


@arenas(*BOTH_ARENAS)
@pytest.mark.parametrize("kind", KINDS)
async def test_background_end_ends_the_background(arena: Arena, kind: str) -> None:
    outcome, left, _ = await survivors(arena, "lease", {"background": "end"}, kind)
    assert (outcome.ended, outcome.exit_code) == (Ended.EXIT, 0)
    assert bool(left) == bool(arena.without), left


@arenas(PRODUCT)
async def test_a_background_that_holds_the_output_does_not_hold_the_reply(arena: Arena) -> None:
    """In a lease it may go on; the reply comes without it, and so does the end of the lease."""
    outcome, _, took = await survivors(arena, "lease", {}, "hold_output")
    assert (outcome.ended, outcome.exit_code) == (Ended.EXIT, 0)
    assert took < 10


@arenas(PRODUCT, ("kill", ""))
@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_outlives_the_sandbox(arena: Arena, kind: str) -> None:
    """Not even what the end of its run missed: the fixture finds the groups gone, and at its end no process is left."""
    await survivors(arena, "call", {}, kind)


@arenas(PRODUCT)
async def test_no_way_out_of_the_control_group(arena: Arena) -> None:
    for spec in (CALL, LEASE):
        async with arena.sandbox(spec) as box:
            assert not said(await box.run(arena.command("outlive", "move_group", spec=spec))).harmed
