"""`serve`, `stop`, `status`, `env`, `token`, `doctor`: the service on this machine."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from stokehold import settings
from stokehold.commands import shown
from stokehold.service.places import places

Tenant = Annotated[str, typer.Option(help="The tenant that the token speaks for.")]


def serve(
    detach: Annotated[bool, typer.Option("--detach", help="Return once the service is ready.")] = False,
    state: shown.State = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="HTTP/1.1, 2 (TCP) and 3 (UDP), with TLS.")] = "127.0.0.1:8443",
    http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Plain HTTP/1.1 and h2c, behind an ingress.")] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings of the gateway (TOML).")] = None,
) -> None:
    """Serve on this machine until told to stop."""
    from stokehold.service import privilege
    from stokehold.service import serve as service
    from stokehold.service.programs import CannotServe
    from stokehold.service.supervisor import Failed

    try:
        privilege.require_root(sys.argv[1:])
        service.serve(places(state), service.Ask(listen=listen, http=http, config=config, detach=detach), shown.say)
    except (privilege.NotRoot, CannotServe, Failed) as problem:
        shown.stop(shown.OURS, str(problem))
    except OSError as problem:
        shown.stop(shown.OURS, shown.reason(problem))


def stop(state: shown.State = None, as_json: shown.Json = False) -> None:
    """End the service and everything that it holds; look that nothing is left."""
    from stokehold.service import privilege
    from stokehold.service import stop as ending

    try:
        privilege.require_root(sys.argv[1:])
    except privilege.NotRoot as problem:
        shown.stop(shown.OURS, str(problem))
    left = ending.stop(places(state), shown.say)
    if as_json:
        shown.give({"resources": left})
    if left.any():
        shown.stop(shown.OURS, f"still there: {msgspec.to_builtins(left)}")


def status(state: shown.State = None, as_json: shown.Json = False) -> None:
    """What runs, and what of ours exists on this host."""
    from stokehold.service.status import look

    found = look(places(state))
    if as_json:
        shown.give(found)
        return
    running = found.gateway.pid is not None
    shown.pairs(
        {
            "gateway": f"{found.gateway.url} (pid {found.gateway.pid}, version {found.gateway.version})" if running else "not running",
            "spawner": f"pid {found.spawner.pid}" if found.spawner.pid else "not running",
            "sandboxes": ", ".join(f"{count} {name}" for name, count in found.sandboxes.items()) or "none",
            "resources": ", ".join(f"{count} {name}" for name, count in msgspec.to_builtins(found.resources).items()),
        }
    )
    if os.geteuid():
        shown.say("only what this user may see is counted; as root, everything is")


def env(state: shown.State = None) -> None:
    """Settings for other clients: eval "$(stokehold env)"."""
    with shown.failures():
        found = settings.load(state=state)
    if not found.token:
        shown.say("stokehold: no token: no service has left its settings for this user")
    named = {"STOKEHOLD_URL": found.url, "STOKEHOLD_TOKEN": found.token, "STOKEHOLD_CA": found.ca}
    for name, value in named.items():
        if value:
            shown.line(f"export {name}={shlex.quote(value)}")


def token(
    tenant: Tenant = "default",
    scope: Annotated[list[str] | None, typer.Option(help="May be given several times (default: all).")] = None,
    ttl_s: Annotated[int, typer.Option(help="Seconds until it expires.")] = 86_400,
    state: shown.State = None,
) -> None:
    """Mint a token with this machine's secret (as root)."""
    from stokehold.service import tokens

    where = places(state)
    try:
        shown.line(tokens.mint(where.secret, tenant=tenant, scopes=scope or tokens.SCOPES, ttl_s=ttl_s))
    except ValueError as problem:
        shown.stop(shown.USAGE, str(problem))
    except OSError as problem:
        remedy = "the service makes it at its first start" if os.geteuid() == 0 else "only root reads it: sudo stokehold token"
        shown.stop(shown.USAGE, f"{where.secret}: {problem.strerror}; {remedy}")


def doctor(as_json: shown.Json = False) -> None:
    """What this host lacks, the command that fixes it, and how many leases its limits allow."""
    from stokehold.service import doctor as diagnosis

    report = diagnosis.examine()
    if as_json:
        shown.give(report)
    else:
        for need in report.needs:
            shown.line(f"{'ok' if need.met else 'MISSING':9}{need.name}: {need.found}")
            if not need.met:
                shown.line(f"         remedy: {need.remedy}")
        for limit in report.limits:
            allowed = "no bound" if limit.leases is None else f"{limit.leases} leases"
            shown.line(f"{'limit':9}{limit.name}: {limit.value}, allows {allowed}")
            if limit.remedy:
                shown.line(f"         raise: {limit.remedy}")
        shown.line(f"{'sum':9}this host's limits allow {report.leases} leases at once")
    raise typer.Exit(shown.OK if report.ok else shown.OTHER)
