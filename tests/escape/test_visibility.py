"""Others' processes, files and secrets; what of ours is inside; what of the host's kernel can be read or set."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtimes.backend import Data

from .arena import CALL, LEASE, SECRET, Arena, said
from .attacks import PRODUCT, Attack, arenas, attacks, judge

pytestmark = pytest.mark.anyio

BOTH = ("call", "lease")


@attacks([Attack("see", ("processes",), ("pidns",), role) for role in BOTH])
async def test_other_processes_are_not_seen(arena: Arena, attack: Attack, bites: bool) -> None:
    await judge(arena, attack, bites)


@attacks([Attack("see", ("file",), ("root",), role) for role in BOTH])
async def test_the_hosts_files_are_not_read(arena: Arena, attack: Attack, bites: bool, scratch: Path) -> None:
    marker = scratch / "marker"
    marker.write_text(SECRET)
    attack = Attack("see", ("file", str(marker), SECRET), attack.stopped_by, attack.role)
    await judge(arena, attack, bites)


@attacks([Attack("see", ("init", SECRET), ("dumpable",), "lease")])
async def test_pid_1_is_closed(arena: Arena, attack: Attack, bites: bool) -> None:
    await judge(arena, attack, bites)


@arenas(PRODUCT)
@pytest.mark.parametrize("role", BOTH)
async def test_pid_1_cannot_be_killed(arena: Arena, role: str) -> None:
    spec = CALL if role == "call" else LEASE
    async with arena.sandbox(spec) as box:
        assert not said(await box.run(arena.command("see", "kill_init", spec=spec))).harmed
        assert not said(await box.run(arena.command("see", "processes", spec=spec))).harmed, "the sandbox still works"


@arenas(PRODUCT, ("ipcns", ""), ("netns", ""))
@pytest.mark.parametrize("role", BOTH)
async def test_sandboxes_do_not_see_each_other(arena: Arena, role: str) -> None:
    """System V and POSIX objects by the IPC namespace, abstract sockets by the network namespace, /dev/shm and /tmp by mounts."""
    spec = CALL if role == "call" else LEASE
    async with (arena.sandbox(spec) as first, arena.sandbox(spec) as second,
                arena.holding(first, arena.command("see", "leave", "secret", spec=spec), "LEFT")):
        result = said(await second.run(arena.command("see", "look", spec=spec)))
    assert result.harmed == bool(arena.without), result


@arenas(PRODUCT)
@pytest.mark.parametrize("stdin", [b"", b"input"])
async def test_nothing_of_ours_is_inside(arena: Arena, stdin: bytes) -> None:
    async with arena.sandbox() as box:
        result = said(await box.run(arena.command("see", "clean", SECRET, stdin=stdin)))
    assert not result.harmed, result


@arenas(PRODUCT)
async def test_input_cannot_be_changed(arena: Arena) -> None:
    async with arena.sandbox() as box:
        command = arena.command("see", "input", stdin=b"3 4\n")
        assert isinstance(command.descriptors[0], Data)
        assert not said(await box.run(command)).harmed


@arenas(PRODUCT)
@pytest.mark.parametrize("role", BOTH)
async def test_no_device_but_the_harmless_ones(arena: Arena, role: str) -> None:
    assert not (await arena.attempt("see", "devices", spec=CALL if role == "call" else LEASE)).harmed


# /proc. What everybody may read on a host is hidden by masks alone. What only the host's root may read or set is closed also
# because root inside is nobody outside ("rootmap").
OPEN_TO_ALL = ("/proc/kallsyms", "/proc/interrupts", "/proc/softirqs", "/proc/cmdline",
               "/proc/config.gz", "/proc/iomem", "/proc/modules", "/proc/driver", "/proc/acpi", "/proc/asound", "/proc/scsi")
ROOTS_OWN = ("/proc/key-users", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags", "/proc/slabinfo", "/proc/timer_list",
             "/proc/vmallocinfo")


def tells(path: str) -> bool:
    try:
        if Path(path).is_dir():
            return any(Path(path).iterdir())
        with Path(path).open("rb") as file:
            return bool(file.read(1))
    except OSError:
        return False


@attacks([Attack("see", ("readable", path), ("masks",), role) for path in OPEN_TO_ALL if tells(path) for role in BOTH])
async def test_what_the_kernel_tells_everybody(arena: Arena, attack: Attack, bites: bool) -> None:
    await judge(arena, attack, bites)


@attacks([Attack("see", ("readable", path), ("masks", "rootmap"), "lease", needs=path) for path in ROOTS_OWN])
async def test_what_the_kernel_tells_root(arena: Arena, attack: Attack, bites: bool) -> None:
    await judge(arena, attack, bites)


@arenas(PRODUCT, ("masks", ""), ("rootmap", ""), ("masks,rootmap", ""))
@pytest.mark.parametrize("path", ["/proc/kcore", "/proc/kmsg", "/dev/mem", "/dev/kmsg", "/dev/vda", "/dev/kvm"])
async def test_the_machines_memory_and_log_are_out_of_reach(arena: Arena, path: str) -> None:
    """The kernel asks for a capability over the host as well, so this stands whatever else is taken away."""
    assert not (await arena.attempt("see", "readable", path, spec=LEASE)).harmed


# Settings of the host: written back as they are, so nothing changes when it works. sysrq's "h" prints a line of help.
SETTINGS = (("/proc/sys/vm/overcommit_memory", "="), ("/proc/sys/kernel/core_pattern", "="), ("/proc/sys/fs/file-max", "="),
            ("/proc/sys/kernel/printk_ratelimit", "="))


@attacks([Attack("see", ("writable", path, text), ("roproc", "rootmap"), "lease", needs=path) for path, text in SETTINGS])
async def test_the_hosts_settings_are_not_set(arena: Arena, attack: Attack, bites: bool) -> None:
    await judge(arena, attack, bites)


@attacks([Attack("see", ("writable", "/proc/sysrq-trigger", "h"), ("masks", "rootmap"), "lease", needs="/proc/sysrq-trigger")])
async def test_sysrq_is_not_triggered(arena: Arena, attack: Attack, bites: bool) -> None:
    await judge(arena, attack, bites)
