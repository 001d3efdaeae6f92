"""Which languages a node offers, from what its base layer found; looks nothing up itself.

`python -m layers.host` writes languages.json as root, because the gateway can neither see nor run toolchains under
other users' homes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from layers.toolchains import SYSTEM_PATH
from runtimes.call import Call, CallRefused, InputFile
from runtimes.limits import LimitsAsk, resolve
from runtimes.recipes import RECIPES, Plan, Recipe, Tools


class Language(msgspec.Struct, frozen=True):
    """One language as `GET /v1/languages` shows it. `compile` and `run` are the commands for a lone source."""

    name: str
    aliases: tuple[str, ...]
    version: str
    file: str
    compile: tuple[str, ...] | None
    run: tuple[str, ...]


class _Listed(msgspec.Struct, frozen=True):
    version: str
    path: str
    more: dict[str, str] = {}


class _Listing(msgspec.Struct, frozen=True):
    path: str = SYSTEM_PATH
    languages: dict[str, _Listed] = {}


class Languages:
    """The languages of one base layer. Immutable."""

    def __init__(self, tools: Mapping[str, tuple[str, Tools]], path: str = SYSTEM_PATH) -> None:
        """`tools`: language → (version, its tools). Names without a recipe are ignored. `path`: PATH in a sandbox."""
        self.path = path
        self._tools = {name: tools[name] for name in RECIPES if name in tools}
        self._names = {alias: name for name in self._tools for alias in (name, *RECIPES[name][1])}

    @classmethod
    def read(cls, file: Path) -> Languages:
        """From a layer's languages.json. Raises OSError, msgspec.DecodeError."""
        listing = msgspec.json.decode(file.read_bytes(), type=_Listing)
        return cls({k: (v.version, Tools(v.path, v.more)) for k, v in listing.languages.items()}, listing.path)

    def get(self, name: str) -> Language | None:
        """By name or alias; None if it is unknown or its tools are not installed."""
        known = self._names.get(name)
        return self._describe(known) if known else None

    def list(self) -> tuple[Language, ...]:
        return tuple(self._describe(name) for name in self._tools)

    def plan(self, call: Call) -> Plan:
        """How the call's program is compiled and run. Raises CallRefused: unknown language, no source, which entry?"""
        if call.argv is not None:
            argv = call.argv
            if not argv:
                raise CallRefused("/argv", "an argument vector has at least the program")
            return Plan(call.files, lambda limits: argv, run_files=call.files)
        name = self._names.get(call.language or "")
        if name is None:
            offered = ", ".join(self._tools)
            raise CallRefused("/language", f"{str(call.language)[:80]!r} is not offered here; there is: {offered}")
        return self._recipe(name)(self._tools[name][1], call)

    def compiler(self, call: Call) -> str:
        """What names the compiler in a cache's key: language, version and place."""
        name = self._names.get(call.language or "", "")
        version, tools = self._tools.get(name, ("", Tools("")))
        return f"{name}\0{version}\0{tools.path}"

    def _recipe(self, name: str) -> Recipe:
        return RECIPES[name][2]

    def _describe(self, name: str) -> Language:
        version, tools = self._tools[name]
        file, aliases, recipe = RECIPES[name]
        plan = recipe(tools, Call(language=name, source=b"class Main { static void main(String[] a) {} }"))
        return Language(name, aliases, version, file, plan.compile, plan.run(resolve(LimitsAsk())))


def overlay(base: Iterable[InputFile], over: Iterable[InputFile]) -> tuple[InputFile, ...]:
    """Files of `over` laid over `base`, by path."""
    return tuple({file.path: file for file in (*base, *over)}.values())
