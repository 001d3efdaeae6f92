"""One gateway's connection to the spawner: requests out, replies and events in, and coming back after a restart.

Everything that is queued in one turn of the loop travels in as few packets as possible. Knows frames; what an operation
means is for `backend.py`. Requests that the connection's end left unanswered are sent again where that is harmless.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import iter_unpack

from runtimes.backend import BackendError
from runtimes.native.request import Again, Refused, Reply, Request, Unreachable, code_of, detail_of, retrieved
from runtimes.native.wire import (
    F_MEMFD,
    FDS_MAX,
    FRAME_HEADER,
    INLINE_MAX,
    PACKET_HEADER,
    PACKET_MAX,
    VERSION,
    Frame,
    Op,
    ProtocolError,
    T,
    fields,
    frame,
    number,
    packet,
    sealed,
    split,
    u32,
    u64,
)

_ANCILLARY = socket.CMSG_SPACE(253 * 4)
_SEND_ROOM = 4 << 20
_CUT = int(socket.MSG_TRUNC) | int(socket.MSG_CTRUNC)


class Client:
    """A connection that keeps coming back.

    `on_event(frame)` gets every event in order. `on_connected(instance, same)` is called after each greeting, before
    anything queued is sent: `same` is false if another spawner than before answered. `on_fenced()` is called once if a
    newer gateway has taken over; nothing works afterwards."""

    def __init__(self, path: str | Path, *, on_event: Callable[[Frame], None],
                 on_connected: Callable[[int, bool], None], on_fenced: Callable[[], None] = lambda: None,
                 epoch: int | None = None, patience_s: float = 10.0) -> None:
        self.path = str(path)
        self.epoch = time.clock_gettime_ns(time.CLOCK_BOOTTIME) if epoch is None else epoch
        self.instance: int | None = None
        self.pid: int | None = None
        self._on_event = on_event
        self._on_connected = on_connected
        self._on_fenced = on_fenced
        self._patience_s = patience_s
        self._socket: socket.socket | None = None
        self._greeted = False
        self._connector: asyncio.Task[None] | None = None
        self._ended: BackendError | None = None
        self._hopeless = False
        self._seq = 0
        self._waiting: dict[int, Request] = {}
        self._queue: deque[Request] = deque()
        self._flush_soon = False
        self._writing = False
        self._buffer = bytearray(PACKET_MAX)

    # -- requests -----------------------------------------------------------------------------------------------------

    def request(self, op: int, payload: bytes = b"", fds: Sequence[int] = (), *, again: Again = "same",
                tell: Callable[[Frame], None] | None = None) -> asyncio.Future[Reply]:
        """Queue one request; its future gets the Reply, Refused or Unreachable. `fds` are taken over, whatever happens.
        `tell` gets the events that carry this request's number."""
        return self.numbered(op, payload, fds, again=again, tell=tell)[1]

    def numbered(self, op: int, payload: bytes = b"", fds: Sequence[int] = (), *, again: Again = "same",
                 tell: Callable[[Frame], None] | None = None) -> tuple[int, asyncio.Future[Reply]]:
        """As `request`, with the number that it travels under."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        future.add_done_callback(retrieved)
        self._seq += 1
        flags = 0
        owned = list(fds)
        if len(payload) > INLINE_MAX:
            try:
                owned.insert(0, sealed(payload))
            except OSError:
                for fd in owned:
                    os.close(fd)
                raise
            payload, flags = b"", F_MEMFD
        request = Request(op, self._seq, payload, owned, flags, again, future, tell)
        if self._ended is not None or self._hopeless:
            request.close()
            future.set_exception(self._ended or Unreachable(f"no spawner at {self.path}"))
        else:
            self._waiting[request.seq] = request
            self._queue.append(request)
            self._schedule()
        if self._socket is None:
            self._connect_soon()
        return request.seq, future

    async def ask(self, op: int, payload: bytes = b"", *, again: Again = "same") -> Reply:
        """As `request`, awaited. Its descriptors are the caller's, or closed if the caller is cancelled meanwhile."""
        future = self.request(op, payload, again=again)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                for fd in future.result().fds:
                    os.close(fd)
            raise

    async def aclose(self) -> None:
        """Send what is queued, as far as the socket takes it, and close; everything unanswered gets Unreachable."""
        self._flush()
        self._end(Unreachable("the backend was closed"))
        if self._connector is not None:
            self._connector.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._connector

    @property
    def connected(self) -> bool:
        return self._greeted

    # -- sending ------------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if self._greeted and not self._flush_soon and not self._writing:
            self._flush_soon = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_soon = False
        while self._queue and self._greeted and self._socket is not None:
            frames: list[bytes] = []
            fds: list[int] = []
            size = PACKET_HEADER
            taken: list[Request] = []
            while self._queue:
                request = self._queue[0]
                if request.future.cancelled() and request.op == Op.FILE:
                    self._drop(self._queue.popleft())  # nobody holds the other end of its pipe any more
                    continue
                need = FRAME_HEADER + len(request.payload)
                if taken and (size + need > PACKET_MAX or len(fds) + len(request.fds) > FDS_MAX):
                    break
                frames.append(frame(request.op, request.seq, request.payload, len(request.fds), request.flags))
                fds.extend(request.fds)
                size += need
                taken.append(self._queue.popleft())
            if not taken:
                return
            if not self._send(packet(frames), fds):
                self._queue.extendleft(reversed(taken))
                return
            for request in taken:
                if request.again == "never":
                    request.close()

    def _send(self, data: bytes, fds: list[int]) -> bool:
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        try:
            if fds:
                socket.send_fds(self._socket, [data], fds)
            else:
                self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            if not self._writing:
                self._writing = True
                loop.add_writer(self._socket.fileno(), self._writable)
            return False
        except OSError as error:
            if error.errno in (errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM):  # descriptors in flight: soon taken
                self._flush_soon = True
                loop.call_later(0.002, self._flush)
            else:
                self._disconnected()
            return False
        return True

    def _writable(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_writer(self._socket.fileno())
        self._writing = False
        self._flush()

    def _drop(self, request: Request) -> None:
        self._waiting.pop(request.seq, None)
        request.close()

    # -- receiving ----------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        for _ in range(32):
            if self._socket is None:
                return
            try:
                size, ancillary, flags, _ = self._socket.recvmsg_into(
                    [self._buffer], _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._disconnected()
                return
            fds = [fd for level, kind, data in ancillary if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
                   for (fd,) in iter_unpack("i", data[: len(data) // 4 * 4])]
            if size == 0:
                self._disconnected()
                return
            try:
                if flags & _CUT:
                    raise ProtocolError("a packet was cut")
                frames = split(bytes(memoryview(self._buffer)[:size]), fds)
                for received in frames:
                    del fds[: len(received.fds)]  # the taker's now
                    self._take(received)
            except ProtocolError:
                for fd in fds:
                    os.close(fd)
                self._disconnected()
                return

    def _take(self, received: Frame) -> None:
        if not received.op & Op.REPLY:
            request = self._waiting.get(received.seq) if received.seq else None
            (request.tell if request is not None and request.tell is not None else self._on_event)(received)
            return
        request = self._waiting.pop(received.seq, None)
        if request is None or request.future.done():
            for fd in received.fds:
                os.close(fd)
        elif code := code_of(received.payload):
            for fd in received.fds:
                os.close(fd)
            request.future.set_exception(Refused(request.op, code, detail_of(received.payload)))
        else:
            request.future.set_result(Reply(received.payload, received.fds))
        if request is not None:
            request.close()

    # -- connecting ---------------------------------------------------------------------------------------------------

    def _connect_soon(self) -> None:
        if self._ended is None and (self._connector is None or self._connector.done()):
            self._connector = asyncio.get_running_loop().create_task(self._connect(), name="spawner connection")

    async def _connect(self) -> None:
        """Try until a spawner greets us, ever more slowly; after `patience_s` what waits fails, the trying goes on."""
        loop = asyncio.get_running_loop()
        delay, since = 0.01, loop.time()
        while self._ended is None:
            try:
                if await self._greet():
                    return
            except OSError:
                pass
            if loop.time() - since > self._patience_s and not self._hopeless:
                self._hopeless = True
                self._fail(lambda request: True, Unreachable(f"no spawner at {self.path}"))
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(delay * 2, 0.5)

    async def _greet(self) -> bool:
        """Connect and say HELLO. False if the spawner hung up; raises OSError if there is none."""
        loop = asyncio.get_running_loop()
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_ROOM)
            link.connect(self.path)
            hello = u32(T.VERSION_MIN, VERSION) + u32(T.VERSION_MAX, VERSION) + u64(T.EPOCH, self.epoch)
            link.send(packet([frame(Op.HELLO, 0, hello)]))
            answered = asyncio.Event()
            loop.add_reader(link.fileno(), answered.set)
            try:
                await asyncio.wait_for(answered.wait(), self._patience_s)
            finally:
                loop.remove_reader(link.fileno())
            data = link.recv(PACKET_MAX)
            greeting = split(data)[0] if data else None
        except (ProtocolError, TimeoutError, OSError) as error:
            link.close()
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                raise
            return False
        except BaseException:
            link.close()
            raise
        if greeting is None or greeting.op != Op.HELLO | Op.REPLY:
            link.close()
            return False
        if code := code_of(greeting.payload):
            link.close()
            self._end(Refused(Op.HELLO, code, detail_of(greeting.payload)))
            self._on_fenced()
            return False
        self._greeted_by(link, greeting)
        rest = split(data)[1:]
        for received in rest:
            self._take(received)
        return True

    def _greeted_by(self, link: socket.socket, greeting: Frame) -> None:
        found = {tag: number(value) for tag, value in fields(greeting.payload) if tag in (T.INSTANCE, T.PID)}
        before, self.instance, self.pid = self.instance, found.get(T.INSTANCE, 0), found.get(T.PID)
        self._socket, self._greeted, self._hopeless = link, True, False
        asyncio.get_running_loop().add_reader(link.fileno(), self._readable)
        same = before is None or before == self.instance
        if not same:
            self._fail(lambda request: request.again != "any", Unreachable("the spawner was restarted"))
        waiting = sorted(self._waiting.values(), key=lambda request: request.seq)
        self._queue = deque()
        self._on_connected(self.instance, same)  # what it asks for goes first
        self._queue.extend(request for request in waiting if request.seq in self._waiting)
        self._schedule()

    def _disconnected(self) -> None:
        """The connection is gone: what cannot be asked twice fails now, the rest waits for the next one."""
        link, self._socket, self._greeted = self._socket, None, False
        if link is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(link.fileno())
        if self._writing:
            loop.remove_writer(link.fileno())
            self._writing = False
        link.close()
        unsent = {request.seq for request in self._queue}
        self._fail(lambda request: request.again == "never" and request.seq not in unsent,
                   Unreachable("the connection to the spawner broke"))
        self._connect_soon()

    def _fail(self, which: Callable[[Request], bool], error: BackendError) -> None:
        for request in [request for request in self._waiting.values() if which(request)]:
            self._drop(request)
            if not request.future.done():
                request.future.set_exception(error)
        self._queue = deque(request for request in self._queue if request.seq in self._waiting)

    def _end(self, error: BackendError) -> None:
        self._ended = self._ended or error
        self._disconnected()
        self._fail(lambda request: True, error)
