"""The network and the gateway: nothing but the sandbox's own loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from .arena import CALL, LEASE, Arena
from .attacks import PRODUCT, Attack, arenas, attacks, judge

pytestmark = pytest.mark.anyio

BOTH = ("call", "lease")


@pytest.fixture(scope="module")
def listeners(scratch: Path) -> Iterator[dict[str, tuple[str, ...]]]:
    """What a gateway or spawner listens on, by kind: the arguments of the attack on it."""
    sockets = [socket.create_server(("127.0.0.1", 0)), socket.create_server(("::1", 0), family=socket.AF_INET6)]
    found: dict[str, tuple[str, ...]] = {"ipv4": ("tcp", "127.0.0.1", str(sockets[0].getsockname()[1])),
             "ipv6": ("tcp", "::1", str(sockets[1].getsockname()[1]))}
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\0stokehold-escape")
    abstract.listen()
    sockets.append(abstract)
    found["abstract"] = ("unix", "@stokehold-escape")
    try:
        yield found
    finally:
        for each in sockets:
            each.close()


@attacks([Attack("net", (kind,), ("netns",), role) for kind in ("ipv4", "ipv6", "abstract") for role in BOTH])
async def test_the_hosts_loopback_is_not_reached(arena: Arena, attack: Attack, bites: bool,
                                                 listeners: dict[str, tuple[str, ...]]) -> None:
    await judge(arena, Attack("net", listeners[attack.arguments[0]], attack.stopped_by, attack.role), bites)


@attacks([Attack("net", ("interfaces",), ("netns",), role, needs="/sys/class/net/eth0") for role in BOTH])
async def test_no_interface_but_loopback(arena: Arena, attack: Attack, bites: bool) -> None:
    await judge(arena, attack, bites)


@arenas(PRODUCT, ("netns", ""), ("caps", ""), ("caps,seccomp", ""))
async def test_the_network_is_not_configured(arena: Arena) -> None:
    """Its network namespace belongs to the host's user namespace: no capability that a sandbox can have is one over it."""
    assert not (await arena.attempt("net", "configure", spec=LEASE)).harmed


@arenas(PRODUCT, ("netns", ""))
@pytest.mark.parametrize("role", BOTH)
async def test_the_spawners_socket_is_not_found(arena: Arena, role: str, scratch: Path) -> None:
    spec = CALL if role == "call" else LEASE
    for path in (scratch / "spawner.sock", Path("/run/stokehold/spawner.sock")):
        assert not (await arena.attempt("net", "unix", str(path), spec=spec)).harmed
