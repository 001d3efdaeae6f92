"""Every request body and query of the API as a struct. Shapes and bounds only: what they mean is decided where they are used."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType, field

from gateway.schema import (
    Count,
    Environment,
    Metadata,
    Name,
    Number,
    NumberOrZero,
    Request,
    ShortText,
    Value,
)

KindName = Literal["container", "microvm", "vm", "fake"]
Path = Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^[^\x00]+$")]
User = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00]+$")]
Argv = Annotated[list[Annotated[str, Meta(pattern=r"^[^\x00]*$")]], Meta(min_length=1, max_length=65_536)]
Args = Annotated[list[Annotated[str, Meta(pattern=r"^[^\x00]*$")]], Meta(max_length=65_536)]


class LimitsAsk(Request):
    """Limits of one run; what is null has the default of its stage."""

    cpu_ms: Number | None = None
    wall_ms: Number | None = None
    memory_mb: Number | None = None
    stack_mb: NumberOrZero | None = None
    output_kb: NumberOrZero | None = None
    file_mb: NumberOrZero | None = None
    disk_mb: Number | None = None
    processes: Count | None = None
    cpus: Number | None = None


class CompileAsk(Request):
    """How to compile."""

    flags: Args | None = None
    env: Environment | None = None
    limits: LimitsAsk | None = None


class TestAsk(Request):
    """One test. Without `expected` it only runs."""

    __test__ = False
    name: Name | None = None
    stdin: Value | None = None
    expected: Value | None = None
    args: Args | None = None
    files: dict[Path, Value] | None = None
    limits: LimitsAsk | None = None


class CheckerAsk(Request):
    """A checker or interactor that is a program."""

    language: Name | None = None
    source: str | None = None
    artifact: str | None = None
    args: Args | None = None
    limits: LimitsAsk | None = None
    protocol: Literal["testlib", "kattis"] | None = None


class RunAsk(Request):
    """`POST /v1/run`."""

    language: Name | None = None
    source: str | None = None
    files: dict[Path, Value] | None = None
    entry: Path | None = None
    artifact: str | None = None
    argv: Argv | None = None
    args: Args | None = None
    env: Environment | None = None
    cwd: Path | None = None
    compile: CompileAsk | None = None
    stdin: Value | None = None
    tests: list[TestAsk] | None = None
    checker: str | CheckerAsk | None = None
    interactor: CheckerAsk | None = None
    limits: LimitsAsk | None = None
    parallel: Count | None = None
    stop_on_first_failure: bool | None = None
    files_out: Annotated[list[Path], Meta(max_length=1024)] | None = None
    store: list[Path] | None = None
    return_kb: NumberOrZero | None = None
    on_denied_syscall: Literal["fail", "kill"] | None = None
    callback: str | None = None
    kind: KindName | None = None
    backend: Name | None = None
    layers: LayersAsk | None = None


class LayersAsk(Request):
    """The stack of layers: base (bottom), workspace, toolkits (top)."""

    base: Name | None = None
    workspace: Name | None = None
    toolkits: list[Name] | None = None


class FromAsk(Request):
    """What a lease starts from."""

    snapshot: Name | None = None


class DiskAsk(Request):
    """Private writable space."""

    mb: Number | None = None
    on: Literal["memory", "disk"] | None = None


class ResourcesAsk(Request):
    """What a lease may use."""

    cpu: Number | None = None
    memory_mb: Number | None = None
    disk: DiskAsk | None = None
    processes: Count | None = None


class NetworkAsk(Request):
    """What a lease may reach."""

    mode: Literal["none", "allow", "open", "full"] | None = None
    allow: list[Name] | None = None


class LeaseAsk(Request):
    """`POST /v1/leases`."""

    kind: KindName | None = None
    backend: Name | None = None
    layers: LayersAsk | None = None
    from_: FromAsk | None = field(default=None, name="from")
    resources: ResourcesAsk | None = None
    network: NetworkAsk | None = None
    user: User | None = None
    env: Environment | None = None
    cwd: Path | None = None
    ttl_s: Number | None = None
    idle_s: Number | None = None
    on_idle: Literal["delete", "pause"] | None = None
    metadata: Metadata | None = None
    count: Annotated[int, Meta(gt=0, le=32_768)] | None = None
    wait_s: NumberOrZero | None = None


class LeasePatch(Request):
    """`PATCH /v1/leases/{id}`: what is absent stays; a null `idle_s` takes the idle deadline away."""

    ttl_s: Number | UnsetType | None = UNSET
    idle_s: Number | UnsetType | None = UNSET
    metadata: Metadata | UnsetType | None = UNSET


class ExecLimitsAsk(LimitsAsk):
    """Limits of one command in a lease; none has a default but the output's."""


class ExecAsk(Request):
    """`POST …/exec` and `POST …/processes`. Exactly one of `argv`, `shell`."""

    argv: Argv | None = None
    shell: str | None = None
    cwd: Path | None = None
    env: Environment | None = None
    user: User | None = None
    stdin: Value | None = None
    timeout_ms: Number | None = None
    silence_ms: Number | None = None
    output_kb: NumberOrZero | None = None
    on_output: Literal["truncate", "kill"] | None = None
    background: Literal["keep", "end"] | None = None
    stderr: Literal["separate", "merge", "discard"] | None = None
    limits: ExecLimitsAsk | None = None
    tag: ShortText | None = None


class SignalAsk(Request):
    """`POST …/processes/{pid}/signal`."""

    signal: Name | int


class WaitAsk(Request):
    """`POST …/processes/{pid}/wait`: null waits until it ends."""

    timeout_ms: NumberOrZero | None = None


class MoveAsk(Request):
    """`POST …/move`."""

    from_: Path = field(name="from")
    to: Path
    user: User | None = None


class MkdirAsk(Request):
    """`POST …/mkdir`; parents are made too."""

    path: Path
    mode: ShortText | None = None
    user: User | None = None


class ChmodAsk(Request):
    """`POST …/chmod`."""

    path: Path
    mode: ShortText
    user: User | None = None


class PageQuery(Request):
    """Of every list."""

    limit: Annotated[int, Meta(gt=0, le=10_000)] = 100
    cursor: ShortText | None = None


class OutputQuery(Request):
    """`GET …/processes/{pid}/output`."""

    stream: Literal["stdout", "stderr"] | None = None
    offset: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(gt=0, le=16 << 20)] = 1 << 20
    follow: bool = False


class StdinQuery(Request):
    """`POST …/processes/{pid}/stdin`."""

    close: bool = False


class PathQuery(Request):
    """Of routes that name one file."""

    path: Path
    user: User | None = None


class StatQuery(PathQuery):
    """`GET …/stat`."""

    follow: bool = False


class PutQuery(PathQuery):
    """`PUT …/files`."""

    mode: ShortText | None = None
    mkdirs: bool = False
    append: bool = False


class DeleteQuery(PathQuery):
    """`DELETE …/files`."""

    recursive: bool = False


class ListQuery(PageQuery, kw_only=True):
    """`GET …/list`."""

    path: Path
    user: User | None = None
    depth: Annotated[int, Meta(ge=1, le=64)] = 1
