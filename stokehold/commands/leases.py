"""`lease`, `exec`, `cp`, `ps`, `rm`: holding sandboxes from a shell."""

from __future__ import annotations

import contextlib
import signal as signals
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from stokehold import errors, replies
from stokehold.client import Client, Lease
from stokehold.commands import shown

Id = Annotated[str, typer.Argument(metavar="ID", help="The lease.")]


def lease(
    command: Annotated[list[str] | None, typer.Argument(metavar="[-- CMD [ARG]...]", help="With --rm: what to run in it.")] = None,
    rm: Annotated[bool, typer.Option("--rm", help="Run CMD in it, then delete it.")] = False,
    job: Annotated[str | None, typer.Option(help="metadata.job, by which `rm --job` finds it.")] = None,
    memory_mb: Annotated[float | None, typer.Option(help="Memory.")] = None,
    disk_mb: Annotated[float | None, typer.Option(help="Disk.")] = None,
    cpu: Annotated[float | None, typer.Option(help="CPUs.")] = None,
    ttl_s: Annotated[float | None, typer.Option(help="Seconds until it ends (default 3600).")] = None,
    idle_s: Annotated[float | None, typer.Option(help="Seconds without activity until it ends (default: none).")] = None,
    state: shown.State = None,
    as_json: shown.Json = False,
) -> None:
    """Hold a sandbox: prints its id alone. `lease --rm -- CMD` runs one command in a new one."""
    if rm != bool(command):
        shown.stop(shown.USAGE, "lease --rm -- CMD needs both: --rm and a command")
    resources: dict[str, Any] = {
        "memory_mb": memory_mb,
        "cpu": cpu,
        "disk": None if disk_mb is None else {"mb": disk_mb},
    }
    fields: dict[str, Any] = {"ttl_s": ttl_s, "idle_s": idle_s, "metadata": {"job": job} if job else None}
    if any(value is not None for value in resources.values()):
        fields["resources"] = {name: value for name, value in resources.items() if value is not None}
    with shown.failures(shown.EXEC_FAULT if rm else None), Client(state=state) as client:
        held = client.lease(**fields)
        if rm:
            with held:
                code = follow(held, command or [])
            raise typer.Exit(code)
    if as_json:
        shown.give(held.info)
    else:
        shown.line(held.id)


def exec(
    lease_id: Id,
    command: Annotated[list[str], typer.Argument(metavar="-- CMD [ARG]...", help="The program and its arguments.")],
    timeout_s: Annotated[float | None, typer.Option(help="End it after so many seconds (exit code 124).")] = None,
    user: Annotated[str | None, typer.Option(help="As whom.")] = None,
    cwd: Annotated[str | None, typer.Option(help="Where.")] = None,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", metavar="NAME=VALUE", help="May be given several times.")] = None,
    interactive: Annotated[bool, typer.Option("--stdin", "-i", help="Give it this command's stdin.")] = False,
    state: shown.State = None,
    as_json: shown.Json = False,
) -> None:
    """Run a command in a lease and show its output as it comes. Exits with the command's code; 124: timeout; 125:
    our fault."""
    given = dict(item.partition("=")[::2] for item in env or [])
    fields: dict[str, Any] = {"user": user, "cwd": cwd, "env": given or None, "timeout_s": timeout_s}
    if interactive:
        fields["stdin"] = sys.stdin.buffer.read()
    with shown.failures(shown.EXEC_FAULT), Client(state=state) as client:
        held = Lease(client, replies.LeaseInfo(id=lease_id, state="running"))
        if as_json:
            reply = held.exec(command, **fields)
            shown.give(reply)
            raise typer.Exit(code_of(reply.status, reply.exit_code, reply.signal))
        raise typer.Exit(follow(held, command, **fields))


def follow(held: Lease, command: list[str], **fields: Any) -> int:
    """Run a command, copying its output as it comes; its exit code."""
    with contextlib.closing(held.stream(command, **fields)) as events:
        for event in events:
            if event.name in ("stdout", "stderr"):
                target = sys.stdout.buffer if event.name == "stdout" else sys.stderr.buffer
                target.write(event.bytes)
                target.flush()
            elif event.name == "dropped":
                lost = event.data
                shown.say(f"stokehold: {lost.get('stream')}: bytes {lost.get('from')} to {lost.get('to')} dropped")
            elif event.name == "exit":
                status = str(event.data.get("status", ""))
                if status == "File Error":
                    shown.say(f"stokehold: {event.data.get('error') or status}")
                return code_of(status, event.data.get("exit_code"), event.data.get("signal"))
    shown.say("stokehold: the stream ended before the command")
    return shown.EXEC_FAULT


