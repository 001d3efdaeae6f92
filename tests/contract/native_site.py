"""A real spawner for the contract suite, with uid ranges and control groups of its own; nothing of it may stay."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from runtimes.backend import Backend, Spec
from runtimes.native.backend import NativeBackend
from stokehold.service.slot import claim_slot

from .site import Site, shell

ROOT = Path(__file__).resolve().parents[2]
CGROUP = f"stokehold-contract-{os.getpid()}"
READY_S = 30.0


def groups() -> list[Path]:
    hierarchies = [Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").iterdir()]  # v2 alone, or each of a hybrid host
    return [path for path in (hierarchy / CGROUP for hierarchy in hierarchies) if path.is_dir()]


def mounts() -> set[str]:
    return {line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "stokehold" in line}


def members() -> list[int]:
    """Every process in our control groups."""
    files = [file for group in groups() for file in group.glob("**/cgroup.procs")]
    return [int(pid) for file in files for pid in file.read_text().split()]


class Spawner:
    """The spawner's process; `start` waits until it listens."""

    def __init__(self, directory: Path, layer: Path) -> None:
        self.socket = directory / "spawner.sock"
        self._layer = layer
        self._slot, self._held = claim_slot()
        self._log = directory / "spawner.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._mounts = mounts()

    @staticmethod
    def build() -> None:
        subprocess.run(["make", "-s", "-C", ROOT / "runtimes/native"], check=True)

    @staticmethod
    def make_layer(directory: Path) -> None:
        subprocess.run([sys.executable, "-m", "layers.host", directory], check=True, cwd=ROOT, capture_output=True)

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [ROOT / "runtimes/native/bin/stokehold-spawner", "serve", "--socket", self.socket, "--gateway-uid",
                 str(os.getuid()), "--cgroup", CGROUP, "--slot", str(self._slot), "--layer", f"host={self._layer}"],
                stdout=subprocess.PIPE, stderr=log)
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], READY_S)
        line = self._process.stdout.readline() if readable else b""
        assert line == b"ready\n", f"the spawner said {line!r} and {self._log.read_text()[-2000:]}"

    def inits(self) -> list[int]:
        """PID 1 of every sandbox, as the host numbers it."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return [int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text() == "stokehold-init\n"]

    def kill(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()

    def stop(self) -> None:
        """End it as `stokehold stop` does, and see that nothing of it is left."""
        assert self._process is not None and self._process.stdout is not None
        self._process.terminate()
        assert self._process.wait(timeout=30) == 0, self._log.read_text()[-2000:]
        self._process.stdout.close()
        os.close(self._held)
        assert members() == []
        assert groups() == []
        assert mounts() == self._mounts


class NativeSite(Site):
    def __init__(self, spawner: Spawner) -> None:
        self.spawner = spawner
        self.backend: NativeBackend = NativeBackend(spawner.socket)

    def steps(self, *steps: str) -> tuple[str, ...]:
        return shell(*steps)

    def spec(self, role: str = "lease") -> Spec:
        if role == "call":
            return Spec(role="call", disk_bytes=32 << 20)
        return Spec(memory_bytes=256 << 20, disk_bytes=32 << 20, processes=128, cpu_milli=2000)

    async def reconnect(self, *, close: bool = True) -> Backend:
        if close:
            await self.backend.aclose()
        self.backend = NativeBackend(self.spawner.socket)
        return self.backend

    async def crash(self) -> None:
        self.spawner.kill()
        await asyncio.to_thread(self.spawner.start)

    async def clear(self) -> None:
        found = await self.backend.adopt()
        await self.backend.stop_many([adopted.sandbox.name for adopted in found], "cleared")
        assert await self.backend.adopt() == []
        await self.backend.aclose()
