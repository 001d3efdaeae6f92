"""`stokehold run FILE`: judge one program, against its input or a directory of tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from stokehold import replies
from stokehold.client import Client
from stokehold.commands import shown

EXTENSIONS = {
    ".c": "c",
    ".cpp": "cpp",
    ".cc": "cpp",
    ".cxx": "cpp",
    ".c++": "cpp",
    ".py": "python",
    ".js": "node",
    ".mjs": "node",
    ".cjs": "node",
    ".java": "java",
    ".go": "go",
    ".rs": "rust",
    ".sh": "bash",
    ".bash": "bash",
}


def language_of(file: Path) -> str | None:
    """The language that a file's name says, or None."""
    return EXTENSIONS.get(file.suffix.lower())


def tests_in(folder: Path) -> list[dict[str, Any]]:
    """Tests of a directory in natural order: NAME.in with NAME.ans (or NAME.out); without an answer it only runs."""

    def order(path: Path) -> tuple[bool, int, str]:
        return (not path.stem.isdigit(), int(path.stem) if path.stem.isdigit() else 0, path.stem)

    tests = []
    for given in sorted(folder.glob("*.in"), key=order):
        test: dict[str, Any] = {"name": given.stem, "stdin": given.read_bytes()}
        answer = next((given.with_suffix(ending) for ending in (".ans", ".out") if given.with_suffix(ending).exists()), None)
        if answer:
            test["expected"] = answer.read_bytes()
        tests.append(test)
    return tests


def run(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The program's source.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARG]...", help="The program's arguments.")] = None,
    language: Annotated[str | None, typer.Option("--language", "-l", help="Default: by the file's extension.")] = None,
    tests: Annotated[Path | None, typer.Option("--tests", exists=True, file_okay=False, metavar="DIR", help="1.in, 1.ans, 2.in, …")] = None,
    checker: Annotated[str | None, typer.Option(help="exact, lines, tokens or floats:E.")] = None,
    cpu_ms: Annotated[float | None, typer.Option(help="CPU time limit.")] = None,
    memory_mb: Annotated[float | None, typer.Option(help="Memory limit.")] = None,
    flag: Annotated[list[str] | None, typer.Option(help="A compiler flag; may be given several times.")] = None,
    state: shown.State = None,
    as_json: shown.Json = False,
) -> None:
    """Run a program: `stokehold run a.cpp < in.txt`, or with --tests. Exits 0 if it was Accepted."""
    chosen = language or language_of(file)
    if chosen is None:
        shown.stop(shown.USAGE, f"{file}: which language? Say --language; known endings: {' '.join(EXTENSIONS)}")
    fields: dict[str, Any] = {
        "args": arguments or None,
        "checker": checker,
        "compile": {"flags": flag} if flag else None,
    }
    limits = {name: value for name, value in (("cpu_ms", cpu_ms), ("memory_mb", memory_mb)) if value is not None}
    fields["limits"] = limits or None
    if tests:
        fields["tests"] = tests_in(tests)
        if not fields["tests"]:
            shown.stop(shown.USAGE, f"{tests}: no *.in there")
    elif not sys.stdin.isatty():
        fields["stdin"] = sys.stdin.buffer.read()
    try:
        source = file.read_bytes().decode()
    except UnicodeDecodeError as problem:
        shown.stop(shown.USAGE, f"{file}: not UTF-8 text (byte {problem.start})")
    with shown.failures(), Client(state=state) as client:
        reply = client.run(language=chosen, source=source, **fields)
    if as_json:
        shown.give(reply)
    else:
        show(reply, many=tests is not None)
    raise typer.Exit(shown.OK if reply.ok else shown.OTHER)


def show(reply: replies.RunReply, *, many: bool) -> None:
    """A verdict for people: the program's output on stdout, the rest on stderr."""
    if reply.compile and reply.compile.stderr:
        shown.say(replies.value_bytes(reply.compile.stderr).decode(errors="replace").rstrip())
    if many:
        shown.table(
            ("test", "verdict", "cpu", "wall", "memory"),
            [
                (
                    one.name,
                    verdict(one),
                    shown.milliseconds(one.cpu_ns),
                    shown.milliseconds(one.wall_ns),
                    shown.size(one.memory_bytes),
                )
                for one in reply.runs
            ],
        )
        shown.say(reply.status)
        return
    for one in reply.runs:
        sys.stdout.buffer.write(one.out)
        sys.stdout.buffer.flush()
        sys.stderr.buffer.write(one.err)
        sys.stderr.buffer.flush()
        shown.say(
            f"{verdict(one)}: {shown.milliseconds(one.cpu_ns)} CPU, {shown.milliseconds(one.wall_ns)} wall, {shown.size(one.memory_bytes)}"
        )
    if not reply.runs:
        shown.say(reply.status)


def verdict(one: replies.Stage) -> str:
    """The status with what decided it."""
    why = one.limit or one.signal or one.error or (json.dumps(one.exit_code) if one.exit_code else "")
    return f"{one.status} ({why})" if why else one.status
