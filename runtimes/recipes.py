"""How each language compiles and runs a program: files and limits in, argument vectors out.

Pure: it reads sources only to find a Java main class. Where the tools are is `runtimes.languages`' to know.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping

import msgspec

from runtimes.call import Call, CallRefused, InputFile
from runtimes.limits import RunLimits

BOX = "/box"
"""Where programs run and the caller's files lie."""
OUT = "/tmp/out"
"""Where a compiler leaves what the program needs; that tree becomes /box of the runs."""

_MB = 1 << 20
_C, _CPP = (".c",), (".cc", ".cpp", ".cxx", ".c++", ".C")


class Tools(msgspec.Struct, frozen=True):
    """One language's tools inside a sandbox, from the layer."""

    path: str
    more: Mapping[str, str] = {}


class Plan(msgspec.Struct, frozen=True):
    """How one call's program is compiled (not at all: `compile` is None) and run."""

    files: tuple[InputFile, ...]
    """All that the caller gave, a lone source under its name."""
    run: Callable[[RunLimits], tuple[str, ...]]
    """argv without the caller's arguments, in /box."""
    compile: tuple[str, ...] | None = None
    compile_env: Mapping[str, str] = {}
    run_files: tuple[InputFile, ...] = ()
    """Placed for a run, beside what a compiler made."""


Recipe = Callable[[Tools, Call], Plan]


def _given(call: Call, name: str) -> tuple[InputFile, ...]:
    return call.files if call.source is None else (InputFile(name, call.source), *call.files)


def _entry(call: Call, files: tuple[InputFile, ...], name: str, endings: tuple[str, ...]) -> str:
    """The file to run. Raises CallRefused if that cannot be told."""
    paths = [posixpath.normpath(file.path) for file in files]
    if call.entry is not None:
        entry = posixpath.normpath(call.entry)
        if entry in paths:
            return entry
        raise CallRefused("/entry", f"no such file among those given: {call.entry[:200]!r}")
    if name in paths:
        return name
    found = [path for path in paths if path.endswith(endings)]
    if len(found) > 1:
        found = [path for path in found if posixpath.basename(path) == name] or found
    if len(found) == 1:
        return found[0]
    if len(paths) == 1:
        return paths[0]
    raise CallRefused("/entry", f"{len(found)} files could be the program: name one, or call it {name}")


def _interpreted(name: str, endings: tuple[str, ...], options: Callable[[RunLimits], tuple[str, ...]]) -> Recipe:
    def plan(tools: Tools, call: Call) -> Plan:
        files = _given(call, name)
        entry = _entry(call, files, name, endings)
        return Plan(files, lambda limits: (tools.path, *options(limits), _named(call, entry)), run_files=files)

    return plan


def _named(call: Call, path: str) -> str:
    """How a command line names this file of /box: relative where it runs there, never an option."""
    if posixpath.normpath(call.cwd or ".") != ".":
        return posixpath.join(BOX, path)
    return f"./{path}" if path.startswith(("-", "@")) else path


def _program(call: Call) -> tuple[str, Callable[[RunLimits], tuple[str, ...]]]:
    """The name of what a compiler makes, which no file or folder of the caller has, and the argv that runs it."""
    given = (*call.files, *(file for test in call.tests for file in test.files))
    taken = {posixpath.normpath(file.path).partition("/")[0] for file in given}
    name = "main"
    while name in taken:
        name += "_"
    argv = (f"./{name}",) if _named(call, name) == name else (_named(call, name),)
    return name, lambda limits: argv


