"""The `stokehold` command: puts the commands together. Each lives in `stokehold.commands`."""

from __future__ import annotations

import os
import sys

import typer

from stokehold.commands import bench, demo, leases, run, service
from stokehold.version import __version__

app = typer.Typer(
    name="stokehold",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Verdicts and sandbox leases from a warm pool.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

for _command in (
    service.serve,
    service.stop,
    service.status,
    service.env,
    run.run,
    leases.lease,
    leases.cp,
    leases.ps,
    leases.rm,
    service.token,
    service.doctor,
    demo.demo,
):
    app.command()(_command)
app.command(context_settings={"ignore_unknown_options": True})(leases.exec)
app.add_typer(bench.app, name="bench", help="Measure a running service beside its floor.")


@app.callback(invoke_without_command=True)
def _options(context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


def main() -> None:
    """The console script."""
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(141)
