"""One spawner of its own, with or without some mechanism, and what hostile programs need to be run in its sandboxes.

Owns the spawner process and looks, after every test and at the end, that nothing of it is left on the host. Nothing here is
run outside a sandbox but the compiler.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count
from pathlib import Path

import msgspec

from runtimes.backend import Collect, Command, Data, Descriptor, File, Input, Limits, Outcome, Process, Spec
from runtimes.native.backend import NativeBackend
from runtimes.native.sandbox import NativeSandbox

HERE = Path(__file__).parent
TREE = HERE.parent.parent
NATIVE = TREE / "runtimes/native"
CGROUP = f"stokehold-escape{os.getpid()}"
SECRET = "f00d5afe"
"""In the spawner's environment: nothing inside may ever read it."""

MS = 1_000_000
LIMITS = Limits(cpu_ns=10_000 * MS, wall_ns=20_000 * MS, memory_bytes=64 << 20, file_bytes=32 << 20, processes=64,
                cpu_milli=1000)
CALL = Spec(role="call", disk_bytes=16 << 20)
LEASE = Spec(role="lease", disk_bytes=32 << 20, memory_bytes=64 << 20, processes=64, cpu_milli=1000)
ENV = {"PATH": "/usr/bin:/bin", "HOME": "/box", "TMPDIR": "/tmp"}


class Said(msgspec.Struct, frozen=True):
    """How an attempt ended: what its program printed last, and the outcome."""

    word: str
    text: str
    outcome: Outcome

    @property
    def harmed(self) -> bool:
        assert self.word in ("HARM", "SAFE"), f"the attempt itself broke: {self.word} {self.text!r} {self.outcome}"
        return self.word == "HARM"


def said(outcome: Outcome) -> Said:
    stream = outcome.streams[1]
    lines = (stream.head + stream.tail).decode(errors="replace").splitlines()
    last = next((line for line in reversed(lines) if line[:5] in ("HARM ", "SAFE ")), lines[-1] if lines else "")
    word, _, text = last.partition(" ")
    return Said(word=word, text=text, outcome=outcome)


class Programs:
    """The hostile programs: compiled once for a session, never started outside a sandbox."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: dict[str, bytes] = {}

    def __getitem__(self, name: str) -> bytes:
        if name not in self._made:
            source, binary = HERE / f"programs/{name}.c", self._directory / name
            subprocess.run(["gcc", "-static", "-O1", "-Wall", "-Wextra", "-Werror", "-s", "-o", binary, source], check=True)
            self._made[name] = binary.read_bytes()
            binary.unlink()
        return self._made[name]


class Arena:
    """A running spawner. `without`: the mechanisms taken away, `stop_at`: where entering helpers stop (weak build)."""

    def __init__(self, backend: NativeBackend, programs: Programs, without: str, stop_at: str) -> None:
        self.backend = backend
        self.programs = programs
        self.without = without
        self.stop_at = stop_at
        self._numbers = count(1)

    def id(self) -> str:
        return f"escape{next(self._numbers):06d}"

    @asynccontextmanager
    async def sandbox(self, spec: Spec = CALL) -> AsyncIterator[NativeSandbox]:
        """A fresh one, gone without a trace afterwards."""
        made = [box async for box in self.backend.start_many([self.id()], spec)]
        box = made[0]
        assert isinstance(box, NativeSandbox), box
        try:
            yield box
        finally:
            await box.stop("done")
            remains = list(groups(box.name))
            assert not remains, remains

    def command(self, program: str, *arguments: str, spec: Spec = CALL, user: str | None = None,
                limits: Limits | None = None, descriptors: Mapping[int, Descriptor] | None = None,
                stdin: bytes = b"", place: bool = True) -> Command:
        """`program ARGUMENTS` of tests/escape/programs; `place`: brings the program along."""
        call = spec.role == "call"
        cwd = "/box" if call else "/tmp"
        return Command(
            id=self.id(), argv=(f"{cwd}/{program}", *arguments), env=ENV, cwd=cwd, user=user or ("1000" if call else "0"),
            limits=limits or (LIMITS if call else Limits(wall_ns=20_000 * MS)), exclusive=call,
            descriptors=descriptors or {0: Data(stdin), 1: Collect(1 << 16), 2: Collect(1 << 16)},
            files=(File(f"{cwd}/{program}", self.programs[program], 0o755),) if place else ())

    async def attempt(self, program: str, *arguments: str, spec: Spec = CALL, user: str | None = None,
                      limits: Limits | None = None, descriptors: Mapping[int, Descriptor] | None = None) -> Said:
        """One program in a sandbox of its own."""
        async with self.sandbox(spec) as box:
            command = self.command(program, *arguments, spec=spec, user=user, limits=limits, descriptors=descriptors)
            return said(await box.run(command))

    @asynccontextmanager
    async def holding(self, box: NativeSandbox, command: Command, word: str) -> AsyncIterator[Process]:
        """`command` with an open stdin, once it has printed `word`; its stdin is closed at the end."""
        command = msgspec.structs.replace(command, descriptors={0: Input(), 1: Collect(1 << 16), 2: Collect(1 << 16)})
        process = await box.start(command)
        await until_printed(process, word)
        try:
            yield process
        finally:
            if not process.over:  # type: ignore[attr-defined]
                with suppress(BrokenPipeError):
                    await process.write(None)
            await process.wait()
            await process.forget()


async def until_printed(process: Process, word: str) -> None:
    seen, at = b"", 0
    async with asyncio.timeout(15):
        while word.encode() not in seen:
            chunk = await process.read(1, at, 1 << 16)
            seen, at = seen + chunk.data, chunk.offset + len(chunk.data)
            assert not (chunk.end and word.encode() not in seen), f"ended before it printed {word}: {seen!r}"


# -- what is on the host -----------------------------------------------------------------------------------------------


def groups(name: str) -> list[Path]:
    """Control groups called `name`, in every hierarchy, ours or our sandboxes'."""
    roots = [Path("/sys/fs/cgroup"), *(p for p in Path("/sys/fs/cgroup").iterdir() if p.is_dir())]
    found = [p for root in roots for p in (root / CGROUP / name, root / name) if p.is_dir()]
    return found if name != CGROUP else [root / CGROUP for root in roots if (root / CGROUP).is_dir()]


