"""Where the contract suite runs: a backend, the programs that it understands, and ways to drop and to break it."""

from __future__ import annotations

import itertools
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping

from runtimes.backend import (
    Backend,
    Collect,
    Command,
    Descriptor,
    Failure,
    Files,
    Null,
    Recorded,
    Sandbox,
    Spec,
)
from runtimes.fake import FakeBackend, FakeHost

_numbers = itertools.count()
PATH = "/usr/local/bin:/usr/bin:/bin"
KEPT: Mapping[int, Descriptor] = {0: Null(), 1: Collect(1 << 20), 2: Collect(1 << 20)}


def new_name(kind: str = "box") -> str:
    return f"{kind}{next(_numbers):08}"


class Box(Sandbox, Files, Recorded):
    """What every sandbox under test can do."""


class Site(ABC):
    """One backend under test. `backend` changes with `reconnect`."""

    backend: Backend

    @abstractmethod
    def steps(self, *steps: str) -> tuple[str, ...]:
        """The argv of a program that does these things; the verbs are those of `runtimes.fake_programs.steps`."""

    @abstractmethod
    def spec(self, role: str = "lease") -> Spec: ...

    @abstractmethod
    async def reconnect(self, *, close: bool = True) -> Backend:
        """As when a gateway dies and another one comes; without `close`, the old one does not know yet."""

    @abstractmethod
    async def crash(self) -> None:
        """As when what holds the sandboxes dies and is started again."""

    @abstractmethod
    async def clear(self) -> None:
        """End whatever a test left, and check that nothing remains."""

    async def box(self, role: str = "lease", **changes: object) -> Box:
        (made,) = await self.boxes(1, self.spec(role))
        return made

    async def boxes(self, count: int, spec: Spec | None = None) -> list[Box]:
        names = [new_name() for _ in range(count)]
        found = [made async for made in self.backend.start_many(names, spec or self.spec())]
        assert not [made for made in found if isinstance(made, Failure)], found
        return found  # type: ignore[return-value]

    def command(self, *steps: str, **more: object) -> Command:
        """A command of these steps."""
        return self.program(*self.steps(*steps), **more)

    @staticmethod
    def program(*argv: str, **more: object) -> Command:
        """A command that both a real and a fake sandbox know by this name."""
        given: dict[str, object] = {"id": new_name("cmd"), "env": {"PATH": PATH}, "cwd": "/tmp", "descriptors": KEPT}
        return Command(argv=argv, **{**given, **more})  # type: ignore[arg-type]


class FakeSite(Site):
    def __init__(self) -> None:
        self.host = FakeHost()
        self.backend = FakeBackend(self.host)

    def steps(self, *steps: str) -> tuple[str, ...]:
        return ("steps", *steps)

    def spec(self, role: str = "lease") -> Spec:
        return Spec(kind="fake", role=role, disk_bytes=32 << 20)  # type: ignore[arg-type]

    async def reconnect(self, *, close: bool = True) -> Backend:
        if close:
            await self.backend.aclose()
        self.backend = FakeBackend(self.host)
        return self.backend

    async def crash(self) -> None:
        for name in list(self.host.boxes):
            self.host.lose(name, "lost")

    async def clear(self) -> None:
        await self.backend.stop_many(list(self.host.boxes), "cleared")
        await self.backend.aclose()
        assert not self.host.boxes


def shell(*steps: str) -> tuple[str, ...]:
    """The same steps for a real sandbox."""
    return ("/bin/sh", "-c", "\n".join(_line(*step.partition(" ")[::2]) for step in steps))


def _line(verb: str, rest: str) -> str:
    first, _, second = rest.partition(" ")
    match verb:
        case "out":
            return f"printf %s {shlex.quote(rest)}"
        case "err":
            return f"printf %s {shlex.quote(rest)} >&2"
        case "fill":
            return f"head -c {second} /dev/zero | tr '\\0' x >&{first}"
        case "line":
            return "IFS= read -r line; printf '[%s]' \"$line\""
        case "copy":
            return "cat"
        case "sleep":
            return f"sleep {rest}"
        case "burn":
            return f"python3 -c 'import time\nwhile time.process_time() < {rest}: pass'"
        case "memory":
            return f"python3 -c 'kept = b\"x\" * {rest}'"
        case "leave":
            return f"(sleep {rest}; printf late) &"
        case "ignore":
            return f"trap '' {rest}"
        case "kill":
            return f"kill -{rest} $$"
        case "save":
            return f"printf %s {shlex.quote(second)} > {first}"
        case "append":
            return f"printf %s {shlex.quote(second)} >> {first}"
        case "size":
            return "stty size"
        case "exit":
            return f"exit {rest}"
    raise ValueError(verb)
