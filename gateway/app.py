"""The whole application on one screen: every route with the scope it needs, and the middleware in its order."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from gateway import replies
from gateway import requests as asks
from gateway.disconnect import Attended
from gateway.endpoint import Endpoint, unbuilt
from gateway.openapi import document
from gateway.problems import Problems
from gateway.routes_exec import ExecRoutes
from gateway.routes_files import FileRoutes
from gateway.routes_health import HealthRoutes
from gateway.routes_leases import LeaseRoutes
from gateway.routes_run import RunRoutes
from gateway.services import Services
from gateway.telemetry import Observed

LEASE = "/v1/leases/{id}"


def create_app(services: Services) -> ASGIApp:
    """The ASGI application over `services`."""
    run, leases = RunRoutes(services), LeaseRoutes(services)
    execs, files = ExecRoutes(services), FileRoutes(services)
    table = [
        Endpoint("POST", "/v1/run", run.run, "invoke", asks.RunAsk, replies.CallResult),
        Endpoint("GET", "/v1/languages", run.languages, "invoke", None, replies.LanguageList),
        Endpoint("POST", "/v1/leases", leases.create, "lease", asks.LeaseAsk, replies.LeaseObject, keyed=False),
        Endpoint("GET", "/v1/leases", leases.list, "lease:read", None, replies.LeasePage),
        Endpoint("DELETE", "/v1/leases", leases.delete_matching, "lease", None, replies.Deleted),
        Endpoint("GET", LEASE, leases.get, "lease:read", None, replies.LeaseObject),
        Endpoint("PATCH", LEASE, leases.patch, "lease", asks.LeasePatch, replies.LeaseObject),
        Endpoint("DELETE", LEASE, leases.delete, "lease", None, replies.LeaseObject),
        Endpoint("POST", f"{LEASE}/token", leases.token, "lease", None, replies.Token),
        Endpoint("POST", f"{LEASE}/exec", execs.exec, "lease", asks.ExecAsk, replies.RunObject, data=True, keyed=False),
        Endpoint("POST", f"{LEASE}/processes", execs.start, "lease", asks.ExecAsk, replies.ProcessObject, data=True, keyed=False),
        Endpoint("GET", f"{LEASE}/processes", execs.list, "lease:read", None, replies.ProcessList, data=True),
        Endpoint("GET", f"{LEASE}/processes/{{pid}}", execs.get, "lease:read", None, replies.ProcessObject, data=True),
        Endpoint("GET", f"{LEASE}/processes/{{pid}}/output", execs.output, "lease:read", None, replies.Output, data=True),
        Endpoint("POST", f"{LEASE}/processes/{{pid}}/stdin", execs.stdin, "lease", bytes, None, data=True),
        Endpoint("POST", f"{LEASE}/processes/{{pid}}/signal", execs.signal, "lease", asks.SignalAsk, None, data=True),
        Endpoint("POST", f"{LEASE}/processes/{{pid}}/wait", execs.wait, "lease", asks.WaitAsk, replies.RunObject, data=True, keyed=False),
        Endpoint("GET", f"{LEASE}/files", files.get, "lease:read", None, bytes, data=True),
        Endpoint("PUT", f"{LEASE}/files", files.put, "lease", bytes, replies.EntryObject, data=True),
        Endpoint("DELETE", f"{LEASE}/files", files.delete, "lease", None, None, data=True),
        Endpoint("GET", f"{LEASE}/stat", files.stat, "lease:read", None, replies.EntryObject, data=True),
        Endpoint("GET", f"{LEASE}/list", files.list, "lease:read", None, replies.EntryPage, data=True),
        Endpoint("POST", f"{LEASE}/move", files.move, "lease", asks.MoveAsk, replies.EntryObject, data=True),
        Endpoint("POST", f"{LEASE}/mkdir", files.mkdir, "lease", asks.MkdirAsk, replies.EntryObject, data=True),
        Endpoint("POST", f"{LEASE}/chmod", files.chmod, "lease", asks.ChmodAsk, replies.EntryObject, data=True),
        Endpoint("GET", f"{LEASE}/archive", files.archive, "lease:read", None, bytes, data=True),
        Endpoint("PUT", f"{LEASE}/archive", files.extract, "lease", bytes, None, data=True),
    ]
    health = HealthRoutes(services, lambda: document(table))
    table += [
        Endpoint("GET", "/healthz", health.healthz),
        Endpoint("GET", "/readyz", health.readyz),
        Endpoint("GET", "/metrics", health.metrics),
        Endpoint("GET", "/openapi.json", health.openapi),
    ]
    absent = unbuilt(
        {
            "/v1/run:batch": "send the calls one by one to /v1/run",
            "/v1/calls/{call}": "wait for the answer of /v1/run",
            "/v1/blobs:missing": "give bytes as text or base64",
            "/v1/blobs/{name}": "give bytes as text or base64",
            "/v1/functions": "use /v1/run",
            "/v1/functions/{rest:path}": "use /v1/run",
            "/v1/leases:batch": "create with count, or one by one",
            "/v1/leases:pause": "leases cannot be paused",
            "/v1/leases:resume": "leases cannot be paused",
            "/v1/leases/events": "poll GET /v1/leases",
            "/v1/quota": "quotas are answered by 429",
            f"{LEASE}/metrics": "see /metrics",
            f"{LEASE}/shells": "use exec, or a process with stdin",
            f"{LEASE}/shells/{{rest:path}}": "use exec, or a process with stdin",
            f"{LEASE}/pty": "use a process with stdin",
            f"{LEASE}/watch": "poll list",
            f"{LEASE}/ports/{{rest:path}}": "use exec",
            f"{LEASE}/pause": "leases cannot be paused",
            f"{LEASE}/resume": "leases cannot be paused",
            f"{LEASE}/snapshot": "use archive",
            f"{LEASE}/fork": "create another lease and use archive",
            f"{LEASE}/network": "leases have no network but lo",
            f"{LEASE}/display": "there are no displays",
            f"{LEASE}/display/{{rest:path}}": "there are no displays",
            f"{LEASE}/console": "there are no consoles",
            f"{LEASE}/log": "use the results of exec",
            "/v1/layers": "there is base host alone",
            "/v1/layers/{rest:path}": "there is base host alone",
            "/v1/pools": "see /metrics",
            "/v1/pools/{name}": "set pools in the settings file",
            "/v1/nodes": "there is one node",
            "/v1/nodes/{name}": "there is one node",
            "/ui": "there is no user interface",
        }
    )
    app = Starlette(
        routes=[*absent, *(endpoint.route(services) for endpoint in table)],
        middleware=[Middleware(Observed, metrics=services.metrics), Middleware(Problems, metrics=services.metrics), Middleware(Attended)],
        exception_handlers={HTTPException: _raised},
    )
    app.router.redirect_slashes = False  # a path that is none is 404, not a redirect
    return app


async def _raised(request: Request, error: Exception) -> Response:
    """What the router refuses (404, 405) becomes a problem like everything else."""
    raise error
