"""The call engine over the fake backend: what it sends into sandboxes, what it makes of their ends, what it leaves."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest

from runtimes.artifacts import CompileCache
from runtimes.backend import Failure, Sandbox, Spec, StartFailed
from runtimes.call import BackendFault, Call, CallRefused, CallResult, Compile, DeadlinePassed, InputFile, Test
from runtimes.calls import Engine
from runtimes.fake import FakeBackend, FakeHost
from runtimes.fake_programs import Io, Program
from runtimes.languages import Languages
from runtimes.limits import COMPILE, LimitsAsk, resolve
from runtimes.recipes import Tools
from runtimes.values import Base64

pytestmark = pytest.mark.anyio


class Claim(msgspec.Struct, frozen=True):
    sandbox: Sandbox
    warmth: str
    claim_ns: int


class Node:
    """An engine over a fake host, and a record of its claims."""

    def __init__(self, directory: Path, programs: Mapping[str, Program] | None = None, slots: int = 2) -> None:
        self.host = FakeHost({"gcc": gcc, "main": main, "python3": python, **(programs or {})})
        self.backend = FakeBackend(self.host)
        self.specs: list[Spec] = []
        self.released: list[str] = []
        self.at_once = self.most = 0
        self.after_claim: Callable[[str], None] = lambda name: None
        tools = {"c": ("gcc 12", Tools("/usr/bin/gcc")), "python": ("3.11", Tools("/usr/bin/python3"))}
        self._names = (f"sandbox{number:04}" for number in itertools.count())
        self.cache = CompileCache(directory)
        self.engine = Engine(self.claim, self.release, Languages(tools), self.cache, slots)

    async def claim(self, spec: Spec) -> Claim:
        self.specs.append(spec)
        async for made in self.backend.start_many([next(self._names)], spec):
            if isinstance(made, Failure):
                raise StartFailed(made.reason)
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            self.after_claim(made.name)
            return Claim(made, "staged", 5)
        raise AssertionError

    def release(self, sandbox: Sandbox, reason: str) -> None:
        self.at_once -= 1
        self.released.append(reason)
        self.host.lose(sandbox.name)

    async def run(self, call: Call, **more: int) -> CallResult:
        result = await self.engine.run(call, tenant="t", **more)
        self.nothing_is_left()
        return result

    def nothing_is_left(self) -> None:
        assert self.host.boxes == {} and self.at_once == 0 and len(self.released) == len(self.specs)


async def gcc(io: Io) -> int:
    """Copies main.c to the output, as a script for `main`; fails on what begins with `bad`."""
    source = io.tree.content(io.path("main.c"), io.uid)
    if source.startswith(b"bad"):
        await io.write("error: bad\n", 2)
        return 1
    io.tree.put("/tmp/out/main", source, uid=io.uid, mode=0o755)
    return 0


async def main(io: Io) -> int:
    from runtimes.fake_programs import steps

    io.argv[1:] = io.tree.content(io.path("main"), io.uid).decode().split(";") + io.argv[1:]
    return await steps(io)


async def python(io: Io) -> int:
    from runtimes.fake_programs import steps

    io.argv[1:] = io.tree.content(io.path(io.argv[1]), io.uid).decode().split(";") + io.argv[2:]
    return await steps(io)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def python_call(source: str, **more: object) -> Call:
    return msgspec.structs.replace(Call(language="python", source=source.encode()), **more)


async def test_an_interpreted_program(node: Node) -> None:
    result = await node.run(python_call("copy;err e", tests=(Test(stdin=b"hi", expected=b"hi\n"),)))
    (run,) = result.runs
    assert (result.status, result.compile, result.warmth) == ("Accepted", None, "staged")
    assert (run.stdout, run.stderr, run.stdout_bytes, run.exit_code, run.name) == ("hi", "e", 2, 0, "1")
    assert result.timing.claim_ns == 5 and result.timing.total_ns > 0
    assert node.specs == [Spec(kind="container", role="call", disk_bytes=256 << 20)]


async def test_a_compiled_program_is_compiled_once(node: Node) -> None:
    call = Call(language="c", source=b"copy", tests=(Test("a", b"1", b"1"), Test("b", b"2", b"3"), Test("c", b"4", b"4")))
    result = await node.run(call)
    assert result.compile is not None and (result.compile.status, result.compile.cached) == ("Accepted", False)
    assert [(run.name, run.status) for run in result.runs] == [
        ("a", "Accepted"),
        ("b", "Wrong Answer"),
        ("c", "Accepted"),
    ]
    assert result.status == "Wrong Answer" and len(node.specs) == 4
    again = await node.run(call)
    assert again.compile is not None and again.compile.cached and len(node.specs) == 7
    assert again.compile.artifact == result.compile.artifact != None  # noqa: E711


@pytest.mark.parametrize(
    "other",
    [
        Call(language="c", source=b"out b"),
        Call(language="c", source=b"out a", compile=Compile(flags=("-O3",))),
        Call(language="c", source=b"out a", compile=Compile(env={"X": "1"})),
        Call(language="c", source=b"out a", compile=Compile(limits=resolve(LimitsAsk(cpu_ms=1), COMPILE))),
        Call(language="c", files=(InputFile("main.c", b"out a", 0o755),)),
    ],
)
async def test_all_that_decides_a_compile_is_in_its_key(node: Node, other: Call) -> None:
    first = await node.run(Call(language="c", source=b"out a", tests=()))
    second = await node.run(msgspec.structs.replace(other, tests=()))
    assert second.compile is not None and not second.compile.cached
    assert first.compile is not None and first.compile.artifact != second.compile.artifact


async def test_a_compile_error_runs_nothing(node: Node) -> None:
    result = await node.run(Call(language="c", source=b"bad"))
    assert (result.status, result.runs) == ("Compile Error", ())
    assert result.compile is not None and (result.compile.exit_code, result.compile.stderr) == (1, "error: bad\n")


async def test_compile_only(node: Node) -> None:
    result = await node.run(Call(language="c", source=b"out a", tests=()))
    assert (result.status, result.runs, len(node.specs)) == ("Accepted", (), 1)
    assert (await node.run(Call(language="c", source=b"out a", tests=()))).warmth is None


async def test_tests_share_nothing_and_know_nothing(node: Node) -> None:
    call = python_call("save mark x;out done", tests=tuple(Test(str(i), expected=b"done") for i in range(3)))
    assert (await node.run(call)).status == "Accepted"
    seen: list[bytes] = []

    async def spy(io: Io) -> int:
        seen.extend(bytes(node.data) for _, node in io.tree.walk(io.tree.find("/"), "/") if node.type == "file")
        return 0

    node.host.programs["python3"] = spy
    await node.run(python_call("x", tests=(Test(stdin=b"in", expected=b"secret"),)))
    assert [data for data in seen if not data.startswith(b"root:")] == [b"x"]


async def test_environment_arguments_and_files(node: Node) -> None:
    call = Call(argv=("env",), env={"LANG": None, "K": "v=1"})
    out = (await node.run(call)).runs[0].stdout
    assert isinstance(out, str) and set(out.split()) >= {"K=v=1", "HOME=/box", "TMPDIR=/tmp"} and "LANG" not in out
    assert (await node.run(Call(argv=("pwd",), cwd="a/b"))).runs[0].stdout == "/box/a/b\n"
    assert (await node.run(Call(argv=("id",)))).runs[0].stdout == "1000\n"
    call = Call(argv=("echo", "a"), args=("b",), tests=(Test("1"), Test("2", args=("c", "d")), Test("3", args=())))
    assert [run.stdout for run in (await node.run(call)).runs] == ["a b\n", "a c d\n", "a\n"]
    call = Call(argv=("cat", "x", "y"), files=(InputFile("x", b"1"), InputFile("y", b"2")),
                tests=(Test(files=(InputFile("y", b"3"),)),))  # fmt: skip
    assert (await node.run(call)).runs[0].stdout == "13"


@pytest.mark.parametrize(
    ("steps", "limits", "status", "limit"),
    [
        ("burn 5", LimitsAsk(cpu_ms=20), "Time Limit Exceeded", "cpu"),
        ("sleep 5", LimitsAsk(wall_ms=20), "Time Limit Exceeded", "wall"),
        ("memory 999999999", LimitsAsk(memory_mb=64), "Memory Limit Exceeded", "memory"),
        ("fill 1 1026", LimitsAsk(output_kb=1.001), "Output Limit Exceeded", "output"),
        ("fill 2 1026", LimitsAsk(output_kb=1.001), "Output Limit Exceeded", "output"),
        ("fill 1 1025", LimitsAsk(output_kb=1.001), "Accepted", None),
        ("kill 25", LimitsAsk(), "Output Limit Exceeded", "file"),
        ("kill 11", LimitsAsk(), "Signalled", None),
        ("exit 3", LimitsAsk(), "Nonzero Exit Status", None),
    ],
)
async def test_limits_reach_the_program(node: Node, steps: str, limits: LimitsAsk, status: str, limit: str | None) -> None:
    result = await node.run(python_call(steps, limits=resolve(limits), tests=(Test(),)))
    assert (result.status, result.runs[0].status, result.runs[0].limit) == (status, status, limit)


async def test_a_tests_own_limits(node: Node) -> None:
    tests = (Test("1"), Test("2", limits=resolve(LimitsAsk(wall_ms=20, disk_mb=1.5))))
    result = await node.run(python_call("sleep 0.1", tests=tests))
    assert [run.status for run in result.runs] == ["Accepted", "Time Limit Exceeded"]
    assert node.specs[1].disk_bytes == 2 << 20


async def test_what_cannot_be_executed(node: Node) -> None:
    result = await node.run(Call(argv=("/no/such/program",)))
    assert (result.status, result.runs[0].exit_code) == ("File Error", None)
    assert "ENOENT" in (result.runs[0].error or "")


async def test_files_out(node: Node) -> None:
    call = python_call("save out.txt result", files_out=("out.txt", "maybe?"))
    result = await node.run(call)
    assert (result.status, result.runs[0].files) == ("Accepted", {"out.txt": "result"})
    result = await node.run(python_call("save a 1", files_out=("a", "nope", "neither")))
    assert (result.status, result.runs[0].error, result.runs[0].files) == ("File Error", "nope: ENOENT", {"a": "1"})
    result = await node.run(python_call("exit 2", files_out=("nope",)))
    assert (result.status, result.runs[0].error) == ("Nonzero Exit Status", "nope: ENOENT")
    small = resolve(LimitsAsk(file_mb=1 / (1 << 20)))
    assert (await node.run(python_call("save a 1", files_out=("a",), limits=small))).status == "Accepted"
    assert (await node.run(python_call("save a 12", files_out=("a",), limits=small))).runs[0].error == "a: EFBIG"
    assert (await node.run(python_call("save a 1", files_out=("a/b?",)))).status == "Accepted"


async def test_bytes_that_are_no_text(node: Node) -> None:
    run = (await node.run(python_call("copy", tests=(Test(stdin=b"\xff\x00"),)))).runs[0]
    assert run.stdout == Base64("/wA=")


async def test_return_kb(node: Node) -> None:
    run = (await node.run(python_call("fill 1 100", return_bytes=10))).runs[0]
    assert (run.stdout, run.stdout_bytes, run.stdout_truncated, run.status) == ("x" * 10, 100, True, "Accepted")


async def test_stop_on_first_failure(node: Node) -> None:
    tests = tuple(Test(str(i), str(i).encode(), b"1" if i == 1 else b"2") for i in range(1, 5))
    for parallel in (1, 3):
        call = python_call("copy", tests=tests, stop_on_first_failure=True, parallel=parallel)
        result = await node.run(call)
        assert [run.status for run in result.runs] == ["Accepted", "Accepted", "Wrong Answer"]
    assert node.most <= 2


async def test_slots_bound_what_runs_at_once(tmp_path: Path) -> None:
    node = Node(tmp_path, slots=3)
    tests = tuple(Test(str(i)) for i in range(12))
    result = await node.run(python_call("sleep 0.01", tests=tests, parallel=64))
    assert [run.name for run in result.runs] == [str(i) for i in range(12)]
    assert node.most == 3 and result.timing.queue_ns > 0


async def test_a_fault_of_ours_is_tried_again(node: Node) -> None:
    lost: list[str] = []

    def lose(name: str) -> None:
        if not lost:
            lost.append(name)
            node.host.lose(name)

    node.after_claim = lose
    result = await node.run(python_call("out ok"))
    assert (result.status, node.released) == ("Accepted", ["failed", "done"])
    node.after_claim = node.host.lose
    with pytest.raises(BackendFault):
        await node.run(python_call("out ok"))
    node.nothing_is_left()
    with pytest.raises(BackendFault):
        await node.run(Call(language="c", source=b"out ok"))
    node.nothing_is_left()


async def test_a_sandbox_lost_while_it_ran_is_no_verdict(node: Node) -> None:
    async def doomed(io: Io) -> int:
        node.host.lose(next(iter(node.host.boxes)))
        await asyncio.sleep(60)
        return 0

    node.host.programs["python3"] = doomed
    with pytest.raises(BackendFault):
        await node.run(python_call(""))
    assert node.released == ["failed", "failed"]


async def test_what_claiming_raises_passes_through(node: Node) -> None:
    node.host.refuse = lambda name: "EMFILE"
    with pytest.raises(StartFailed, match="EMFILE"):
        await node.engine.run(python_call(""), tenant="t")


async def test_a_deadline_is_not_a_verdict(node: Node) -> None:
    for call in (python_call("sleep 60"), python_call("sleep 60", tests=(Test("1"), Test("2"), Test("3")), parallel=2)):
        with pytest.raises(DeadlinePassed):
            await node.run(call, deadline_ns=time.monotonic_ns() + 30_000_000)
        node.nothing_is_left()


async def test_a_client_that_goes_away(node: Node) -> None:
    running = asyncio.Event()

    async def endless(io: Io) -> int:
        running.set()
        await asyncio.sleep(60)
        return 0

    for name, call in (("python3", python_call("")), ("gcc", Call(language="c", source=b""))):
        running.clear()
        node.host.programs[name] = endless
        task = asyncio.create_task(node.engine.run(call, tenant="t"))
        await running.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(10):
            await asyncio.sleep(0)
        node.nothing_is_left()
        assert node.released[-1] == "cancelled"


async def test_identical_calls_at_once_compile_once(node: Node) -> None:
    call = Call(language="c", source=b"out a", tests=())
    results = await asyncio.gather(*(node.engine.run(call, tenant="t") for _ in range(5)))
    assert {result.status for result in results} == {"Accepted"} and len(node.specs) == 1


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (Call(language="klingon", source=b""), "/language"),
        (python_call("", checker="magic"), "/checker"),
        (Call(language="python", files=(InputFile("a.py", b""), InputFile("b.py", b""))), "/entry"),
    ],
)
async def test_refused_before_anything_runs(node: Node, call: Call, field: str) -> None:
    with pytest.raises(CallRefused) as refused:
        await node.run(call)
    assert refused.value.field == field and node.specs == []


async def test_large_outputs_are_compared_beside_the_loop(node: Node) -> None:
    big = "x" * (1 << 19)
    result = await node.run(python_call(f"fill 1 {len(big)}", tests=(Test(expected=big.encode()),)))
    assert result.status == "Accepted"
