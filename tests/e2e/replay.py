"""Replays cases (`cases/*.jsonl`) through the SDK's transport and compares. A case is one request or a list of steps; what is
expected is a subset of the reply, with `$lt`, `$gt`, `$re`, `$in`, `$len` where a value is not known beforehand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from stokehold import Client
from stokehold.errors import ApiError
from stokehold.wire import Ask

CASES = Path(__file__).with_name("cases")


def load(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (CASES / name).read_text().splitlines() if line.strip()]


def _expand(value: Any, saved: dict[str, Any]) -> Any:
    """Write out `{"$repeat": [text, n]}` and put what was saved where `${name}` stands."""
    if isinstance(value, str):
        return re.sub(r"\$\{(\w+)\}", lambda match: str(saved[match[1]]), value)
    if isinstance(value, dict):
        if set(value) == {"$repeat"}:
            return value["$repeat"][0] * value["$repeat"][1]
        return {key: _expand(item, saved) for key, item in value.items()}
    return [_expand(item, saved) for item in value] if isinstance(value, list) else value


def _holds(operator: str, wanted: Any, got: Any) -> bool:
    match operator:
        case "$lt":
            return got is not None and bool(got < wanted)
        case "$gt":
            return got is not None and bool(got > wanted)
        case "$re":
            return isinstance(got, str) and re.search(wanted, got) is not None
        case "$in":
            return got in wanted
        case "$len":
            return got is not None and len(got) == wanted
    raise ValueError(operator)


def difference(wanted: Any, got: Any, at: str = "reply") -> str | None:
    """The first difference, or None."""
    if isinstance(wanted, dict) and any(key.startswith("$") for key in wanted):
        failed = [op for op, value in wanted.items() if not _holds(op, value, got)]
        return f"{at}: wanted {failed} of {wanted}, got {str(got)[:200]!r}" if failed else None
    if isinstance(wanted, dict):
        if not isinstance(got, dict):
            return f"{at}: wanted an object, got {str(got)[:200]!r}"
        return next((d for key, item in wanted.items() if (d := difference(item, got.get(key), f"{at}.{key}"))), None)
    if isinstance(wanted, list):
        if not isinstance(got, list) or len(got) != len(wanted):
            return f"{at}: wanted {len(wanted)} items, got {str(got)[:200]!r}"
        return next((d for i, item in enumerate(wanted) if (d := difference(item, got[i], f"{at}[{i}]"))), None)
    same = wanted == got and isinstance(wanted, bool) == isinstance(got, bool)
    return None if same else f"{at}: wanted {str(wanted)[:200]!r}, got {str(got)[:200]!r}"


def _send(client: Client, step: dict[str, Any]) -> tuple[int | None, Any]:
    """(status of a problem or None for success, reply)."""
    body = json.dumps(step["request"]).encode() if "request" in step else step.get("body", "").encode() or None
    headers = {"Content-Type": "application/json", **step.get("headers", {})}
    ask: Ask[bytes] = Ask(method=step["method"], path=step["path"], reply=bytes, body=body, headers=headers, repeatable=False)
    try:
        raw = client.send(ask)
    except ApiError as problem:
        return problem.status, {"code": problem.code, "field": problem.field}
    try:
        return None, json.loads(raw) if raw else None
    except ValueError:
        return None, {"text": raw.decode("utf-8", "replace")}


def play(client: Client, case: dict[str, Any]) -> str | None:
    """The first difference of one case, or None."""
    saved: dict[str, Any] = {}
    steps = case.get("steps") or [{"method": "POST", "path": "/v1/run", **case}]
    for number, raw in enumerate(steps, 1):
        step = _expand(raw, saved)
        status, reply = _send(client, step)
        wanted = step.get("http", 200)
        allowed = wanted if isinstance(wanted, list) else [wanted]
        if status is None and not any(code < 400 for code in allowed):
            return f"step {number}: wanted HTTP {wanted}, got {str(reply)[:200]}"
        if status is not None and status not in allowed:
            return f"step {number}: HTTP {status}, wanted {wanted}: {reply}"
        if "expect" in step and (found := difference(step["expect"], reply)):
            return f"step {number}: {found}"
        for name, path in step.get("save", {}).items():
            value = reply
            for part in path.split("."):
                value = value[int(part)] if isinstance(value, list) else value[part]
            saved[name] = value
    return None
