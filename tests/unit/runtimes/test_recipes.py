"""Recipes and languages: which files are compiled, what is run, and which questions go back to the caller."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from runtimes.call import Call, CallRefused, Compile, InputFile, Test
from runtimes.languages import Languages, overlay
from runtimes.limits import LimitsAsk, RunLimits, resolve
from runtimes.recipes import RECIPES, Plan, Tools

LIMITS = resolve(LimitsAsk())


def languages() -> Languages:
    tools = {name: (f"{name} 1.0", Tools(f"/usr/bin/{name}")) for name in RECIPES}
    tools["go"] = ("go 1.0", Tools("/usr/bin/go", {"cache": "/opt/go-cache"}))
    tools["java"] = ("javac 17", Tools("/usr/bin/javac", {"runtime": "/usr/bin/java"}))
    return Languages(tools, "/usr/bin:/opt/rust/bin")


def plan(language: str, source: str | None = None, files: Mapping[str, str] | None = None, *, entry: str | None = None,
         flags: tuple[str, ...] = ()) -> Plan:  # fmt: skip
    given = tuple(InputFile(path, text.encode()) for path, text in (files or {}).items())
    call = Call(language=language, source=None if source is None else source.encode(), files=given, entry=entry,
                compile=Compile(flags=flags))  # fmt: skip
    return languages().plan(call)


def run(plan: Plan, **limits: float) -> tuple[str, ...]:
    return plan.run(resolve(LimitsAsk(**limits)))  # type: ignore[arg-type]


def test_python_runs_its_own_file_name() -> None:
    p = plan("py", "print()")
    assert p.compile is None
    assert run(p) == ("/usr/bin/python", "main.py")
    assert p.run_files == (InputFile("main.py", b"print()"),)


def test_entry_among_several_files() -> None:
    assert run(plan("python", files={"a.py": "", "main.py": ""}))[1] == "main.py"
    assert run(plan("python", files={"lib/x.py": "", "data.txt": ""}))[1] == "lib/x.py"
    assert run(plan("python", files={"a.py": "", "b.py": ""}, entry="./b.py"))[1] == "b.py"
    assert run(plan("bash", files={"go": ""}))[1] == "go"
    with pytest.raises(CallRefused) as refused:
        plan("python", files={"a.py": "", "b.py": ""})
    assert refused.value.field == "/entry"
    with pytest.raises(CallRefused):
        plan("python", files={"a.py": ""}, entry="c.py")


def test_all_sources_are_compiled_each_as_its_language() -> None:
    p = plan("cpp", files={"main.cpp": "", "lib/a.h": "", "lib/a.cc": "", "b.c": ""}, flags=("-O3", "-lz"))
    assert p.compile is not None
    argv = list(p.compile)
    assert argv[:3] == ["/usr/bin/cpp", "-O2", "-O3"]
    at = argv.index("-x")
    assert argv[at:] == ["-x", "c", "b.c", "-x", "c++", "main.cpp", "lib/a.cc", "-x", "none", "-lz", "-lm"]
    assert run(p) == ("./main",)


def test_a_lone_source_is_not_there_at_run_time() -> None:
    assert plan("c", "int main;").run_files == ()
    assert plan("c", files={"main.c": "", "data.txt": ""}).run_files[1].path == "data.txt"


def test_paths_are_never_options() -> None:
    call = Call(language="c", files=(InputFile("-o.c", b""), InputFile("@x.c", b"")))
    argv = languages().plan(call).compile
    assert argv is not None and "./-o.c" in argv and "./@x.c" in argv


@pytest.mark.parametrize(("language", "name"), [("python", "-c.py"), ("node", "-e.js"), ("bash", "-x.sh")])
def test_what_is_run_is_never_an_option(language: str, name: str) -> None:
    assert run(plan(language, files={name: ""}))[-1] == f"./{name}"


@pytest.mark.parametrize(
    ("language", "name", "argv"),
    [("python", "main.py", "/box/main.py"), ("c", "main.c", "/box/main"), ("rust", "main.rs", "/box/main"), ("go", "main.go", "/box/main")],
)  # fmt: skip
def test_a_program_is_found_from_another_directory(language: str, name: str, argv: str) -> None:
    for cwd, wanted in (("data", argv), (".", argv.removeprefix("/box/")), (None, argv.removeprefix("/box/"))):
        call = Call(language=language, files=(InputFile(name, b""),), cwd=cwd)
        assert run(languages().plan(call))[-1].removeprefix("./") == wanted


def test_no_file_of_the_caller_is_in_the_way_of_the_program() -> None:
    call = Call(language="go", files=(InputFile("main/main.go", b""),), tests=(Test(files=(InputFile("main_", b""),)),))
    p = languages().plan(call)
    assert p.compile is not None and "/tmp/out/main__" in p.compile
    assert run(p) == ("./main__",)


def test_among_several_files_the_usual_name_wins() -> None:
    argv = plan("rust", files={"src/a.rs": "", "src/main.rs": ""}).compile
    assert argv is not None and argv[-1] == "src/main.rs"
    assert run(plan("python", files={"p/a.py": "", "p/main.py": ""}))[-1] == "p/main.py"
    with pytest.raises(CallRefused):
        plan("python", files={"p/main.py": "", "q/main.py": ""})


def test_c_with_no_source_is_refused() -> None:
    with pytest.raises(CallRefused):
        plan("c", files={"a.h": ""})


@pytest.mark.parametrize(
    ("source", "file", "main"),
    [
        ("public class Main { public static void main(String[] a) {} }", "Main.java", "Main"),
        ("class A {} public final class Sol { public static void main(String... a) {} }", "Sol.java", "Sol"),
        ("package a.b; class A {} class B { static public void main(String[] x) {} }", "Main.java", "a.b.B"),
        ('class A { String s = "static void main("; } class B { static void main(String[] a) {} }', "Main.java", "B"),
        ("// public class No\nclass Main { static void main(String[] a) {} }", "Main.java", "Main"),
        ("class Broken {", "Main.java", "Main"),
        ("", "Main.java", "Main"),
    ],
)
def test_java_finds_its_main_class(source: str, file: str, main: str) -> None:
    p = plan("java", source)
    assert p.files[0].path == file
    assert run(p)[-1] == main
    assert p.compile is not None and p.compile[-1] == file


def test_java_entry() -> None:
    text = "package p; public class NAME { public static void main(String[] a) {} }"
    files = {f"p/{name}.java": text.replace("NAME", name) for name in ("A", "B")}
    assert run(plan("java", files=files, entry="p/B.java"))[-1] == "p.B"
    assert run(plan("java", files=files, entry="p.A"))[-1] == "p.A"
    with pytest.raises(CallRefused):
        plan("java", files=files, entry="-jar x")


@pytest.mark.parametrize("memory", [32, 64, 128, 256, 512, 4096])
def test_the_jvm_fits_its_limit(memory: int) -> None:
    argv = run(plan("java", ""), memory_mb=memory)
    heap = int(next(word for word in argv if word.startswith("-Xmx"))[4:-1])
    assert 0 < heap < memory


def test_go_is_hermetic() -> None:
    p = plan("go", "package main")
    assert p.compile == ("/usr/bin/go", "build", "-trimpath", "-o", "/tmp/out/main", "./main.go")
    assert p.compile_env["GOCACHE"] == "/opt/go-cache"
    assert (p.compile_env["GOPROXY"], p.compile_env["CGO_ENABLED"]) == ("off", "0")
    p = plan("go", files={"go.mod": "", "main.go": "", "a_test.go": "", "util/u.go": ""})
    assert p.compile is not None and p.compile[-1] == "./"
    assert p.compile_env["GO111MODULE"] == "on"


def test_rust() -> None:
    p = plan("rust", "", flags=("-C", "opt-level=3"))
    assert p.compile is not None and p.compile[-5:] == ("-C", "opt-level=3", "-o", "/tmp/out/main", "main.rs")


def test_node_knows_its_limits() -> None:
    argv = run(plan("js", ""), memory_mb=64)
    assert argv == ("/usr/bin/node", "--max-old-space-size=64", "--stack-size=28672", "main.js")


def test_argv_needs_no_language() -> None:
    call = Call(argv=("./go.sh", "1"), files=(InputFile("go.sh", b"", 0o755),))
    p = languages().plan(call)
    assert (p.compile, p.run(LIMITS), p.run_files) == (None, ("./go.sh", "1"), call.files)
    with pytest.raises(CallRefused):
        languages().plan(Call(argv=()))


def test_unknown_languages_are_refused_with_what_there_is() -> None:
    with pytest.raises(CallRefused, match="rust") as refused:
        plan("klingon", "x")
    assert refused.value.field == "/language"


def test_the_list_shows_every_language() -> None:
    shown = {language.name: language for language in languages().list()}
    assert set(shown) == set(RECIPES)
    assert shown["cpp"].compile is not None and "main.cpp" in shown["cpp"].compile
    assert languages().get("golang") == shown["go"] and languages().get("x") is None


def test_read_from_a_layer(tmp_path: Path) -> None:
    file = tmp_path / "languages.json"
    file.write_text('{"path": "/usr/bin", "languages": {"python": {"version": "3", "path": "/usr/bin/python3"}, "z": {'
                    '"version": "", "path": ""}}}')  # fmt: skip
    read = Languages.read(file)
    assert [language.name for language in read.list()] == ["python"] and read.path == "/usr/bin"
    with pytest.raises(CallRefused):
        read.plan(Call(language="c", source=b""))
    file.write_text("{")
    with pytest.raises(msgspec.DecodeError):
        Languages.read(file)


def test_overlay_is_by_path() -> None:
    a, b, c = InputFile("a", b"1"), InputFile("a", b"2"), InputFile("c", b"3")
    assert overlay((a, c), (b,)) == (b, c)


def test_limits_do_not_leak_between_plans() -> None:
    p = plan("java", "")
    wanted: RunLimits = resolve(LimitsAsk(memory_mb=128))
    assert p.run(wanted) != p.run(LIMITS)
