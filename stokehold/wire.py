"""Every request that the SDK makes, as plain data: built here, sent by `client` or `aio`. No I/O, no clock.

Arguments left at None are not sent: the service's defaults hold."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

import msgspec

from stokehold import replies

T = TypeVar("T")
Content = str | bytes | Mapping[str, Any]
"""A value: text, bytes, or the API's own object form (`{"blob": …}`, `{"text": …, "mode": "0755"}`)."""


QUICK_S = 50.0
"""What needs no program's end is answered within this. A connection of HTTP/3 whose peer was killed says nothing
at all: only such a bound tells."""


class Ask(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One request. `repeatable`: sending it twice does no more than sending it once."""

    method: str
    path: str
    reply: Any
    """The struct of its reply, or None for a reply without a body."""
    body: bytes | None = None
    headers: dict[str, str] = {}
    repeatable: bool = True
    patience_s: float | None = QUICK_S
    """How long the service may take before it begins to answer: None leaves it to the client's own timeout."""


def value(content: Content) -> Any:
    """How a value travels: bytes that are no UTF-8 as base64."""
    if isinstance(content, bytes | bytearray | memoryview):
        raw = bytes(content)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(raw).decode()}
    return content


def _body(fields: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({name: item for name, item in fields.items() if item is not None})


def _post(
    path: str,
    fields: Mapping[str, Any],
    reply: type[T] | None,
    *,
    repeatable: bool,
    key: str | None = None,
    patience_s: float | None = QUICK_S,
    headers: Mapping[str, str] | None = None,
) -> Ask[T]:
    sent = {"Content-Type": "application/json", **(headers or {})}
    if key is not None:
        sent["Idempotency-Key"] = key
    return Ask(
        method="POST",
        path=path,
        reply=reply,
        body=_body(fields),
        headers=sent,
        repeatable=repeatable or key is not None,
        patience_s=patience_s,
    )


def _get(path: str, reply: type[T], query: Mapping[str, Any] | None = None) -> Ask[T]:
    return Ask(method="GET", path=path + _query(query or {}), reply=reply)


def _query(fields: Mapping[str, Any]) -> str:
    shown = {k: str(v).lower() if isinstance(v, bool) else v for k, v in fields.items() if v is not None}
    return "?" + urlencode(shown) if shown else ""


def _metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    return {f"metadata.{name}": item for name, item in (metadata or {}).items()}


def run(
    *,
    language: str | None = None,
    source: Content | None = None,
    files: Mapping[str, Content] | None = None,
    argv: Sequence[str] | None = None,
    stdin: Content | None = None,
    tests: Sequence[Mapping[str, Any]] | None = None,
    timeout_s: float | None = None,
    priority: str | None = None,
    **fields: Any,
) -> Ask[replies.RunReply]:
    """POST /v1/run. `fields` are the API's other members (`args`, `env`, `entry`, `limits`, `compile`, `checker`,
    …)."""
    headers = _patience(timeout_s)
    if priority is not None:
        headers["Priority"] = priority
    shown = None if tests is None else [_test(test) for test in tests]
    return _post(
        "/v1/run",
        {
            "language": language,
            "source": None if source is None else value(source),
            "files": None if files is None else {name: value(item) for name, item in files.items()},
            "argv": None if argv is None else list(argv),
            "stdin": None if stdin is None else value(stdin),
            "tests": shown,
            **fields,
        },
        replies.RunReply,
        repeatable=True,
        patience_s=timeout_s,
        headers=headers,
    )


def _test(test: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value(item) if name in ("stdin", "expected") and item is not None else item for name, item in test.items()}


def _patience(timeout_s: float | None) -> dict[str, str]:
    return {} if timeout_s is None else {"Stokehold-Timeout-Ms": str(max(1, round(timeout_s * 1000)))}


def languages() -> Ask[replies.Languages]:
    return _get("/v1/languages", replies.Languages)


def create_lease(fields: Mapping[str, Any], key: str | None = None) -> Ask[replies.LeaseInfo]:
    """POST /v1/leases for one lease. It always goes under an idempotency key, so that a broken connection leaks
    none."""
    return _post(
        "/v1/leases",
        fields,
        replies.LeaseInfo,
        repeatable=True,
        key=key or uuid.uuid4().hex,
        patience_s=float(fields.get("wait_s") or 60) + 30,
    )


def create_leases(fields: Mapping[str, Any], count: int) -> Ask[replies.LeaseLine]:
    """POST /v1/leases for many: an NDJSON stream. Leases that were not written to a broken connection are released."""
    return _post(
        "/v1/leases",
        {**fields, "count": count},
        replies.LeaseLine,
        repeatable=False,
        headers={"Accept": "application/x-ndjson"},
        patience_s=float(fields.get("wait_s") or 60) + 600,
    )


def get_lease(lease: str) -> Ask[replies.LeaseInfo]:
    return _get(f"/v1/leases/{lease}", replies.LeaseInfo)


def list_leases(state: str | None, metadata: Mapping[str, str] | None, limit: int | None, cursor: str | None) -> Ask[replies.LeasePage]:
    return _get("/v1/leases", replies.LeasePage, {"state": state, "limit": limit, "cursor": cursor, **_metadata(metadata)})


def patch_lease(lease: str, fields: Mapping[str, Any]) -> Ask[replies.LeaseInfo]:
    return Ask(
        method="PATCH",
        path=f"/v1/leases/{lease}",
        reply=replies.LeaseInfo,
        body=_body(fields),
        headers={"Content-Type": "application/json"},
    )


def delete_lease(lease: str) -> Ask[None]:
    return Ask(method="DELETE", path=f"/v1/leases/{lease}", reply=None)


def delete_leases(metadata: Mapping[str, str]) -> Ask[dict[str, Any]]:
    return Ask(method="DELETE", path="/v1/leases" + _query(_metadata(metadata)), reply=dict[str, Any], patience_s=None)


def _command(
    argv: Sequence[str] | None,
    shell: str | None,
    stdin: Content | None,
    timeout_s: float | None,
    fields: Mapping[str, Any],
) -> dict[str, Any]:
    if (argv is None) == (shell is None):
        raise ValueError("give argv or shell, one of them")
    return {
        "argv": None if argv is None else list(argv),
        "shell": shell,
        "stdin": None if stdin is None else value(stdin),
        "timeout_ms": None if timeout_s is None else max(1, round(timeout_s * 1000)),
        **fields,
    }


def exec(
    lease: str,
    *,
    argv: Sequence[str] | None = None,
    shell: str | None = None,
    stdin: Content | None = None,
    timeout_s: float | None = None,
    key: str | None = None,
    stream: bool = False,
    **fields: Any,
) -> Ask[replies.ExecReply]:
    """POST …/exec. Without `key` it is never sent twice: a command may not be repeated just because its answer was
    lost."""
    return _post(
        f"/v1/leases/{lease}/exec",
        _command(argv, shell, stdin, timeout_s, fields),
        replies.ExecReply,
        repeatable=False,
        key=key,
        patience_s=None if timeout_s is None else timeout_s + 60,
        headers={"Accept": "text/event-stream"} if stream else None,
    )


def start_process(
    lease: str,
    *,
    argv: Sequence[str] | None = None,
    shell: str | None = None,
    stdin: Content | None = None,
    timeout_s: float | None = None,
    key: str | None = None,
    **fields: Any,
) -> Ask[replies.ProcessInfo]:
    return _post(
        f"/v1/leases/{lease}/processes",
        _command(argv, shell, stdin, timeout_s, fields),
        replies.ProcessInfo,
        repeatable=True,
        key=key or uuid.uuid4().hex,
    )


def list_processes(lease: str) -> Ask[replies.ProcessPage]:
    return _get(f"/v1/leases/{lease}/processes", replies.ProcessPage)


def process_output(lease: str, pid: int | str, stream: str, offset: int) -> Ask[replies.Output]:
    return _get(f"/v1/leases/{lease}/processes/{pid}/output", replies.Output, {"stream": stream, "offset": offset})


def process_stdin(lease: str, pid: int | str, data: bytes, close: bool) -> Ask[None]:
    return Ask(
        method="POST",
        path=f"/v1/leases/{lease}/processes/{pid}/stdin" + _query({"close": close or None}),
        reply=None,
        body=data,
        headers={"Content-Type": "application/octet-stream"},
        repeatable=False,
    )


def process_signal(lease: str, pid: int | str, signal: str) -> Ask[None]:
    return _post(f"/v1/leases/{lease}/processes/{pid}/signal", {"signal": signal}, None, repeatable=False)


def process_wait(lease: str, pid: int | str) -> Ask[replies.ExecReply]:
    return _post(f"/v1/leases/{lease}/processes/{pid}/wait", {}, replies.ExecReply, repeatable=True, patience_s=None)


def read_file(lease: str, path: str, first: int | None = None, last: int | None = None) -> Ask[bytes]:
    """GET …/files. `first` and `last` are byte positions, both included, as in a Range header."""
    headers = {} if first is None and last is None else {"Range": f"bytes={'' if first is None else first}-{'' if last is None else last}"}
    return Ask(method="GET", path=f"/v1/leases/{lease}/files" + _query({"path": path}), reply=bytes, headers=headers)


def write_file(
    lease: str,
    path: str,
    data: bytes | None,
    *,
    mode: str | None = None,
    user: str | None = None,
    mkdirs: bool = True,
    append: bool = False,
) -> Ask[None]:
    """PUT …/files; the caller streams the body if `data` is None. An append is not repeatable."""
    query = {"path": path, "mode": mode, "user": user, "mkdirs": mkdirs or None, "append": append or None}
    return Ask(
        method="PUT",
        path=f"/v1/leases/{lease}/files" + _query(query),
        reply=None,
        body=data,
        headers={"Content-Type": "application/octet-stream"},
        repeatable=not append and data is not None,
        patience_s=None,
    )


def stat(lease: str, path: str) -> Ask[replies.Entry]:
    return _get(f"/v1/leases/{lease}/stat", replies.Entry, {"path": path})


def list_files(lease: str, path: str, depth: int | None, cursor: str | None) -> Ask[replies.EntryPage]:
    return _get(f"/v1/leases/{lease}/list", replies.EntryPage, {"path": path, "depth": depth, "cursor": cursor})


def delete_file(lease: str, path: str, recursive: bool) -> Ask[None]:
    return Ask(
        method="DELETE",
        path=f"/v1/leases/{lease}/files" + _query({"path": path, "recursive": recursive or None}),
        reply=None,
    )


def move_file(lease: str, source: str, target: str) -> Ask[None]:
    return _post(f"/v1/leases/{lease}/move", {"from": source, "to": target}, None, repeatable=False)


def make_directory(lease: str, path: str) -> Ask[None]:
    return _post(f"/v1/leases/{lease}/mkdir", {"path": path}, None, repeatable=True)


def change_mode(lease: str, path: str, mode: str) -> Ask[None]:
    return _post(f"/v1/leases/{lease}/chmod", {"path": path, "mode": mode}, None, repeatable=True)


def get_archive(lease: str, path: str) -> Ask[bytes]:
    """GET …/archive: a tar of the tree at `path`."""
    return Ask(method="GET", path=f"/v1/leases/{lease}/archive" + _query({"path": path}), reply=bytes)


def put_archive(lease: str, path: str) -> Ask[None]:
    """PUT …/archive: the caller streams a tar, which is extracted at `path`."""
    return Ask(
        method="PUT",
        path=f"/v1/leases/{lease}/archive" + _query({"path": path}),
        reply=None,
        repeatable=False,
        headers={"Content-Type": "application/x-tar"},
        patience_s=None,
    )


def command(argv: str | Sequence[str], fields: Mapping[str, Any]) -> dict[str, Any]:
    """A command as people give it: a string is for the shell, a sequence is a program and its arguments."""
    return {**({"shell": argv} if isinstance(argv, str) else {"argv": argv}), **fields}
