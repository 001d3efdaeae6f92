"""What an attack is, and the table of attempts that it becomes: refused by the product, refused by each of its mechanisms
alone, and doing its harm once none of them is there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from .arena import CALL, LEASE, Arena, Said

PRODUCT = ("", "")


class Attack(msgspec.Struct, frozen=True):
    """`stopped_by`: the mechanisms each of which alone stops it. `needs`: a file of this host's kernel without which there is
    nothing to attack. Why success would hurt nobody stands in its program, or in `harmless`."""

    program: str
    arguments: tuple[str, ...]
    stopped_by: tuple[str, ...]
    role: str = "call"
    user: str | None = None
    needs: str | None = None
    harmless: str = ""
    more: tuple[str, ...] = ()
    """Mechanisms that are away as well, though they do not stop this attack: the filter can only be installed without
    privileges if no_new_privs is set."""

    @property
    def name(self) -> str:
        return "-".join((self.program, *(a.strip("/").replace("/", ".") for a in self.arguments[:2]), self.role))


def matrix(attacks: Sequence[Attack]) -> list[Any]:
    """Parameters `arena` (indirect), `attack`, `bites`."""
    rows = []
    for attack in attacks:
        marks = [pytest.mark.skipif(attack.needs is not None and not Path(attack.needs).exists(),
                                    reason=f"this kernel has no {attack.needs}")]
        every = (*attack.stopped_by, *attack.more)

        def row(without: Sequence[str], bites: bool, label: str, attack: Attack = attack, marks: Any = marks) -> Any:
            key = (",".join(sorted(without)), "")
            return pytest.param(key, attack, bites, id=f"{attack.name}-{label}", marks=marks)

        rows.append(row((), False, "fails"))
        if len(attack.stopped_by) > 1:
            rows += [row([m for m in every if m != alone], False, f"fails-by-{alone}") for alone in attack.stopped_by]
        rows.append(row(every, True, "bites"))
    return rows


def attacks(table: Sequence[Attack]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("arena", "attack", "bites"), matrix(table), indirect=["arena"])


def arenas(*keys: tuple[str, str]) -> pytest.MarkDecorator:
    """For tests that are written out: in which arenas (without, stop_at)."""
    return pytest.mark.parametrize("arena", keys, indirect=True, ids=[f"{w or 'product'}{'@' + s if s else ''}" for w, s in keys])


async def judge(arena: Arena, attack: Attack, bites: bool, **more: Any) -> Said:
    spec = CALL if attack.role == "call" else LEASE
    result = await arena.attempt(attack.program, *attack.arguments, spec=spec, user=attack.user, **more)
    assert result.harmed == bites, result
    return result