def _node_options(limits: RunLimits) -> tuple[str, ...]:
    # V8 sizes its heap by the machine: without a bound it keeps garbage that the memory limit then kills it for. Its
    # own stack bound (1 MB) would stop recursion that the system's allows.
    memory = limits.memory_bytes // _MB
    stack_kb = min(limits.stack_bytes or limits.memory_bytes // 2, 256 * _MB) * 7 // 8 >> 10
    return (f"--max-old-space-size={max(8, memory)}", f"--stack-size={max(256, stack_kb)}")


def _native(name: str, standard: str) -> Recipe:
    """C and C++ with GCC or Clang: every source among the files, each by its own language."""

    def plan(tools: Tools, call: Call) -> Plan:
        files = _given(call, name)
        paths = [posixpath.normpath(file.path) for file in files]
        c = [path for path in paths if path.endswith(_C)]
        cpp = [path for path in paths if path.endswith(_CPP)]
        if not c and not cpp:
            raise CallRefused("/files", "no C or C++ source among the files")
        flags = [flag for flag in call.compile.flags if not flag.startswith("-l")]
        libraries = [flag for flag in call.compile.flags if flag.startswith("-l")]
        mixed = bool(c) and bool(cpp)
        program, run = _program(call)
        if name == "main.c" and cpp:
            libraries.append("-lstdc++")
        argv = [tools.path, "-O2", *(() if mixed else (f"-std={standard}",)), *flags, "-o", f"{OUT}/{program}"]
        argv += ["-x", "c", *_safe(c)] if c else []
        argv += ["-x", "c++", *_safe(cpp)] if cpp else []
        argv += ["-x", "none", *libraries, "-lm"]
        return Plan(files, run, tuple(argv), run_files=call.files)

    return plan


def _safe(paths: list[str]) -> list[str]:
    """Paths that no compiler takes for an option."""
    return [f"./{path}" if path.startswith(("-", "@")) else path for path in paths]


def _rust(tools: Tools, call: Call) -> Plan:
    files = _given(call, "main.rs")
    entry = _entry(call, files, "main.rs", (".rs",))
    program, run = _program(call)
    argv = (tools.path, "-O", "--edition", "2021", "--crate-name", "main", *call.compile.flags, "-o", f"{OUT}/{program}")
    return Plan(files, run, (*argv, *_safe([entry])), run_files=call.files)


def _go(tools: Tools, call: Call) -> Plan:
    files = _given(call, "main.go")
    paths = [posixpath.normpath(file.path) for file in files]
    module = "go.mod" in paths
    sources = [path for path in paths if path.endswith(".go") and not path.endswith("_test.go")]
    if call.entry is not None:
        folder = posixpath.dirname(_entry(call, files, "main.go", (".go",)))
    else:
        folder = (
            "" if module or any("/" not in path for path in sources) else posixpath.dirname(min(sources, default=""))
        )
    chosen = [path for path in sources if posixpath.dirname(path) == folder]
    if not chosen:
        raise CallRefused("/files", "no Go source among the files")
    env = {
        "CGO_ENABLED": "0",
        "GO111MODULE": "on" if module else "off",
        "GOCACHE": tools.more.get("cache", "/tmp/go-cache"),
        "GODEBUG": "goindex=0",  # the index of the library wants to be written beside it, and is not needed
        "GOENV": "off",
        "GOFLAGS": "",
        "GOPATH": "/tmp/go",
        "GOPROXY": "off",
        "GOTELEMETRY": "off",
        "GOTOOLCHAIN": "local",
    }
    what = [f"./{folder}"] if module else [f"./{path}" for path in sorted(chosen)]
    program, run = _program(call)
    argv = (tools.path, "build", "-trimpath", *call.compile.flags, "-o", f"{OUT}/{program}", *what)
    return Plan(files, run, argv, env, call.files)


_PUBLIC = re.compile(
    r"\bpublic\s+(?:(?:final|abstract|strictfp|sealed|non-sealed)\s+)*(?:class|interface|enum|record)\s+(\w+)"
)
_TYPE = re.compile(r"\b(?:class|interface|enum|record)\s+(\w+)")
_MAIN = re.compile(r"\bstatic\s+(?:final\s+|synchronized\s+)*void\s+main\s*\(|\bvoid\s+main\s*\(\s*(?:final\s+)?String")
_PACKAGE = re.compile(r"^\s*package\s+([\w.]+)\s*;", re.M)
_JAVA_NOISE = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.S)


def _java_text(data: bytes) -> str:
    return _JAVA_NOISE.sub(" ", data.decode("utf-8", "replace"))


