"""A real service of the tests' own: started by the command line, beside whatever else serves on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from stokehold import Client
from stokehold.transport import Http


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Service:
    """One state directory and what serves from it."""

    def __init__(self, state: Path, settings: str = "") -> None:
        self.state = state
        self.listen = f"127.0.0.1:{free_port()}"
        self.url = f"https://{self.listen}"
        self._config = state.with_suffix(".toml")
        self._config.write_text(settings)

    def command(self, *words: str, check: bool = True, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
        """`stokehold WORDS`, told where this service is."""
        return subprocess.run(
            [sys.executable, "-P", "-m", "stokehold", *words],
            env={**os.environ, "STOKEHOLD_STATE": str(self.state), "PYTHONSAFEPATH": "1"},
            capture_output=True, text=True, check=check, timeout=timeout_s)

    def start(self) -> None:
        done = self.command("serve", "--detach", "--listen", self.listen, "--config", str(self._config), check=False)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"

    def stop(self) -> None:
        self.command("stop")

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.command("status", "--json").stdout))

    def pid(self, name: str) -> int:
        """Of `gateway` or `spawner`."""
        return int(self.status()[name]["pid"])

    def client(self, http: Http = 1, **options: Any) -> Client:
        return Client(state=self.state, http=http, **options)

    def rss_kb(self, name: str) -> int:
        status = Path(f"/proc/{self.pid(name)}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
