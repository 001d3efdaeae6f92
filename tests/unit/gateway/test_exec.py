"""Commands and processes in leases over HTTP, on the fake backend."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytestmark = pytest.mark.anyio


async def run(client: Any, id: str, *argv: str, **fields: Any) -> Any:
    return (await client("POST", f"/v1/leases/{id}/exec", {"argv": list(argv), **fields})).json()


async def test_a_run_object(client: Any) -> None:
    id = await client.lease(env={"A": "1", "B": "2"}, cwd="/tmp", user="1000")
    got = await run(client, id, "env", env={"B": None, "C": "3"}, tag="t")
    assert got["status"] == "Accepted" and got["exit_code"] == 0 and got["tag"] == "t" and got["pid"] > 0
    env = dict(line.split("=", 1) for line in got["stdout"].splitlines())
    assert env["A"] == "1" and env["C"] == "3" and "B" not in env and env["LANG"] == "C.UTF-8" and "PATH" in env
    assert (await run(client, id, "pwd"))["stdout"] == "/tmp\n"
    assert (await run(client, id, "pwd", cwd="sub"))["stdout"] == "/tmp/sub\n"
    assert (await run(client, id, "id"))["stdout"] == "1000\n"
    assert (await run(client, await client.lease(), "pwd"))["stdout"] == "/workspace\n"


async def test_how_it_ended(client: Any) -> None:
    id = await client.lease()
    assert (await run(client, id, "steps", "exit 7"))["status"] == "Nonzero Exit Status"
    killed = await run(client, id, "steps", "kill 11")
    assert (killed["status"], killed["signal"], killed["exit_code"]) == ("Signalled", "SIGSEGV", None)
    late = await run(client, id, "sleep", "30", timeout_ms=30)
    assert (late["status"], late["limit"]) == ("Time Limit Exceeded", "wall")
    quiet = await run(client, id, "sleep", "30", silence_ms=30)
    assert (quiet["status"], quiet["limit"]) == ("Time Limit Exceeded", "wall") and "silence" in quiet["error"]
    burnt = await run(client, id, "steps", "burn 5", limits={"cpu_ms": 10})
    assert (burnt["status"], burnt["limit"]) == ("Time Limit Exceeded", "cpu")
    big = await run(client, id, "steps", "memory 9000000", limits={"memory_mb": 8})
    assert (big["status"], big["limit"]) == ("Memory Limit Exceeded", "memory")
    absent = await run(client, id, "/no/such")
    assert absent["status"] == "File Error" and absent["error"]


async def test_output(client: Any) -> None:
    id = await client.lease()
    both = await run(client, id, "steps", "out o", "err e")
    assert (both["stdout"], both["stderr"]) == ("o", "e")
    assert (await run(client, id, "steps", "out o", "err e", stderr="merge"))["stdout"] == "oe"
    assert (await run(client, id, "steps", "out o", "err e", stderr="discard"))["stderr"] == ""
    cut = await run(client, id, "steps", "fill 1 5000", "out END", output_kb=1)
    assert cut["status"] == "Accepted" and cut["stdout_truncated"] and cut["stdout_bytes"] == 5003 and cut["stdout"].endswith("END")
    over = await run(client, id, "steps", "fill 1 5000", output_kb=1, on_output="kill")
    assert over["status"] == "Output Limit Exceeded" and len(over["stdout"]) == 1024


async def test_stdin(client: Any) -> None:
    id = await client.lease()
    assert (await run(client, id, "cat", stdin="in"))["stdout"] == "in"
    assert (await run(client, id, "cat", stdin={"base64": "/wA="}))["stdout"] == {"base64": "/wA="}
    assert (await run(client, id, "cat"))["stdout"] == ""


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "/argv"),
        ({"argv": ["a"], "shell": "b"}, "/shell"),
        ({"argv": []}, "/argv"),
        ({"argv": [""]}, "/argv/0"),
        ({"argv": ["x"], "timeout_ms": -1}, "/timeout_ms"),
        ({"argv": ["x"], "limits": {"memory_mb": 1e9}}, "/limits/memory_mb"),
        ({"argv": ["x"], "output_kb": 1e9}, "/output_kb"),
        ({"argv": ["x"], "cmd": 1}, "/cmd"),
        ({"argv": ["x" * 70000] * 20}, "/argv"),
        ({"argv": ["x"], "stderr": "both"}, "/stderr"),
        ({"argv": ["x"], "user": "a\0b"}, "/user"),
    ],
)
async def test_refused(client: Any, fields: dict[str, Any], field: str) -> None:
    answer = await client("POST", f"/v1/leases/{await client.lease()}/exec", fields)
    assert (answer.status, answer.json()["field"]) == (400, field)


async def test_a_client_that_leaves_ends_its_command(stage: Any, client: Any) -> None:
    id = await client.lease()
    exchange = client.open("POST", f"/v1/leases/{id}/exec", json_={"argv": ["sleep", "60"]})
    box = next(iter(stage.host.boxes.values()))
    await _until(lambda: box._processes)
    exchange.leave()
    await exchange.broken()
    await _until(lambda: not box._processes)


async def test_patience_is_no_verdict(stage: Any, client: Any) -> None:
    id = await client.lease()
    answer = await client("POST", f"/v1/leases/{id}/exec", {"argv": ["sleep", "60"]}, headers={"stokehold-timeout-ms": "40"})
    assert (answer.status, answer.json()["code"]) == (504, "deadline_exceeded")
    box = next(iter(stage.host.boxes.values()))
    await _until(lambda: not box._processes)


async def test_a_key_runs_it_once(client: Any) -> None:
    id = await client.lease()
    ask, key = {"argv": ["steps", "append /tmp/n x", "sleep 0.02"]}, {"idempotency-key": "k"}
    first, second = await asyncio.gather(*(client("POST", f"/v1/leases/{id}/exec", ask, headers=key) for _ in range(2)))
    third = await client("POST", f"/v1/leases/{id}/exec", ask, headers=key)
    assert sorted(answer.json()["replayed"] for answer in (first, second)) == [False, True] and third.json()["replayed"]
    assert first.json()["id"] == second.json()["id"] == third.json()["id"]
    assert (await run(client, id, "cat", "/tmp/n"))["stdout"] == "x"
    other = await client("POST", f"/v1/leases/{id}/exec", {"argv": ["true"]}, headers=key)
    assert other.status == 422 and other.json()["code"] == "idempotency_mismatch"


async def test_a_command_with_a_key_outlives_its_client_and_the_gateway(make_stage: Any, tmp_path: Any) -> None:
    from runtimes.fake import FakeHost

    host = FakeHost()
    ask, key = {"argv": ["steps", "append /tmp/n x", "sleep 0.3", "out done"]}, {"idempotency-key": "k"}
    async with make_stage(tmp_path, host) as stage:
        id = await stage.client().lease()
        box = next(iter(host.boxes.values()))
        exchange = stage.client().open("POST", f"/v1/leases/{id}/exec", json_=ask, headers=key)
        await _until(lambda: box._processes)
        exchange.leave()
        await exchange.broken()
    async with make_stage(tmp_path, host) as stage:
        client = stage.client()
        again = await client("POST", f"/v1/leases/{id}/exec", ask, headers=key)
        assert again.json()["stdout"] == "done" and again.json()["replayed"]
        assert (await run(client, id, "cat", "/tmp/n"))["stdout"] == "x"
        assert (await client("POST", f"/v1/leases/{id}/exec", {"argv": ["true"]}, headers=key)).status == 422
    async with make_stage(tmp_path, host) as stage:
        replayed = await stage.client()("POST", f"/v1/leases/{id}/exec", ask, headers=key)
        assert replayed.json()["replayed"] and replayed.json()["stdout"] == "done"


async def test_as_events(client: Any) -> None:
    id = await client.lease()
    answer = await client(
        "POST", f"/v1/leases/{id}/exec", {"argv": ["steps", "out ä", "err e", "exit 3"]}, headers={"accept": "text/event-stream"}
    )
    events = answer.events()
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert events[0][0] == "start" and events[0][1]["pid"] > 0
    assert ("stdout", {"offset": 0, "text": "ä"}) in [event[:2] for event in events]
    assert ("stderr", {"offset": 0, "text": "e"}) in [event[:2] for event in events]
    assert events[-1][0] == "exit" and events[-1][1]["exit_code"] == 3 and "stdout" not in events[-1][1]


async def test_events_tell_what_was_dropped_and_where_to_go_on(client: Any) -> None:
    id = await client.lease()
    answer = await client("POST", f"/v1/leases/{id}/processes", {"argv": ["steps", "fill 1 100000", "out END"], "output_kb": 2})
    pid = answer.json()["pid"]
    await client("POST", f"/v1/leases/{id}/processes/{pid}/wait")
    events = (await client("GET", f"/v1/leases/{id}/processes/{pid}/output?follow=true")).events()
    dropped = next(data for name, data, _ in events if name == "dropped")
    assert dropped == {"stream": "stdout", "from": 1024, "to": 100003 - 1024}
    where = next(id for name, _, id in events if name == "dropped")
    rest = (
        await client("GET", f"/v1/leases/{id}/processes/{pid}/output", headers={"accept": "text/event-stream", "last-event-id": where})
    ).events()
    assert [name for name, _, _ in rest] == ["start", "stdout", "exit"] and rest[1][1]["text"].endswith("END")


async def test_events_of_what_has_ended(client: Any) -> None:
    id = await client.lease()
    at, live = f"/v1/leases/{id}/exec", {"accept": "text/event-stream"}

    async def told(key: str, after: str) -> list[Any]:
        got = await client("POST", at, asks[key], headers={**live, "idempotency-key": key, "last-event-id": after})
        assert [name for name, _, _ in got.events()][:: len(got.events()) - 1] == ["start", "exit"]
        return [(name, data.get("offset", data.get("from")), data.get("text", data.get("to"))) for name, data, _ in got.events()[1:-1]]

    asks = {
        "whole": {"argv": ["steps", "out one", "out two", "err e"]},
        "cut": {"argv": ["steps", "fill 1 5000", "out END"], "output_kb": 1},
        "large": {"argv": ["steps", "fill 1 80000"]},
    }
    for key, ask in asks.items():
        assert (await client("POST", at, ask, headers={"idempotency-key": key})).status == 200
    assert await told("whole", "0.0") == [("stdout", 0, "onetwo"), ("stderr", 0, "e")]
    assert await told("whole", "3.0") == [("stdout", 3, "two"), ("stderr", 0, "e")]
    assert await told("whole", "6.1") == []
    (_, _, head), dropped, (name, start, tail) = await told("cut", "0.0")
    assert dropped == ("dropped", len(head), start) and name == "stdout" and start + len(tail) == 5003 and tail.endswith("END")
    assert await told("cut", "5000.0") == [("stdout", 5000, "END")]
    assert [(start, len(text)) for _, start, text in await told("large", "5.0")] == [(5, 32768), (32773, 32768), (65541, 14459)]
    other = await client("POST", at, {"argv": ["true"]}, headers={**live, "idempotency-key": "whole"})
    assert (other.status, other.json()["code"]) == (422, "idempotency_mismatch")


async def test_what_it_left_behind_does_not_hold_the_stream(client: Any) -> None:
    id = await client.lease()
    answer = await client(
        "POST", f"/v1/leases/{id}/exec", {"argv": ["steps", "leave 30", "out done"]}, headers={"accept": "text/event-stream"}
    )
    assert [name for name, _, _ in answer.events()] == ["start", "stdout", "exit"]


async def test_a_process(client: Any) -> None:
    id = await client.lease()
    at = f"/v1/leases/{id}/processes"
    made = await client("POST", at, {"argv": ["steps", "line", "copy", "exit 4"], "tag": "t"})
    assert made.status == 201 and made.json()["state"] == "running" and made.json()["argv"][0] == "steps"
    pid = made.json()["pid"]
    assert (await client("POST", f"{at}/{pid}/stdin", body=b"a\n")).status == 204
    assert (await client("POST", f"{at}/{pid}/stdin?close=true", body=b"rest")).status == 204
    done = (await client("POST", f"{at}/{pid}/wait")).json()
    assert (done["exit_code"], done["stdout"], done["tag"]) == (4, "[a]rest", "t")
    assert (await client("POST", f"{at}/{pid}/stdin", body=b"x")).json()["code"] == "wrong_state"
    listed = (await client("GET", at)).json()["processes"]
    assert [(p["pid"], p["state"], p["exit_code"]) for p in listed] == [(pid, "ended", 4)]
    assert (await client("GET", f"{at}/{done['id']}")).json()["status"] == "Nonzero Exit Status"
    piece = (await client("GET", f"{at}/{pid}/output?stream=stdout&offset=1")).json()
    assert (piece["text"], piece["offset"], piece["next_offset"], piece["end"]) == ("a]rest", 1, 7, True)
    octets = await client("GET", f"{at}/{pid}/output", headers={"accept": "application/octet-stream"})
    assert octets.body == b"[a]rest" and octets.headers["stokehold-end"] == "true"


async def test_output_of_a_running_process_does_not_wait(client: Any) -> None:
    at = f"/v1/leases/{await client.lease()}/processes"
    pid = (await client("POST", at, {"argv": ["sleep", "60"]})).json()["pid"]
    piece = (await client("GET", f"{at}/{pid}/output?stream=stderr")).json()
    assert (piece["text"], piece["end"]) == ("", False)
    assert (await client("POST", f"{at}/{pid}/wait", {"timeout_ms": 20})).json()["state"] == "running"


async def test_signals(client: Any) -> None:
    at = f"/v1/leases/{await client.lease()}/processes"
    pid = (await client("POST", at, {"argv": ["sleep", "60"]})).json()["pid"]
    assert (await client("POST", f"{at}/{pid}/signal", {"signal": "SIGNO"})).json()["field"] == "/signal"
    assert (await client("POST", f"{at}/{pid}/signal", {"signal": "INT"})).status == 204
    assert (await client("POST", f"{at}/{pid}/wait")).json()["signal"] == "SIGINT"
    assert (await client("POST", f"{at}/{pid}/signal", {"signal": 9})).json()["code"] == "wrong_state"
    assert (await client("GET", f"{at}/99999")).json()["code"] == "not_found"


async def test_signals_that_are_none(client: Any) -> None:
    at = f"/v1/leases/{await client.lease()}/processes"
    pid = (await client("POST", at, {"argv": ["sleep", "60"]})).json()["pid"]
    for name in ("²", "0", "65", "SIG_DFL"):
        answer = await client("POST", f"{at}/{pid}/signal", {"signal": name})
        assert (answer.status, answer.json()["field"]) == (400, "/signal")


async def test_limits_of_a_command(client: Any) -> None:
    id = await client.lease()
    assert (await run(client, id, "steps", "fill 1 5000", limits={"output_kb": 1}, on_output="kill"))["status"] == "Output Limit Exceeded"
    answer = await client("POST", f"/v1/leases/{id}/exec", {"argv": ["x"], "limits": {"disk_mb": 1}})
    assert (answer.status, answer.json()["field"]) == (501, "/limits/disk_mb")


async def test_a_key_feeds_stdin_once(client: Any) -> None:
    at = f"/v1/leases/{await client.lease()}/processes"
    pid = (await client("POST", at, {"argv": ["steps", "copy"]})).json()["pid"]
    for _ in range(2):
        assert (await client("POST", f"{at}/{pid}/stdin", body=b"a", headers={"idempotency-key": "k"})).status == 204
    again = await client("POST", f"{at}/{pid}/stdin", body=b"b", headers={"idempotency-key": "k"})
    assert again.json()["code"] == "idempotency_mismatch"
    closing = await client("POST", f"{at}/{pid}/stdin?close=true", body=b"a", headers={"idempotency-key": "k"})
    assert closing.status == 422
    await client("POST", f"{at}/{pid}/stdin?close=true")
    assert (await client("POST", f"{at}/{pid}/wait")).json()["stdout"] == "a"


async def test_following_ends_as_the_lease_does(client: Any) -> None:
    id = await client.lease()
    pid = (await client("POST", f"/v1/leases/{id}/processes", {"argv": ["sleep", "60"]})).json()["pid"]
    following = client.open("GET", f"/v1/leases/{id}/processes/{pid}/output?follow=true")
    await following.until(lambda exchange: b"start" in exchange.body)
    await client("DELETE", f"/v1/leases/{id}")
    name, problem, _ = (await following.answer()).events()[-1]
    assert (name, problem["code"], problem["retryable"]) == ("problem", "lease_deleted", False)


async def test_a_running_process_is_activity(make_stage: Any, tmp_path: Any) -> None:
    from runtimes.fake import FakeHost

    host = FakeHost()
    async with make_stage(tmp_path, host) as stage:
        client = stage.client()
        id = await client.lease(idle_s=0.2)
        await client("POST", f"/v1/leases/{id}/processes", {"argv": ["sleep", "1.2"]})
        await asyncio.sleep(0.4)
        assert (await client("GET", f"/v1/leases/{id}")).json()["state"] == "running"
    async with make_stage(tmp_path, host) as stage:
        client = stage.client()
        await asyncio.sleep(0.4)
        assert (await client("GET", f"/v1/leases/{id}")).json()["state"] == "running"
        await asyncio.sleep(1)
        assert (await client("GET", f"/v1/leases/{id}")).json()["ended"]["reason"] == "idle"


async def test_ended_processes_are_kept_in_bounds(client: Any) -> None:
    from gateway.processes import ENDED_KEPT

    at = f"/v1/leases/{await client.lease()}/processes"
    for _ in range(ENDED_KEPT + 20):
        assert (await client("POST", at, {"argv": ["true"]})).status == 201
    assert len((await client("GET", at)).json()["processes"]) <= ENDED_KEPT + 1


async def test_processes_are_found_again(make_stage: Any, tmp_path: Any) -> None:
    from runtimes.fake import FakeHost

    host = FakeHost()
    async with make_stage(tmp_path, host) as stage:
        id = await stage.client().lease()
        pid = (await stage.client()("POST", f"/v1/leases/{id}/processes", {"argv": ["steps", "copy"]})).json()["pid"]
    async with make_stage(tmp_path, host) as stage:
        client = stage.client()
        listed = (await client("GET", f"/v1/leases/{id}/processes")).json()["processes"]
        assert [(p["pid"], p["state"]) for p in listed] == [(pid, "running")]
        await client("POST", f"/v1/leases/{id}/processes/{pid}/stdin?close=true", body=b"still here")
        assert (await client("POST", f"/v1/leases/{id}/processes/{pid}/wait")).json()["stdout"] == "still here"


async def test_too_many_commands(make_stage: Any, tmp_path: Any) -> None:
    from gateway.settings import Admission

    async with make_stage(tmp_path, admission=Admission(commands=1)) as stage:
        client = stage.client()
        id = await client.lease()
        exchange = client.open("POST", f"/v1/leases/{id}/exec", json_={"argv": ["sleep", "60"]})
        box = next(iter(stage.host.boxes.values()))
        await _until(lambda: box._processes)
        answer = await client("POST", f"/v1/leases/{id}/exec", {"argv": ["true"]})
        assert (answer.status, answer.json()["code"]) == (429, "quota_exceeded") and answer.headers["retry-after"]
        exchange.leave()
        await exchange.broken()


async def _until(true: Any) -> None:
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110 (other tasks make it so)
            await asyncio.sleep(0.001)
