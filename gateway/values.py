"""A live stream cut into pieces for events: text wherever it is UTF-8, else base64; no character is split between two pieces."""

from __future__ import annotations

from runtimes.values import encode, whole_end


class Splitter:
    """At most three bytes wait for the rest of their character."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes, end: bool = False) -> list[dict[str, str]]:
        """What may be shown now, as `text` or `base64` fields. `end`: nothing follows, so nothing waits."""
        data = self._held + data
        ready = data if end else whole_end(data)
        self._held = data[len(ready) :]
        if not ready:
            return []
        value = encode(ready)
        return [{"text": value} if isinstance(value, str) else {"base64": value.base64}]

    @property
    def held(self) -> int:
        return len(self._held)
