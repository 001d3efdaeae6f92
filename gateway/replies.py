"""Reply bodies as structs, for the OpenAPI document and for whoever reads the code: field names are API.md's."""

from __future__ import annotations

from gateway.commands import RunObject
from gateway.processes import ProcessObject
from gateway.schema import Reply
from runtimes.call import CallResult
from runtimes.languages import Language

__all__ = ["CallResult", "ProcessObject", "RunObject"]


class Problem(Reply):
    """`application/problem+json`."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    field: str | None
    request_id: str
    retryable: bool
    retry_after_ms: int | None


class LanguageList(Reply):
    """`GET /v1/languages`."""

    languages: list[Language]


class LeaseEnd(Reply):
    """When and why a lease ended."""

    at: str
    reason: str
    detail: str


class LeaseObject(Reply):
    """A lease. `token` only when it is created, `ended` only once it has."""

    id: str
    kind: str
    backend: str
    state: str
    node: str
    endpoint: str
    created_at: str
    expires_at: str
    idle_s: float | None
    metadata: dict[str, str]
    warmth: str
    timing: dict[str, int]
    token: str | None = None
    ended: LeaseEnd | None = None


class LeasePage(Reply):
    """`GET /v1/leases`."""

    leases: list[LeaseObject]
    next: str | None


class Deleted(Reply):
    """`DELETE /v1/leases?metadata.…`."""

    deleted: int


class Token(Reply):
    """`POST …/token`."""

    token: str


class ProcessList(Reply):
    """`GET …/processes`."""

    processes: list[ProcessObject]
    next: str | None


class Output(Reply):
    """A piece of a process's output; exactly one of `text`, `base64`."""

    stream: str
    offset: int
    next_offset: int
    end: bool
    text: str | None = None
    base64: str | None = None


class EntryObject(Reply):
    """One directory entry."""

    name: str
    path: str
    type: str
    size: int
    mode: str
    uid: int
    gid: int
    mtime_ns: int
    user: str | None
    group: str | None
    target: str | None


class EntryPage(Reply):
    """`GET …/list`."""

    entries: list[EntryObject]
    next: str | None
