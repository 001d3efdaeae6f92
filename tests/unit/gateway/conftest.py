"""The application over the fake backend, and a client that speaks ASGI to it without a socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from gateway.app import create_app
from gateway.compose import composed
from gateway.problems import Broken
from gateway.services import Services
from gateway.settings import Settings
from runtimes.fake import FakeBackend, FakeHost
from runtimes.languages import Languages
from warmpool.settings import Settings as PoolSettings

SCOPES = {"invoke", "lease", "lease:read"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Answer(msgspec.Struct):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines() if line.strip()]

    def events(self) -> list[tuple[str, Any, str | None]]:
        """(name, data, id) of server-sent events; comments are left out."""
        found = []
        for block in self.body.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if fields:
                found.append((fields["event"], json.loads(fields["data"]), fields.get("id")))
        return found


class Exchange:
    """One request that is going on: its body is fed, its answer grows, its client may leave."""

    def __init__(self, app: Any, scope: dict[str, Any], parts: list[bytes], whole: bool) -> None:
        self.inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.finished = False
        self.changed = asyncio.Event()
        for number, part in enumerate(parts):
            self.inbox.put_nowait({"type": "http.request", "body": part, "more_body": not whole or number < len(parts) - 1})
        self.task = asyncio.create_task(self._run(app, scope))

    async def _run(self, app: Any, scope: dict[str, Any]) -> None:
        await app(scope, self.inbox.get, self._send)

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")
            self.finished = not message.get("more_body", False)
        self.changed.set()

    async def until(self, true: Callable[[Exchange], bool]) -> None:
        """Wait until the answer has grown to where `true` holds."""
        async with asyncio.timeout(10):
            while not true(self):
                self.changed.clear()
                await self.changed.wait()

    def leave(self) -> None:
        self.inbox.put_nowait({"type": "http.disconnect"})

    async def broken(self) -> None:
        """Wait for the end of a request that is broken off."""
        with pytest.raises(Broken):
            async with asyncio.timeout(20):
                await self.task

    async def answer(self) -> Answer:
        async with asyncio.timeout(20):
            await self.task
        assert self.finished, "the answer broke off"
        return Answer(self.status, self.headers, bytes(self.body))


class Client:
    """Speaks to an ASGI application as one tenant."""

    def __init__(self, app: Any, token: str) -> None:
        self.app = app
        self.token = token

    def open(
        self,
        method: str,
        url: str,
        *,
        json_: Any = None,
        body: bytes | list[bytes] | None = None,
        whole: bool = True,
        headers: dict[str, str] | None = None,
    ) -> Exchange:
        parts = urlsplit(url)
        pieces = body if isinstance(body, list) else [body if body is not None else b"" if json_ is None else json.dumps(json_).encode()]
        sent = {"content-type": "application/json", "authorization": f"Bearer {self.token}", **(headers or {})}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": parts.path,
            "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(),
            "root_path": "",
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "extensions": {},
            "state": {},
            "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items() if value],
        }
        return Exchange(self.app, scope, pieces, whole)

    async def __call__(self, method: str, url: str, json_: Any = None, **more: Any) -> Answer:
        return await self.open(method, url, json_=json_, **more).answer()

    async def lease(self, **fields: Any) -> str:
        made = await self("POST", "/v1/leases", {"kind": "fake", **fields})
        assert made.status == 201, made.body
        return str(made.json()["id"])


class Stage(msgspec.Struct):
    """An application, its services, and what its sandboxes live on."""

    app: Any
    services: Services
    host: FakeHost

    def client(self, tenant: str = "default", scopes: set[str] = SCOPES) -> Client:
        return Client(self.app, self.services.auth.mint(tenant, scopes, 3600))


@contextlib.asynccontextmanager
async def staged(folder: Path, host: FakeHost | None = None, **changes: Any) -> AsyncIterator[Stage]:
    """A whole gateway without sockets. `changes` are of its settings."""
    host = host or FakeHost()
    settings = Settings(**{"state": folder, "backend": "fake", "listen": "127.0.0.1:0", "warmpool": PoolSettings(pools=()), **changes})
    async with composed(settings, FakeBackend(host), Languages({})) as services:
        yield Stage(create_app(services), services, host)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path) as stage:
        yield stage


@pytest.fixture
def make_stage() -> Any:
    """`staged`, for tests that need other settings or a second life."""
    return staged


@pytest.fixture
def client(stage: Stage) -> Client:
    return stage.client()