def code_of(status: str, exit_code: int | None, signal: str | None) -> int:
    """The exit code that tells how a command went: its own, 128 + N for a signal, 124 at a timeout, 127 if it
    cannot be executed."""
    if status == "Time Limit Exceeded":
        return shown.EXEC_TIMEOUT
    if status == "File Error":
        return 127
    if exit_code is not None:
        return exit_code
    if signal is not None:
        with contextlib.suppress(KeyError):
            return 128 + signals.Signals[signal].value
        return 128
    return shown.EXEC_FAULT


def cp(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="FILE or ID:PATH")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="FILE or ID:PATH")],
    state: shown.State = None,
) -> None:
    """Copy a file into a lease or out of it: one of both is ID:PATH."""
    inward, outward = split(target), split(source)
    if (inward is None) == (outward is None):
        shown.stop(shown.USAGE, "one of SOURCE and TARGET must be ID:PATH, the other a local file")
    local = Path(source if inward else target)
    if inward and local.is_dir():
        shown.stop(shown.USAGE, f"{local}: a directory; cp copies one file")
    if outward and not local.is_dir() and not local.absolute().parent.is_dir():
        shown.stop(shown.USAGE, f"{local.parent}: no such directory")
    with shown.failures(), Client(state=state) as client:
        try:
            if inward:
                client.attach(inward[0]).upload(source, place(inward[1], local.name))
            elif outward:
                client.attach(outward[0]).download(outward[1], local / Path(outward[1]).name if local.is_dir() else local)
        except OSError as problem:
            shown.stop(shown.USAGE, shown.reason(problem))


def split(text: str) -> tuple[str, str] | None:
    """(lease, path) of ID:PATH, or None for a local file. A local file with a colon is written ./a:b."""
    lease_id, colon, path = text.partition(":")
    named = colon and 8 <= len(lease_id) <= 40 and lease_id.isascii() and lease_id.isalnum() and lease_id == lease_id.lower()
    return (lease_id, path) if named else None


def place(path: str, name: str) -> str:
    """Where a file called `name` goes: into the directory if `path` ends with a slash."""
    return f"{path}{name}" if path.endswith("/") else path or name


def ps(
    lease_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="A lease: list its processes instead.")] = None,
    job: Annotated[str | None, typer.Option(help="Only those with this metadata.job.")] = None,
    all_states: Annotated[bool, typer.Option("--all", "-a", help="Ended ones too.")] = False,
    state: shown.State = None,
    as_json: shown.Json = False,
) -> None:
    """List leases, or the processes of one."""
    with shown.failures(), Client(state=state) as client:
        if lease_id:
            found = [process.info for process in client.attach(lease_id).processes()]
            rows: list[tuple[object, ...]] = [
                (one.pid, one.state or one.status or "running", " ".join(one.argv or []) or one.tag or "") for one in found
            ]
            columns: tuple[str, ...] = ("pid", "state", "command")
        else:
            listed = list(client.list_leases(state=None if all_states else "running", metadata={"job": job} if job else None))
            rows = [(one.id, f"{one.state} ({one.ended.reason})" if one.ended else one.state, one.expires_at or "never") for one in listed]
            columns = ("lease", "state", "expires")
            if as_json:
                shown.give(listed)
                return
    if as_json:
        shown.give(found)
    else:
        shown.table(columns, rows)


def rm(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Leases.")] = None,
    job: Annotated[str | None, typer.Option(help="All leases with this metadata.job.")] = None,
    state: shown.State = None,
) -> None:
    """Delete leases."""
    if bool(ids) == bool(job):
        shown.stop(shown.USAGE, "give ids, or --job J")
    failed = False
    with shown.failures(), Client(state=state) as client:
        if job:
            client.delete_leases({"job": job})
        for one in ids or []:
            try:
                Lease(client, replies.LeaseInfo(id=one, state="running")).delete()
            except errors.NotFound as problem:
                shown.say(f"{one}: {problem.detail}")
                failed = True
    if failed:
        shown.stop(shown.OTHER)
