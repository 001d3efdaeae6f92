"""Commands and background processes of a lease. HTTP on one side, `Execs` and `Processes` on the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway import codec
from gateway.body import chunks
from gateway.commands import digest_of, signal_number
from gateway.errors import BadRequest, WrongState, tell
from gateway.execs import held
from gateway.feed import KEEP_ALIVE, NAMES, event, offsets_after, output_events
from gateway.idempotency import Answer, key_of
from gateway.processes import PREFIX, glance
from gateway.requests import ExecAsk, OutputQuery, SignalAsk, StdinQuery, WaitAsk
from gateway.schema import convert
from gateway.services import Services
from gateway.stream import Stream, kept_alive
from runtimes.backend import NoSuchProcess, Process, Sandbox
from runtimes.backend import Stream as StreamNumber
from runtimes.values import encode, whole_end

GLANCE_S = 0.1
"""How long a read without `follow` waits for bytes that may be there."""
_NUMBERS: dict[str, StreamNumber] = {name: number for number, name in NAMES.items()}


def sse(request: Request, pieces: AsyncIterator[bytes]) -> Stream:
    """Server-sent events: kept alive, and a `problem` event at the end if something fails."""
    request_id = request.scope["request_id"]
    return Stream(
        kept_alive(pieces, KEEP_ALIVE),
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        media_type=codec.EVENTS,
        on_error=lambda error: event("problem", tell(error, request_id).body),
    )


class ExecRoutes:
    """Endpoints below `/v1/leases/{id}`."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.leases = services.leases
        self.execs = services.execs
        self.known = services.processes
        self._limit = services.settings.bodies.request_mb << 20

    @staticmethod
    def _whose(request: Request) -> tuple[str, str]:
        return request.scope["caller"].tenant, request.path_params["id"]

    async def exec(self, request: Request) -> Response:
        """`POST …/exec`: the run object, or events as they happen."""
        tenant, id = self._whose(request)
        self.leases.get(tenant, id)
        ask, body = await codec.read(request, ExecAsk, self._limit)
        key = key_of(request.headers.get("idempotency-key"))
        if codec.accepts(request, codec.EVENTS):
            offsets = offsets_after(request.headers.get("last-event-id"))
            return sse(request, self.execs.events(tenant, id, ask, key, body, offsets))
        return codec.reply(request, await self.execs.run(tenant, id, ask, key, body))

    async def start(self, request: Request) -> Response:
        """`POST …/processes`: 201 with the process."""
        tenant, id = self._whose(request)
        ask, body = await codec.read(request, ExecAsk, self._limit)
        key = key_of(request.headers.get("idempotency-key"))
        command = self.execs.command(tenant, self.leases.get(tenant, id), ask, key, prefix=PREFIX, interactive=True)

        async def work() -> Answer:
            async with held(self.leases, tenant, id) as sandbox:
                await self.known.trim(sandbox, id)
                process = await self.execs.start(sandbox, command)
                await process.started()
                argv = [text if isinstance(text, str) else text.decode(errors="replace") for text in command.argv]
                self.known.add(id, command.id, argv, ask.tag)
                self.known.watch(self.leases.hold(tenant, id), process)
                return Answer(201, codec.JSON, msgspec.json.encode(await self.known.show(id, process)))

        if key is None:
            answer = await work()
        else:
            answer, _ = await self.services.once.once(
                (tenant, f"processes {id}", key), digest_of(body), work, keep_working=True, claim=True
            )
        return codec.reply(request, msgspec.json.decode(answer.body), answer.status)

    async def list(self, request: Request) -> Response:
        """`GET …/processes`: background processes, running and ended."""
        tenant, id = self._whose(request)
        async with held(self.leases, tenant, id) as sandbox:
            shown = [await self.known.show(id, process) for process in await self.known.list(sandbox, id)]
        return codec.reply(request, {"processes": shown, "next": None})

    @contextlib.asynccontextmanager
    async def _process(self, request: Request) -> AsyncIterator[tuple[Sandbox, Process]]:
        tenant, id = self._whose(request)
        async with held(self.leases, tenant, id) as sandbox:
            yield sandbox, await self.known.find(sandbox, id, request.path_params["pid"])

    async def get(self, request: Request) -> Response:
        """`GET …/processes/{pid}`."""
        async with self._process(request) as (_, process):
            return codec.reply(request, await self.known.show(request.path_params["id"], process))

    async def output(self, request: Request) -> Response:
        """`GET …/processes/{pid}/output`: a piece as JSON or octets; with `follow` or as an event stream, until it ends."""
        query = convert(dict(request.query_params), OutputQuery)
        octets = codec.accepts(request, codec.OCTETS)
        async with contextlib.AsyncExitStack() as stack:
            _, process = await stack.enter_async_context(self._process(request))
            if codec.accepts(request, codec.EVENTS) or (query.follow and not octets):
                offsets = offsets_after(request.headers.get("last-event-id"))
                if not any(offsets.values()):
                    offsets = dict.fromkeys(offsets, query.offset)
                streams: tuple[StreamNumber, ...] = (_NUMBERS[query.stream],) if query.stream else (1, 2)
                following = self._follow(request, process, offsets, streams)
                answer = sse(request, self._while_held(request, following))
                answer.closing = stack.pop_all()
                return answer
            number = _NUMBERS[query.stream or "stdout"]
            if query.follow:
                growing = self._while_held(request, _octets(process, number, query.offset))
                return Stream(growing, media_type=codec.OCTETS, closing=stack.pop_all())
            data, offset, end = await _piece(process, number, query)
        if octets:
            headers = {"Stokehold-Offset": str(offset), "Stokehold-Next-Offset": str(offset + len(data)), "Stokehold-End": str(end).lower()}
            return Response(data, 200, headers, media_type=codec.OCTETS)
        ready = data if end else whole_end(data) or data
        value = encode(ready)
        shown = {"text": value} if isinstance(value, str) else {"base64": value.base64}
        return codec.reply(request, {"stream": NAMES[number], "offset": offset, **shown, "next_offset": offset + len(ready), "end": end})

    async def _while_held(self, request: Request, pieces: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
        """`pieces`; a lease that ends meanwhile ends them with its own reason."""
        async with held(self.leases, *self._whose(request)), contextlib.aclosing(pieces):
            async for piece in pieces:
                yield piece

    async def _follow(
        self, request: Request, process: Process, offsets: dict[StreamNumber, int], streams: tuple[StreamNumber, ...]
    ) -> AsyncGenerator[bytes, None]:
        yield event("start", {"id": process.id, "pid": process.pid})
        async for piece in output_events(process, offsets, streams):
            yield piece
        run = self.known.result(request.path_params["id"], process, await process.wait())
        built: dict[str, Any] = msgspec.to_builtins(run)
        yield event("exit", {name: value for name, value in built.items() if name not in ("stdout", "stderr")})

    async def stdin(self, request: Request) -> Response:
        """`POST …/processes/{pid}/stdin`: the body is fed to it, as fast as it reads."""
        query = convert(dict(request.query_params), StdinQuery)
        async with self._process(request) as (_, process):
            try:
                async for data in chunks(request):
                    await process.write(data)
                if query.close:
                    await process.write(None)
            except (BrokenPipeError, NoSuchProcess):
                raise WrongState("its standard input is closed") from None
        return Response(None, 204)

    async def signal(self, request: Request) -> Response:
        """`POST …/processes/{pid}/signal`."""
        ask, _ = await codec.read(request, SignalAsk, 1 << 16)
        number = signal_number(ask.signal)
        async with self._process(request) as (_, process):
            if await glance(process) is not None:
                raise WrongState("the process has ended")
            await process.signal(number)
        return Response(None, 204)

    async def wait(self, request: Request) -> Response:
        """`POST …/processes/{pid}/wait`: the run object; the process as it is if `timeout_ms` passed first."""
        ask, _ = await codec.read(request, WaitAsk, 1 << 16)
        if ask.timeout_ms is not None and ask.timeout_ms > self.services.settings.maximum.timeout_ms:
            raise BadRequest("above this node's maximum", field="/timeout_ms")
        async with self._process(request) as (_, process):
            outcome = await process.wait() if ask.timeout_ms is None else await glance(process, ask.timeout_ms / 1000)
            if outcome is None:
                return codec.reply(request, await self.known.show(request.path_params["id"], process))
            return codec.reply(request, self.known.result(request.path_params["id"], process, outcome))


async def _piece(process: Process, number: StreamNumber, query: OutputQuery) -> tuple[bytes, int, bool]:
    """What is there at or after the offset (data, its offset, whether nothing follows), without waiting for more."""
    reading = asyncio.ensure_future(process.read(number, query.offset, query.limit))
    await asyncio.wait({reading}, timeout=GLANCE_S)
    if not reading.done():
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        return b"", query.offset, await glance(process) is not None
    chunk = reading.result()
    return chunk.data, chunk.offset, chunk.end


async def _octets(process: Process, number: StreamNumber, offset: int) -> AsyncGenerator[bytes, None]:
    """The stream as it grows; what was dropped is simply not there."""
    while True:
        chunk = await process.read(number, offset, 64 << 10)
        if chunk.data:
            yield chunk.data
        if chunk.end:
            await glance(process)  # raises if it ended because the sandbox is gone
            return
        offset = chunk.offset + len(chunk.data)
