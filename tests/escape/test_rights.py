"""Becoming more: users, capabilities, set-id programs, and roots above one's own."""

from __future__ import annotations

import pytest

from .arena import LEASE, Arena, said
from .attacks import PRODUCT, Attack, arenas, attacks, judge

pytestmark = pytest.mark.anyio





def mask() -> str:
    numbers = (0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 31)
    return f"{sum(1 << n for n in numbers):x}"


@attacks([
    Attack("rights", ("become_root",), ("caps",)),
    Attack("rights", ("change_owner",), ("caps",)),
    Attack("rights", ("bounded", "0"), ("caps",)),
    Attack("rights", ("who",), ("caps",)),
    Attack("rights", ("bounded", mask()), ("caps",), "lease"),
    Attack("rights", ("become_root",), ("caps",), "lease", user="1000"),
    Attack("rights", ("who",), ("caps",), "lease", user="1000"),
])  # fmt: skip
async def test_no_more_rights_than_given(arena: Arena, attack: Attack, bites: bool) -> None:
    await judge(arena, attack, bites)


@attacks([Attack("rights", (kind, path), ("nnp", "nosuid"), "lease", more=("seccomp",))
          for kind in ("set_id", "file_capabilities") for path in ("/tmp/copy", "/workspace/copy", "/usr/bin/copy")])
async def test_a_program_gives_no_rights_to_who_runs_it(arena: Arena, attack: Attack, bites: bool) -> None:
    await judge(arena, attack, bites)


@attacks([Attack("rights", ("host_set_id",), ("nnp", "nosuid"), more=("seccomp",)),
          Attack("rights", ("host_set_id",), ("nnp", "nosuid"), "lease", user="1000", more=("seccomp",))])
async def test_the_hosts_set_id_programs_do_not_work(arena: Arena, attack: Attack, bites: bool) -> None:
    await judge(arena, attack, bites)


@attacks([Attack("rights", ("double_chroot",), ("cover",), "lease")])
async def test_there_is_nothing_above_the_root(arena: Arena, attack: Attack, bites: bool) -> None:
    await judge(arena, attack, bites)


@arenas(PRODUCT)
async def test_nothing_climbs_out_of_a_chroot_by_a_move(arena: Arena) -> None:
    assert not (await arena.attempt("rights", "move_out", spec=LEASE)).harmed


@arenas(PRODUCT)
async def test_the_root_is_the_top_for_every_user(arena: Arena) -> None:
    async with arena.sandbox(LEASE) as box:
        for user in ("0", "1000"):
            command = arena.command("rights", "double_chroot", spec=LEASE, user=user, place=user == "0")
            assert not said(await box.run(command)).harmed
