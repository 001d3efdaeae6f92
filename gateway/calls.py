"""From a run request to a validated `Call`. Everything that API.md refuses is refused here, with the field; nothing runs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.errors import BadRequest, Unsupported
from gateway.requests import CheckerAsk, CompileAsk, RunAsk, TestAsk
from gateway.requests import LimitsAsk as LimitsJson
from gateway.schema import Value, encode_text, escape, mode_bits, value_bytes, within
from gateway.settings import Maximum
from runtimes.call import Call, Compile, InputFile, Test
from runtimes.checkers import named
from runtimes.limits import COMPILE, LimitsAsk, RunLimits, resolve

FILES_MAX = 4096
ENVIRONMENT_MAX = 1 << 20


def call_of(ask: RunAsk, maximum: Maximum) -> Call:
    """The call of a request. Raises BadRequest with the field, Unsupported for what this service does not have."""
    _refuse_unbuilt(ask)
    _one_program(ask)
    limits = _limits(ask.limits, None, maximum, "/limits")
    return Call(
        language=ask.language,
        source=None if ask.source is None else encode_text(ask.source, "/source"),
        files=files_of(ask.files, "/files"),
        entry=None if ask.entry is None else safe_path(ask.entry, "/entry"),
        argv=None if ask.argv is None else _words(ask.argv, "/argv"),
        args=_words(ask.args, "/args"),
        env=_environment(ask.env, "/env"),
        cwd=None if ask.cwd is None else safe_path(ask.cwd, "/cwd", folder=True),
        compile=_compile(ask.compile, maximum),
        tests=_tests(ask, maximum),
        checker=_checker(ask.checker),
        limits=limits,
        parallel=_parallel(ask.parallel, maximum),
        stop_on_first_failure=bool(ask.stop_on_first_failure),
        files_out=_files_out(ask.files_out),
        return_bytes=None if ask.return_kb is None else round(ask.return_kb * 1024),
        on_denied_syscall=ask.on_denied_syscall or "fail",
        kind=ask.kind or "container",
    )


def _refuse_unbuilt(ask: RunAsk) -> None:
    for field, hint in (
        ("artifact", "send the source; a repeated compilation is answered from the cache"),
        ("interactor", "interactors are not part of this service"),
        ("callback", "wait for the answer of the request"),
        ("store", "blobs are not part of this service: use files_out"),
    ):
        if getattr(ask, field) not in (None, []):
            raise Unsupported(f"{field} is not part of this service: {hint}", field=f"/{field}")
    if isinstance(ask.checker, CheckerAsk):
        raise Unsupported("checker programs are not part of this service: use exact, lines, tokens or floats:E", field="/checker")
    if ask.kind in ("microvm", "vm"):
        raise Unsupported(f"kind {ask.kind} is not part of this service: use container", field="/kind")
    if ask.backend not in (None, "native", "fake"):
        raise BadRequest(f"there is no backend {ask.backend[:40]}", field="/backend")
    refuse_layers(ask.layers)


def refuse_layers(layers: object) -> None:
    """Only base `host` without anything above it exists. Raises Unsupported."""
    base, workspace, toolkits = (getattr(layers, name, None) for name in ("base", "workspace", "toolkits"))
    if base not in (None, "host"):
        raise Unsupported('layers other than base "host" are not part of this service', field="/layers/base")
    if workspace is not None:
        raise Unsupported("workspaces are not part of this service", field="/layers/workspace")
    if toolkits:
        raise Unsupported("toolkits are not part of this service", field="/layers/toolkits")


def _one_program(ask: RunAsk) -> None:
    if ask.argv is not None:
        for field in ("language", "source"):
            if getattr(ask, field) is not None:
                raise BadRequest(f"either argv or {field}, not both", field=f"/{field}")
    elif ask.language is None:
        raise BadRequest("one of language (with source or files) and argv is needed", field="/language")
    elif ask.source is not None and ask.files:
        raise BadRequest("either source or files, not both", field="/files")
    elif ask.source is None and not ask.files:
        raise BadRequest("a language needs source or files", field="/source")
    if ask.tests is not None and ask.stdin is not None:
        raise BadRequest("stdin is for one run; with tests, each has its own", field="/stdin")


def safe_path(path: str, field: str, *, folder: bool = False) -> str:
    """A path relative to /box that stays below it. Raises BadRequest."""
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or "\0" in path:
        raise BadRequest("a path is relative and stays below /box", field=field)
    clean = "/".join(part for part in parts if part not in ("", "."))
    if not clean and not folder:
        raise BadRequest("the path names no file", field=field)
    if any(len(encode_text(part, field)) > 255 for part in parts):
        raise BadRequest("a name has at most 255 bytes", field=field)
    return clean or "."


def files_of(files: Mapping[str, Value] | None, field: str) -> tuple[InputFile, ...]:
    """Files to place, by path. Raises BadRequest for paths that leave /box, or of which one lies below another."""
    if not files:
        return ()
    if len(files) > FILES_MAX:
        raise BadRequest(f"at most {FILES_MAX} files", field=field)
    placed: dict[str, InputFile] = {}
    for path, value in files.items():
        here = f"{field}/{escape(path)}"
        clean = safe_path(path, here)
        if clean in placed:
            raise BadRequest("the same file twice", field=here)
        mode = None if isinstance(value, str) else value.mode
        placed[clean] = InputFile(clean, value_bytes(value, here), mode_bits(mode, f"{here}/mode", 0o644))
    for path in placed:
        above = path.rpartition("/")[0]
        while above:
            if above in placed:
                raise BadRequest(f"{above} is a file and a directory", field=f"{field}/{escape(path)}")
            above = above.rpartition("/")[0]
    return tuple(placed.values())


def _words(words: list[str] | None, field: str) -> tuple[str, ...]:
    for number, word in enumerate(words or ()):
        encode_text(word, f"{field}/{number}")
    return tuple(words or ())


def _environment(env: Mapping[str, str | None] | None, field: str) -> Mapping[str, str | None]:
    size = 0
    for name, value in (env or {}).items():
        size += len(encode_text(name, field)) + len(encode_text(value or "", f"{field}/{escape(name)}"))
        if "\0" in (value or ""):
            raise BadRequest("a variable cannot hold a NUL", field=f"{field}/{escape(name)}")
    if size > ENVIRONMENT_MAX:
        raise BadRequest(f"the environment has {size} bytes; at most {ENVIRONMENT_MAX} fit", field=field)
    return env or {}


def limits_ask(ask: LimitsJson | None, maximum: Maximum, field: str) -> LimitsAsk:
    """Limits as the engine knows them. Raises BadRequest for those above the node's maximum."""
    if ask is None:
        return LimitsAsk()
    named_ = {name.name: getattr(ask, name.name) for name in msgspec.structs.fields(LimitsJson)}
    for name, value in named_.items():
        within(value, getattr(maximum, name), f"{field}/{name}")
    return LimitsAsk(**named_)


