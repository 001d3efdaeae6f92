"""The spawner's C code as a library, so that its pure parts can be called from tests."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parents[4] / "runtimes" / "native" / "src"


@functools.cache
def load() -> ctypes.CDLL:
    """Compiled once per run; the file may go once it is loaded."""
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "spawner.so"
        sources = [path for path in sorted(SOURCES.glob("*.c")) if not path.name.startswith("fuzz")]
        subprocess.run(["gcc", "-std=gnu17", "-D_GNU_SOURCE", "-O1", "-w", "-shared", "-fPIC", "-o", library, *sources], check=True)
        return ctypes.CDLL(str(library))


def call_numbers() -> dict[str, int]:
    """This machine's system calls by name."""
    text = "#include <asm/unistd.h>\n"
    macros = subprocess.run(["gcc", "-E", "-dM", "-"], input=text, capture_output=True, text=True, check=True).stdout
    words = (line.split() for line in macros.splitlines())
    return {name.removeprefix("__NR_"): int(value) for _, name, value in (w for w in words if len(w) == 3)
            if name.startswith("__NR_") and value.isdigit()}
