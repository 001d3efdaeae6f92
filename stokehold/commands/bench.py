"""`stokehold bench`: figures of a running service, each beside its floor."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer

from stokehold.commands import shown
from stokehold.service.places import places

app = typer.Typer(no_args_is_help=True)


@app.command()
def floor(
    seconds: Annotated[float, typer.Option(help="How long.")] = 5.0,
    workers: Annotated[int, typer.Option(help="Processes that make sandboxes at once.")] = 16,
    state: shown.State = None,
    as_json: shown.Json = False,
) -> None:
    """How many sandboxes a second the kernel makes and destroys: the spawner's own plan, by C alone (as root)."""
    from stokehold.bench import floor as measuring
    from stokehold.service import privilege
    from stokehold.service.programs import CannotServe

    try:
        privilege.require_root(sys.argv[1:])
        found = measuring.measure(places(state), seconds=seconds, workers=workers)
    except (privilege.NotRoot, CannotServe, measuring.FloorFailed) as problem:
        shown.stop(shown.OURS, str(problem))
    _show(found, as_json)


@app.command("run")
def bench_run(
    seconds: Annotated[float, typer.Option(help="How long.")] = 10.0,
    http: Annotated[int, typer.Option(help="1, 2 or 3.")] = 1,
    connections: Annotated[int, typer.Option(help="Requests at once.")] = 16,
    state: shown.State = None,
    as_json: shown.Json = False,
) -> None:
    """How many calls a second the service judges, beside the ceiling that its own parts set (as root, on its
    machine)."""
    from stokehold.bench import floor as measuring
    from stokehold.bench import run as running
    from stokehold.service import privilege
    from stokehold.service.programs import CannotServe

    if http not in (1, 2, 3):
        shown.stop(shown.USAGE, "--http: 1, 2 or 3")
    try:
        privilege.require_root(sys.argv[1:])
        with shown.failures():
            found = running.measure(places(state), seconds=seconds, http=http, connections=connections)
    except (privilege.NotRoot, CannotServe, measuring.FloorFailed, running.NotMeasurable) as problem:
        shown.stop(shown.OURS, str(problem))
    _show(found, as_json)


def _show(found: msgspec.Struct, as_json: bool) -> None:
    if as_json:
        shown.give(found)
    else:
        shown.pairs({name: f"{value:.4g}" if isinstance(value, float) else value for name, value in msgspec.structs.asdict(found).items()})
