"""Kernel interfaces that a sandbox has no business with: the system call filter, and what stands behind it."""

from __future__ import annotations

import signal

import msgspec
import pytest

from runtimes.backend import Ended, Terminal

from .arena import CALL, LEASE, Arena, said
from .attacks import PRODUCT, Attack, arenas, attacks, judge

pytestmark = pytest.mark.anyio


def kernel(name: str, *stopped_by: str, role: str = "call", needs: str | None = None) -> Attack:
    return Attack("kernel", (name,), stopped_by or ("seccomp",), role, needs=needs)


ATTACKS = [
    kernel("unshare_user", "seccomp", "maxns"), kernel("unshare_network", "seccomp", "maxns"), kernel("unshare_unknown"),
    kernel("unshare_user", "seccomp", "maxns", role="lease"),
    kernel("setns"), kernel("clone_user", "seccomp", "maxns"), kernel("clone3_user", "seccomp", "maxns"), kernel("clone3"),
    kernel("mount"), kernel("umount"), kernel("open_tree"), kernel("mount_setattr"), kernel("open_by_handle"),
    kernel("mount_tmpfs", "seccomp", "maxns"), kernel("mount_tmpfs", "seccomp", "maxns", role="lease"),
    kernel("bpf"), kernel("perf"), kernel("io_uring"), kernel("aio"), kernel("userfaultfd"),
    kernel("userfaultfd", role="lease"), kernel("io_uring", role="lease"), kernel("memfd_secret"), kernel("kcmp"),
    kernel("add_key"), kernel("session_keyring"), kernel("request_key"),
    kernel("xfs_swapext"), kernel("xfs_swapext_high"), kernel("xfs_swapext", role="lease"), kernel("ext4_move"),
    kernel("vsock"), kernel("af_alg"), kernel("audit"), kernel("raw"), kernel("socketpair"),
    kernel("i386"), kernel("x32"), kernel("mknod"), kernel("ksm"), kernel("personality"),
]  # fmt: skip


@attacks(ATTACKS)
async def test_the_kernel_is_not_reached(arena: Arena, attack: Attack, bites: bool) -> None:
    await judge(arena, attack, bites)


@attacks([kernel(name, role="lease") for name in ("tiocsti", "tiocsti_high", "tiocsetd")])
async def test_a_terminal_is_not_typed_into(arena: Arena, attack: Attack, bites: bool) -> None:
    terminal = Terminal()
    await judge(arena, attack, bites, descriptors={0: terminal, 1: terminal, 2: terminal})


@arenas(PRODUCT)
@pytest.mark.parametrize("name", ["io_uring", "bpf", "unshare_user", "xfs_swapext", "x32", "i386"])
async def test_on_denied_kill_ends_the_program(arena: Arena, name: str) -> None:
    async with arena.sandbox() as box:
        outcome = await box.run(msgspec.structs.replace(arena.command("kernel", name), on_denied="kill"))
    assert (outcome.ended, outcome.signal) == (Ended.EXIT, signal.SIGSYS), outcome


@arenas(PRODUCT)
async def test_no_program_can_load_code_into_the_kernel(arena: Arena) -> None:
    for spec in (CALL, LEASE):
        result = await arena.attempt("kernel", "bpf_load", spec=spec)
        assert not result.harmed, result


@arenas(PRODUCT, ("seccomp", ""), ("caps,seccomp", ""))
async def test_a_device_cannot_be_made(arena: Arena) -> None:
    """Stopped by the filter, by the user namespace (no CAP_MKNOD of the host's), and by nodev: no one of them is needed."""
    async with arena.sandbox(LEASE) as box:
        result = said(await box.run(arena.command("kernel", "device", spec=LEASE)))
    assert not result.harmed, result
