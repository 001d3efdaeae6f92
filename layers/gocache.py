"""A build cache of Go's standard library, made once per Go release and bound read-only into every sandbox.

Go ships no compiled standard library; compiling `fmt` and what it needs costs more CPU than a program's whole
compile limit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

TARGET = "/opt/go-cache"
"""Where a sandbox finds it: GOCACHE. Go reads a cache that it cannot write."""

ENV = {
    "CGO_ENABLED": "0",
    "GO111MODULE": "off",
    "GOTOOLCHAIN": "local",
    "GOFLAGS": "",
    "GOENV": "off",
    "GOTELEMETRY": "off",
}
"""What decides the cache's keys, beside the Go release: a compile in a sandbox must use the same."""

FLAGS = ("-trimpath",)

_PACKAGES = (
    "archive/tar", "archive/zip", "bufio", "bytes", "cmp", "compress/gzip", "container/heap", "container/list",
    "container/ring", "context", "crypto/md5", "crypto/rand", "crypto/sha1", "crypto/sha256", "crypto/sha512",
    "embed", "encoding/base32", "encoding/base64", "encoding/binary", "encoding/csv", "encoding/hex", "encoding/json",
    "errors", "flag", "fmt", "hash/adler32", "hash/crc32", "hash/crc64", "hash/fnv", "hash/maphash", "html", "io",
    "io/fs", "iter", "log", "maps", "math", "math/big", "math/bits", "math/cmplx", "math/rand", "math/rand/v2", "os",
    "os/exec", "os/signal", "path", "path/filepath", "reflect", "regexp", "runtime/debug", "slices", "sort",
    "strconv", "strings", "sync", "sync/atomic", "testing", "text/scanner", "text/tabwriter", "text/template", "time",
    "unicode", "unicode/utf16", "unicode/utf8", "unique", "unsafe",
)  # fmt: skip
_SECONDS = 900


def prepare(directory: Path, go: str, version: str, old: Path) -> bool:
    """Fill `directory` for the Go at `go` (a path on the host), or take over `old` if it is of the same `version`.

    False if Go could not build its own library (packages that this release lacks are left out): it compiles slowly."""
    mark = f"{version}\n{' '.join(_PACKAGES)}\n"
    if _read(old / "stokehold-version") == mark:
        old.rename(directory)
        return True
    directory.mkdir(mode=0o755)
    env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": "/nonexistent", "GOCACHE": str(directory), **ENV}
    known = subprocess.run([go, "list", "std"], env=env, capture_output=True, text=True, timeout=_SECONDS, check=False)
    packages = [p for p in _PACKAGES if p in set(known.stdout.split())]
    built = subprocess.run([go, "build", *FLAGS, *packages], env=env, capture_output=True, text=True, cwd="/",
                           timeout=_SECONDS, check=False)  # fmt: skip
    if built.returncode != 0:
        shutil.rmtree(directory)
        directory.mkdir(mode=0o755)
        return False
    for folder, _, files in os.walk(directory):
        Path(folder).chmod(0o755)
        for name in files:
            (Path(folder) / name).chmod(0o644)
    (directory / "stokehold-version").write_text(mark)
    return True


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
