"""HTTP/2 on hypercorn's engine, with flow control per stream: credit is given for what the application has taken."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import priority.priority
from hypercorn.protocol.events import Body, EndBody, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h2 import H2Protocol

from gateway.errors import ClientGone
from gateway.wire.channel import Channel

STREAM_WINDOW = 256 << 10
CONNECTION_WINDOW = 8 << 20
STALL_S = 120.0
"""How long a peer may take nothing of an answer."""
DISCARD_MAX = 128 << 20
"""Of a body that nobody reads any more; then the stream is reset."""


class H2(H2Protocol):
    """One HTTP/2 connection."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._channels: dict[int, Channel] = {}
        self._credit: dict[int, int] = {}
        self._connection_credit = 0
        self.connection.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: self.config.h2_max_concurrent_streams,
                h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: self.config.h2_max_header_list_size,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                h2.settings.SettingCodes.ENABLE_CONNECT_PROTOCOL: 1,
            },
        )

    async def initiate(self, headers: Any = None, settings: Any = None) -> None:
        await super().initiate(headers, settings)
        self.connection.increment_flow_control_window(CONNECTION_WINDOW)
        await self._flush()

    async def _create_stream(self, request: Any) -> None:
        stream_id = request.stream_id
        channel = self._channels[stream_id] = Channel(lambda count: self._consumed(stream_id, count))
        self.task_group.expect(channel)  # type: ignore[attr-defined]
        await super()._create_stream(request)

    def _consumed(self, stream_id: int, count: int) -> None:
        """Body bytes were taken: let the peer send as many again, in steps worth a frame."""
        credit = self._credit.get(stream_id, 0) + count
        if credit < STREAM_WINDOW // 4:
            self._credit[stream_id] = credit
            return
        self._credit[stream_id] = 0
        channel = self._channels.get(stream_id)
        try:
            if channel is not None and channel.discarded > DISCARD_MAX:
                self.connection.reset_stream(stream_id, h2.errors.ErrorCodes.NO_ERROR)
            else:
                self.connection.increment_flow_control_window(credit, stream_id)
        except h2.exceptions.ProtocolError:
            return  # the stream is over
        self.task_group.spawn(self._flush)

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        rest: list[h2.events.Event] = []
        for event in events:
            if not isinstance(event, h2.events.DataReceived):
                rest.append(event)
                continue
            await super()._handle_events(rest)
            rest = []
            await self._data(event)
        await super()._handle_events(rest)
        for event in events:
            if isinstance(event, h2.events.StreamEnded | h2.events.StreamReset) and event.stream_id not in self.streams:
                self._forget(event.stream_id)

    async def _data(self, event: h2.events.DataReceived) -> None:
        self._connection_credit += event.flow_controlled_length
        if self._connection_credit >= CONNECTION_WINDOW // 16:
            self.connection.increment_flow_control_window(self._connection_credit)
            self._connection_credit = 0
        stream_id, data = event.stream_id, event.data
        padding = event.flow_controlled_length - len(data)
        if padding:
            self._consumed(stream_id, padding)
        stream = self.streams.get(stream_id)
        if stream is not None:
            await stream.handle(Body(stream_id=stream_id, data=data))
        elif (channel := self._channels.get(stream_id)) is not None:
            channel.feed(data)

    async def _send_data(self, stream_id: int) -> None:
        with contextlib.suppress(KeyError, priority.priority.PriorityError):  # the stream was closed while it was being sent
            await super()._send_data(stream_id)

    async def stream_send(self, event: StreamEvent) -> None:
        if isinstance(event, StreamClosed):
            await self._finish(event.stream_id)
        elif isinstance(event, Body | EndBody):
            try:
                async with asyncio.timeout(STALL_S):
                    await super().stream_send(event)
            except TimeoutError:
                raise ClientGone("the client takes nothing") from None
            return
        await super().stream_send(event)

    async def _finish(self, stream_id: int) -> None:
        """The application is done with a stream. An answer that is not whole is reset, so that nobody waits for the rest."""
        buffer = self.stream_buffers.get(stream_id)
        if buffer is not None and not buffer._complete:
            await buffer.close()
            del self.stream_buffers[stream_id]
            with contextlib.suppress(h2.exceptions.ProtocolError, priority.priority.PriorityError):
                self.priority.remove_stream(stream_id)
                self.connection.reset_stream(stream_id, h2.errors.ErrorCodes.INTERNAL_ERROR)
            await self._flush()
        if self._remote_ended(stream_id):
            self._forget(stream_id)

    def _remote_ended(self, stream_id: int) -> bool:
        stream = self.connection.streams.get(stream_id)
        return stream is None or bool(stream.closed)

    def _forget(self, stream_id: int) -> None:
        self._channels.pop(stream_id, None)
        self._credit.pop(stream_id, None)