def _java_main(path: str, data: bytes) -> str | None:
    """The class to start of one file, or None if no method in it looks like main."""
    text = _java_text(data)
    at = _MAIN.search(text)
    if at is None:
        return None
    own = posixpath.basename(path).removesuffix(".java")
    types = [found[1] for found in _TYPE.finditer(text, 0, at.start())]
    name = own if own in types else types[-1] if types else own
    package = _PACKAGE.search(text)
    return f"{package[1]}.{name}" if package else name


def _java(tools: Tools, call: Call) -> Plan:
    name = "Main.java"
    if call.source is not None:
        # javac insists that a public type lies in a file of its own name.
        found = _PUBLIC.search(_java_text(call.source))
        name = f"{found[1]}.java" if found else name
    files = _given(call, name)
    sources = {posixpath.normpath(file.path): file.data for file in files if file.path.endswith(".java")}
    if not sources:
        raise CallRefused("/files", "no Java source among the files")
    entry = call.entry
    if entry is not None and posixpath.normpath(entry) in sources:
        entry = _java_main(posixpath.normpath(entry), sources[posixpath.normpath(entry)])
    elif entry is not None and not re.fullmatch(r"[\w.$]+", entry):
        raise CallRefused("/entry", "a Java entry is a file among those given or the name of a class")
    if entry is None:
        order = sorted(sources, key=lambda path: (posixpath.basename(path) != "Main.java", path))
        mains = [main for path in order if (main := _java_main(path, sources[path]))]
        entry = mains[0] if mains else posixpath.basename(order[0]).removesuffix(".java")
    main = entry
    compiler_mb = max(64, call.compile.limits.memory_bytes // _MB // 2)
    argv = (tools.path, f"-J-Xmx{compiler_mb}m", "-J-XX:+UseSerialGC", "-J-XX:TieredStopAtLevel=1",
            "-J-XX:-UsePerfData", "-encoding", "UTF-8", "-d", OUT, *call.compile.flags,
            *_safe(list(sources)))  # fmt: skip
    runtime = tools.more.get("runtime", "java")
    return Plan(files, lambda limits: (runtime, *_jvm_options(limits), "-cp", BOX, main), argv, run_files=call.files)


def _jvm_options(limits: RunLimits) -> tuple[str, ...]:
    # The heap is what the limit leaves beside metaspace, code and threads; a full heap is the program's own error.
    memory = limits.memory_bytes // _MB
    heap = max(8, memory - max(48, memory // 8)) if memory > 64 else max(4, memory // 4)
    stack = max(1, min((limits.stack_bytes or limits.memory_bytes // 2) // _MB, 1000))
    cpus = max(1, -(-limits.cpu_milli // 1000))
    return (f"-Xmx{heap}m", f"-Xms{min(heap, 16)}m", f"-Xss{stack}m", "-XX:+UseSerialGC", "-XX:-UsePerfData",
            "-Xshare:auto", f"-XX:ActiveProcessorCount={cpus}", "-XX:ReservedCodeCacheSize=48m",
            "-Dfile.encoding=UTF-8")  # fmt: skip


def _no_options(limits: RunLimits) -> tuple[str, ...]:
    return ()


RECIPES: dict[str, tuple[str, tuple[str, ...], Recipe]] = {
    "c": ("main.c", (), _native("main.c", "gnu17")),
    "cpp": ("main.cpp", ("c++", "cxx", "cc"), _native("main.cpp", "gnu++20")),
    "python": ("main.py", ("python3", "py"), _interpreted("main.py", (".py",), _no_options)),
    "node": (
        "main.js",
        ("javascript", "js", "nodejs"),
        _interpreted("main.js", (".js", ".mjs", ".cjs"), _node_options),
    ),
    "java": ("Main.java", (), _java),
    "go": ("main.go", ("golang",), _go),
    "rust": ("main.rs", ("rs",), _rust),
    "bash": ("main.sh", ("sh", "shell"), _interpreted("main.sh", (".sh", ".bash"), _no_options)),
}
"""Language → (file name of a lone source, aliases, recipe)."""
