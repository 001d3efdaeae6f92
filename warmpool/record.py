"""A lease as bytes: the record that the spawner keeps (at most 4 KiB) and the journal's rows. Msgpack and a version."""

from __future__ import annotations

import msgspec

from warmpool.errors import BadLease
from warmpool.leases import Ended, Facts, Lease

RECORD_MAX = 4096
_VERSION = b"\x01"
_facts = msgspec.msgpack.Decoder(Facts)
_ended = msgspec.msgpack.Decoder(Ended)


class BadRecord(Exception):
    """Bytes that are not a lease's record: another version, or damaged."""


def encode(facts: Facts) -> bytes:
    """The record. Raises BadLease if it would be larger than a spawner keeps."""
    data = _VERSION + msgspec.msgpack.encode(facts)
    if len(data) > RECORD_MAX:
        largest = max(("env", "metadata", "cwd"), key=lambda name: len(msgspec.msgpack.encode(getattr(facts, name))))
        raise BadLease(f"/{largest}", f"a lease's env, metadata and cwd together take at most about {RECORD_MAX} bytes")
    return data


def decode(data: bytes) -> Facts:
    """The facts in a record. Raises BadRecord."""
    if data[:1] != _VERSION:
        raise BadRecord(f"version {data[:1].hex() or 'missing'}")
    try:
        return _facts.decode(data[1:])
    except msgspec.MsgspecError as error:
        raise BadRecord(str(error)) from None


def encode_ended(ended: Ended) -> bytes:
    return msgspec.msgpack.encode(ended)


def decode_ended(data: bytes) -> Ended:
    """Raises BadRecord."""
    try:
        return _ended.decode(data)
    except msgspec.MsgspecError as error:
        raise BadRecord(str(error)) from None


def ended_lease(facts: Facts, ended: Ended) -> Lease:
    """A lease that is over, as it was."""
    lease = Lease(facts, 0)
    lease.state, lease.ended = "ended", ended
    return lease
