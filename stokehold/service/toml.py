"""Writing the gateway's settings as TOML (the standard library only reads it). Values come from TOML or from us, never
from the network."""

from __future__ import annotations

import json
from collections.abc import Mapping


def dumps(table: Mapping[str, object], prefix: str = "") -> str:
    """`table` as TOML. None is left out; strings, numbers, booleans, lists of those and nested tables are known.
    Raises TypeError for anything else."""
    plain = {k: v for k, v in table.items() if v is not None and not isinstance(v, Mapping)}
    nested = {k: v for k, v in table.items() if isinstance(v, Mapping)}
    lines = [f"{_key(name)} = {_value(value)}" for name, value in plain.items()]
    for name, value in nested.items():
        path = f"{prefix}{_key(name)}"
        lines += ["", f"[{path}]", dumps(value, f"{path}.").rstrip("\n")]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else json.dumps(name)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    raise TypeError(f"{value!r} cannot be written as TOML")