def _limits(ask: LimitsJson | None, over: LimitsJson | None, maximum: Maximum, field: str) -> RunLimits:
    """`over` laid over `ask`, resolved; the default of `wall_ms` follows `cpu_ms`, up to the node's maximum."""
    below = limits_ask(ask, maximum, "/limits")
    limits = resolve(limits_ask(over, maximum, field).over(below) if over is not None else below)
    return msgspec.structs.replace(limits, wall_ns=min(limits.wall_ns, maximum.wall_ms * 1_000_000))


def _compile(ask: CompileAsk | None, maximum: Maximum) -> Compile:
    if ask is None:
        return Compile()
    return Compile(
        _words(ask.flags, "/compile/flags"),
        _environment(ask.env, "/compile/env"),
        resolve(limits_ask(ask.limits, maximum, "/compile/limits"), COMPILE),
    )


def _tests(ask: RunAsk, maximum: Maximum) -> tuple[Test, ...]:
    if ask.tests is None:
        return (Test(stdin=value_bytes(ask.stdin, "/stdin")),)
    if len(ask.tests) > maximum.tests:
        raise BadRequest(f"{len(ask.tests)} tests are above this node's maximum of {maximum.tests}", field="/tests")
    return tuple(_test(ask, test, number, maximum) for number, test in enumerate(ask.tests))


def _test(ask: RunAsk, test: TestAsk, number: int, maximum: Maximum) -> Test:
    here = f"/tests/{number}"
    return Test(
        name=test.name or str(number + 1),
        stdin=value_bytes(test.stdin, f"{here}/stdin"),
        expected=None if test.expected is None else value_bytes(test.expected, f"{here}/expected"),
        args=None if test.args is None else _words(test.args, f"{here}/args"),
        files=files_of(test.files, f"{here}/files"),
        limits=None if test.limits is None else _limits(ask.limits, test.limits, maximum, f"{here}/limits"),
    )


def _checker(checker: object) -> str:
    name = checker if isinstance(checker, str) else "lines"
    try:
        named(name)
    except ValueError as error:
        raise BadRequest(str(error)[:200], field="/checker") from None
    return name


def _parallel(parallel: int | None, maximum: Maximum) -> int:
    within(parallel, maximum.parallel, "/parallel")
    return parallel or 1


def _files_out(names: list[str] | None) -> tuple[str, ...]:
    for number, name in enumerate(names or ()):
        safe_path(name.removesuffix("?"), f"/files_out/{number}")
    return tuple(names or ())
