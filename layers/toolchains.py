"""Which languages base layer `host` offers: finds compilers and interpreters, and what to bind for those outside /usr.

Runs the host's own tools to ask for their versions (as root, at serve time). Says nothing about how a program is
compiled or run: that is `runtimes.languages`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH inside a sandbox, before what toolchains add."""

_SECONDS = 30


class Tool(msgspec.Struct, frozen=True):
    """One language's tools, as a sandbox sees them."""

    version: str
    path: str
    """What runs or compiles: absolute, inside."""
    more: dict[str, str] = {}
    """Further absolute paths by role: `runtime` (java), `root` (go, rust, java), `cache` (go)."""


class Found(msgspec.Struct, frozen=True):
    """What was found: tools by language name, and read-only binds target → source for what lies outside /usr."""

    tools: dict[str, Tool]
    binds: dict[str, str]
    path: str
    """PATH for programs in a sandbox of this layer."""


class _Search:
    def __init__(self) -> None:
        self.binds: dict[str, str] = {}
        root_home = Path("~root").expanduser()
        extra = f"/usr/local/go/bin:{root_home}/.cargo/bin"
        self._path = ":".join((SYSTEM_PATH, os.environ.get("PATH", ""), extra))

    def which(self, *names: str) -> str | None:
        """The first of `names` on the system's PATH, then on root's."""
        for path in (SYSTEM_PATH, self._path):
            for name in names:
                found = shutil.which(name, path=path)
                if found:
                    return found
        return None

    def inside(self, real: str, prefix: str, target: str) -> str:
        """Where a sandbox finds `real`, a part of the tree `prefix`, which is bound at `target` if outside /usr."""
        if real.startswith("/usr/"):
            return real
        self.binds[target] = prefix
        return target + real.removeprefix(prefix)


def ask(*argv: str) -> str | None:
    """What a tool prints (stdout, else stderr), stripped; None if it cannot be run or fails."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL, cwd="/",
                              check=False)  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout.strip() or done.stderr.strip()) if done.returncode == 0 else None


def _gnu(*names: str) -> Callable[[_Search], Tool | None]:
    def find(search: _Search) -> Tool | None:
        path = search.which(*names)
        if not path or not path.startswith(("/usr/", "/bin/")):
            return None
        banner = ask(path, "--version")
        return Tool(banner.splitlines()[0], path) if banner else None

    return find


def _python(search: _Search) -> Tool | None:
    path = search.which("python3")
    if not path:
        return None
    answer = ask(path, "-I", "-c", "import sys,platform;print(platform.python_version());print(sys.base_prefix);print("
                 "'%s/bin/python%d.%d'%(sys.base_prefix,*sys.version_info[:2]))")  # fmt: skip
    if not answer:
        return None
    version, prefix, real = answer.splitlines()[-3:]
    return Tool(f"Python {version}", path if path.startswith("/usr/") else search.inside(real, prefix, "/opt/python"))


def _node(search: _Search) -> Tool | None:
    path = search.which("node", "nodejs")
    answer = path and ask(path, "-p", "process.version+'\\n'+process.execPath")
    if not answer:
        return None
    version, real = answer.splitlines()[-2:]
    return Tool(f"Node.js {version}", search.inside(real, str(Path(real).parents[1]), "/opt/node"))


def _java(search: _Search) -> Tool | None:
    compiler = search.which("javac")
    version = compiler and ask(compiler, "-version")
    if not compiler or not version:
        return None
    real = os.path.realpath(compiler)
    home = str(Path(real).parents[1])
    inside = search.inside(real, home, "/opt/java")
    root = str(Path(inside).parents[1])
    return Tool(version.splitlines()[-1], inside, {"runtime": f"{root}/bin/java", "root": root})


def _go(search: _Search) -> Tool | None:
    path = search.which("go")
    root = path and ask(path, "env", "GOROOT")
    version = path and ask(path, "version")
    if not root or not version:
        return None
    inside = search.inside(f"{root}/bin/go", root, "/opt/go")
    return Tool(version, inside, {"root": str(Path(inside).parents[1])})


def _rust(search: _Search) -> Tool | None:
    path = search.which("rustc")
    root = path and ask(path, "--print", "sysroot")
    version = path and ask(path, "--version")
    if not root or not version or not Path(f"{root}/bin/rustc").is_file():
        return None
    if root == "/usr":
        return Tool(version, f"{root}/bin/rustc", {"root": root})
    inside = search.inside(f"{root}/bin/rustc", root, "/opt/rust")
    return Tool(version, inside, {"root": str(Path(inside).parents[1])})


_FINDERS: dict[str, Callable[[_Search], Tool | None]] = {
    "c": _gnu("gcc", "cc", "clang"),
    "cpp": _gnu("g++", "c++", "clang++"),
    "python": _python,
    "node": _node,
    "java": _java,
    "go": _go,
    "rust": _rust,
    "bash": _gnu("bash"),
}


def find() -> Found:
    """Look for every language's tools. What is absent or does not run is left out."""
    search = _Search()
    tools = {name: tool for name, finder in _FINDERS.items() if (tool := finder(search))}
    known = SYSTEM_PATH.split(":")
    folders = [str(Path(tool.path).parent) for tool in tools.values()]
    more = [f for f in dict.fromkeys(folders) if f not in known and not f.startswith("/usr/lib/")]
    return Found(tools, search.binds, ":".join([*known, *more]))


def inputs() -> list[str]:
    """Files whose change means that the answer of `find` may have changed. Runs nothing."""
    search = _Search()
    names = ("gcc", "cc", "clang", "g++", "c++", "clang++", "python3", "node", "nodejs", "javac", "go", "rustc", "bash")
    found = {os.path.realpath(path) for name in names if (path := search.which(name))}
    return sorted(found | {str(Path("~root/.rustup/settings.toml").expanduser())})
