"""How commands speak: tables and colours on a terminal, JSON for machines, and the exit codes of DESIGN §5."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from stokehold import errors

OK, OTHER, USAGE, NO_SERVICE, OURS = 0, 1, 2, 3, 4
EXEC_TIMEOUT, EXEC_FAULT = 124, 125

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
State = Annotated[
    str | None,
    typer.Option(
        "--state",
        metavar="DIR",
        envvar="STOKEHOLD_STATE",
        help="State directory of the service (default /var/lib/stokehold).",
    ),
]


def say(line: str) -> None:
    """A line for people, on stderr, so that stdout is the result alone."""
    err.print(line, markup=False)


def give(data: Any) -> None:
    """A result for machines."""
    out.file.write(msgspec.json.encode(data).decode() + "\n")


def line(text: str) -> None:
    """A line of the result, as it is."""
    out.file.write(text + "\n")


def stop(code: int, message: str | None = None) -> NoReturn:
    """End with this exit code."""
    if message:
        err.print(f"stokehold: {message}", style="red", markup=False)
    raise typer.Exit(code)


def reason(problem: OSError) -> str:
    """An operating system's error as people read it: the file, then what is wrong with it."""
    said = problem.strerror or str(problem)
    return f"{problem.filename}: {said}" if problem.filename is not None else said


def remedy(problem: errors.ConnectionFailed) -> str:
    """What to do when no answer came."""
    text = str(problem)
    if "CERTIFICATE" in text or "CA certificate" in text:
        return "The service's certificate is not trusted: STOKEHOLD_CA must name its ca.pem (`stokehold env` shows it)."
    if "No scheme supplied" in text or "Invalid URL" in text:
        return "STOKEHOLD_URL must be a URL, such as https://127.0.0.1:8443."
    return "Is a service running? Start one with `stokehold serve --detach`."


def code_of(error: errors.StokeholdError) -> int:
    """The exit code for a failure: wrong usage, no service, or a fault of the service's."""
    if isinstance(error, errors.ConnectionFailed):
        return NO_SERVICE
    if isinstance(error, errors.SettingsError):
        return USAGE
    if isinstance(error, errors.ApiError) and error.status < 500 and error.status != 429:
        return USAGE
    return OURS


@contextlib.contextmanager
def failures(fault: int | None = None) -> Iterator[None]:
    """Turn what the SDK raises into a message and an exit code (`fault`, if given, for all of them)."""
    try:
        yield
    except errors.ConnectionFailed as problem:
        stop(
            NO_SERVICE if fault is None else fault,
            f"{problem}\n  {remedy(problem)}",
        )
    except errors.StokeholdError as problem:
        request = f" (request {problem.request_id})" if problem.request_id else ""
        stop(code_of(problem) if fault is None else fault, f"{problem}{request}")


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Rows under a header, plain enough to be piped."""
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        shown.add_column(column, overflow="fold")
    for row in rows:
        shown.add_row(*(str(cell) for cell in row))
    out.print(shown)


def pairs(rows: Mapping[str, object]) -> None:
    """Names and values under each other."""
    shown = Table(box=None, show_header=False, pad_edge=False)
    shown.add_column(style="bold")
    shown.add_column(overflow="fold")
    for name, value in rows.items():
        shown.add_row(name, str(value))
    out.print(shown)


def milliseconds(ns: int) -> str:
    return f"{ns / 1e6:.1f} ms"


def size(count: int) -> str:
    """Bytes in the unit that reads best."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