def uids(slot: int) -> range:
    """Those that the spawner gives to sandboxes (host.c)."""
    ranges, first = (32768, 4096) if slot == 0 else (4096, 4096 + 32768 + (slot - 1) * 4096)
    return range(first << 16, first + ranges << 16)


def ours(pid: Path, slot: int) -> bool:
    try:
        return pid.stat().st_uid in uids(slot) or f"/{CGROUP}/" in (pid / "cgroup").read_text()
    except OSError:
        return False


def members(box: str, command: str | None = None) -> list[int]:
    """Host pids of a command (or of everything but PID 1) of a sandbox, now."""
    root = next(p for p in groups(box) if (p / "c").is_dir())
    folders = [root / "c" / command] if command else [p for p in (root / "c").iterdir() if p.is_dir()]
    files = [folder / "cgroup.procs" for folder in folders]
    return [int(pid) for file in files if file.exists() for pid in file.read_text().split()]


def helpers(box: str) -> list[int]:
    """Host pids of file helpers: they are in PID 1's group."""
    root = next(p for p in groups(box) if (p / "init").is_dir())
    pids = [int(pid) for pid in (root / "init/cgroup.procs").read_text().split()]
    return [pid for pid in pids if Path(f"/proc/{pid}/comm").read_text() != "stokehold-init\n"]


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def left(slot: int) -> list[str]:
    """Everything that a stopped spawner has left behind."""
    found = [f"process {pid.name}" for pid in Path("/proc").glob("[0-9]*") if ours(pid, slot)]
    found += [f"group {path}" for path in groups(CGROUP)]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [f"mount {line}" for line in mounts if " - " in line and line.split(" - ")[1].split()[1] == "stokehold"]
    return found


# -- the spawner -------------------------------------------------------------------------------------------------------


class Ground(msgspec.Struct, frozen=True):
    """What all spawners of a session are made from: the base layer, a directory, the programs, and uid ranges of our own."""

    layer: Path
    scratch: Path
    programs: Programs
    slot: int


@asynccontextmanager
async def arena(ground: Ground, without: str, stop_at: str) -> AsyncIterator[Arena]:
    layer, scratch = ground.layer, ground.scratch
    weak = bool(without or stop_at)
    binary = scratch / ("stokehold-spawner-weak" if weak else "stokehold-spawner")
    socket = scratch / "spawner.sock"
    if "root" in without.split(","):
        layer = with_host_root(layer, scratch / "layer")
    env = {"PATH": os.environ["PATH"], "STOKEHOLD_TEST_SECRET": SECRET}
    env |= {"STOKEHOLD_WITHOUT": without, "STOKEHOLD_STOP_AT": stop_at} if weak else {}
    # It ends with this session, whatever ends that; signals: more than a program gets, little enough that a test may take all.
    under = ("setpriv", "--pdeathsig", "TERM", "prlimit", "--sigpending=8192:8192")
    spawner = await asyncio.create_subprocess_exec(
        *under, binary, "serve", "--socket", socket, "--gateway-uid", "0", "--cgroup", CGROUP, "--slot", str(ground.slot), "--layer",
        f"host={layer}", "--makers", "1", "--enterers", "2", env=env, stdout=asyncio.subprocess.PIPE)
    backend = None
    try:
        assert spawner.stdout is not None
        async with asyncio.timeout(30):
            line = await spawner.stdout.readline()
            assert line == b"ready\n", f"the spawner did not start: {line!r}"
        backend = NativeBackend(socket)
        yield Arena(backend, ground.programs, without, stop_at)
    finally:
        if backend is not None:
            await backend.aclose()
        if spawner.returncode is None:
            spawner.terminate()
        async with asyncio.timeout(30):
            await spawner.wait()
    assert spawner.returncode == 0, f"the spawner ended with {spawner.returncode}"
    remains = left(ground.slot)
    assert not remains, remains


def with_host_root(layer: Path, directory: Path) -> Path:
    """A layer that shows the host's root at /mnt: what an allow-list of directories keeps out."""
    directory.mkdir(exist_ok=True)
    (directory / "root").unlink(missing_ok=True)
    (directory / "root").symlink_to(layer / "root")
    (directory / "binds").write_text((layer / "binds").read_text() + "/mnt\t/\n")
    return directory


@contextmanager
def one_builder() -> Iterator[None]:
    """Two sessions in one tree do not build at the same time."""
    with (NATIVE / "Makefile").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(directory: Path) -> None:
    """Both spawners, copied to `directory`, so that a later build does not change what is under test."""
    with one_builder():
        subprocess.run(["make", "-s", "-C", NATIVE, "all", "weak"], check=True)
        for name in ("stokehold-spawner", "stokehold-spawner-weak"):
            shutil.copy2(NATIVE / "bin" / name, directory / name)


def make_layer(directory: Path) -> None:
    """The base layer, kept for later sessions: it takes as long as a Go library takes to compile."""
    subprocess.run([sys.executable, "-P", "-m", "layers.host", directory], check=True, cwd=TREE, stdout=subprocess.DEVNULL)


__all__ = ["CALL", "LEASE", "LIMITS", "MS", "SECRET", "Arena", "Ground", "Programs", "Said", "arena", "members", "said"]
