"""What is the same for all routes: tokens, problems, request ids, sizes, idempotency, draining, what is not built."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.stream import PIECE, Whole

pytestmark = pytest.mark.anyio


async def test_a_call(client: Any) -> None:
    answer = await client(
        "POST",
        "/v1/run",
        {"kind": "fake", "argv": ["steps", "copy"], "tests": [{"stdin": "a", "expected": "a"}, {"stdin": "b", "expected": "a"}]},
    )
    reply = answer.json()
    assert answer.status == 200 and reply["status"] == "Wrong Answer"
    assert [run["status"] for run in reply["runs"]] == ["Accepted", "Wrong Answer"]
    assert reply["timing"]["total_ns"] >= reply["timing"]["queue_ns"] >= 0


async def test_msgpack_out(client: Any) -> None:
    answer = await client("POST", "/v1/run", {"kind": "fake", "argv": ["echo", "x"]}, headers={"accept": "application/msgpack"})
    assert answer.headers["content-type"] == "application/msgpack"
    assert msgspec.msgpack.decode(answer.body)["runs"][0]["stdout"] == "x\n"


async def test_patience_with_a_call(client: Any) -> None:
    answer = await client("POST", "/v1/run", {"kind": "fake", "argv": ["sleep", "5"]}, headers={"stokehold-timeout-ms": "30"})
    assert (answer.status, answer.json()["code"]) == (504, "deadline_exceeded")
    assert (await client("GET", "/v1/languages", headers={"stokehold-timeout-ms": "soon"})).status == 400


async def test_tokens(stage: Any, client: Any) -> None:
    assert (await client("GET", "/v1/languages", headers={"authorization": ""})).status == 401
    bad = await client("GET", "/v1/languages", headers={"authorization": "Bearer x.y.z"})
    assert bad.status == 401 and bad.json()["code"] == "unauthorized" and bad.headers["www-authenticate"]
    assert (await client("GET", "/v1/languages", headers={"authorization": "", "x-api-key": client.token})).status == 200
    assert (await stage.client(scopes={"lease"})("GET", "/v1/languages")).status == 403
    assert (await stage.client(scopes={"lease:read"})("POST", "/v1/leases", {"kind": "fake"})).json()["code"] == "forbidden"


async def test_request_ids(client: Any) -> None:
    assert (await client("GET", "/healthz", headers={"x-request-id": "mine-1"})).headers["x-request-id"] == "mine-1"
    made = (await client("GET", "/healthz", headers={"x-request-id": "x" * 500})).headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]{16}", made)
    problem = await client("GET", "/v1/leases/zzzzzzzzzzzz", headers={"x-request-id": "mine-2"})
    assert problem.json()["request_id"] == "mine-2"


@pytest.mark.parametrize(
    ("method", "url", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("POST", "/v1/run/", 404, "not_found"),
        ("PUT", "/v1/run", 405, "bad_request"),
        ("POST", "/v1/run:batch", 501, "unsupported"),
        ("POST", "/v1/functions/f/calls", 501, "unsupported"),
        ("PUT", "/v1/blobs/sha256:00", 501, "unsupported"),
        ("POST", "/v1/leases/aaaaaaaaaa/fork", 501, "unsupported"),
        ("POST", "/v1/leases/aaaaaaaaaa/shells/s/run", 501, "unsupported"),
        ("GET", "/v1/leases/events", 501, "unsupported"),
        ("GET", "/v1/quota", 501, "unsupported"),
        ("GET", "/v1/pools", 501, "unsupported"),
    ],
)
async def test_what_is_not_there(client: Any, method: str, url: str, status: int, code: str) -> None:
    answer = await client(method, url)
    assert (answer.status, answer.json()["code"]) == (status, code)
    assert set(answer.json()) >= {"type", "title", "status", "detail", "code", "field", "request_id", "retryable", "retry_after_ms"}


async def test_sizes(make_stage: Any, tmp_path: Path) -> None:
    from gateway.settings import Bodies

    async with make_stage(tmp_path, bodies=Bodies(request_mb=1)) as stage:
        client = stage.client()
        declared = client.open("POST", "/v1/run", body=b"", whole=False, headers={"content-length": str(2 << 20)})
        assert (await declared.answer()).json()["code"] == "too_large"
        chunked = client.open("POST", "/v1/run", body=[b"x" * (1 << 19)] * 3, whole=False)
        assert (await chunked.answer()).status == 413
        id = await client.lease()
        assert (await client("PUT", f"/v1/leases/{id}/files?path=/tmp/big", body=[b"x" * (1 << 19)] * 5)).status == 201


async def test_a_key_answers_once(client: Any) -> None:
    ask, key = {"kind": "fake", "argv": ["echo", "x"]}, {"idempotency-key": "k"}
    first, second = await asyncio.gather(*(client("POST", "/v1/run", ask, headers=key) for _ in range(2)))
    third = await client("POST", "/v1/run", ask, headers=key)
    assert first.body == second.body == third.body and third.headers["idempotency-replayed"] == "true"
    assert (await client("POST", "/v1/run", {**ask, "argv": ["echo", "y"]}, headers=key)).json()["code"] == "idempotency_mismatch"
    assert (await client("POST", "/v1/run", {"argv": 1}, headers={"idempotency-key": "bad"})).status == 400
    assert (await client("POST", "/v1/run", ask, headers={"idempotency-key": "bad"})).status == 200
    assert (await client("POST", "/v1/run", ask, headers={"idempotency-key": "k" * 300})).status == 400


async def test_another_tenants_key_is_another_key(stage: Any, client: Any) -> None:
    key = {"idempotency-key": "k"}
    assert (await client("POST", "/v1/run", {"kind": "fake", "argv": ["echo", "x"]}, headers=key)).status == 200
    assert (await stage.client("other")("POST", "/v1/run", {"kind": "fake", "argv": ["echo", "y"]}, headers=key)).status == 200


async def test_answers_outlive_the_process(make_stage: Any, tmp_path: Path) -> None:
    ask, key = {"kind": "fake", "argv": ["echo", "x"]}, {"idempotency-key": "k"}
    async with make_stage(tmp_path) as stage:
        first = await stage.client()("POST", "/v1/run", ask, headers=key)
    async with make_stage(tmp_path) as stage:
        again = await stage.client()("POST", "/v1/run", ask, headers=key)
        assert again.body == first.body and again.headers["idempotency-replayed"] == "true"


async def test_a_repeat_goes_on_when_the_first_client_leaves(client: Any) -> None:
    ask, key = {"kind": "fake", "argv": ["steps", "sleep 0.1", "out x"]}, {"idempotency-key": "k"}
    first = client.open("POST", "/v1/run", json_=ask, headers=key)
    second = client.open("POST", "/v1/run", json_=ask, headers=key)
    await asyncio.sleep(0.02)
    first.leave()
    await first.broken()
    assert (await second.answer()).json()["runs"][0]["stdout"] == "x"


async def test_a_client_that_leaves_ends_its_call(stage: Any, client: Any) -> None:
    exchange = client.open("POST", "/v1/run", json_={"kind": "fake", "argv": ["sleep", "60"]})
    async with asyncio.timeout(5):
        while not stage.host.boxes:  # noqa: ASYNC110 (another task fills it)
            await asyncio.sleep(0)
    exchange.leave()
    await exchange.broken()
    async with asyncio.timeout(5):
        while stage.host.boxes:  # noqa: ASYNC110 (another task empties it)
            await asyncio.sleep(0.001)
    assert stage.services.admission.running == 0


async def test_draining(stage: Any, client: Any) -> None:
    id = await client.lease()
    running = client.open("POST", f"/v1/leases/{id}/exec", json_={"argv": ["sleep", "0.1"]})
    await asyncio.sleep(0.02)
    assert (await client("GET", "/readyz")).status == 200
    stage.services.drain.begin()
    refused = await client("POST", "/v1/leases", {"kind": "fake"})
    assert (refused.status, refused.json()["code"]) == (503, "draining") and refused.headers["retry-after"]
    assert (await client("GET", "/readyz")).status == 503 and (await client("GET", "/healthz")).status == 200
    assert not stage.services.drain.empty.is_set()
    assert (await running.answer()).status == 200
    await asyncio.wait_for(stage.services.drain.empty.wait(), 5)


async def test_metrics(stage: Any, client: Any) -> None:
    await client("POST", "/v1/run", {"kind": "fake", "argv": ["false"]})
    await client.lease()
    text = (await client("GET", "/metrics")).body.decode()
    for wanted in (
        'stokehold_verdicts_total{status="Nonzero Exit Status"} 1.0',
        'stokehold_leases{node="local",state="running"} 1.0',
        'stokehold_requests_total{method="POST",route="/v1/run",status="200"} 1.0',
        "stokehold_sandboxes{",
        'stokehold_claims_total{for="lease",warmth="cold"} 1.0',
        "stokehold_request_seconds_bucket",
    ):
        assert wanted in text, wanted


async def test_openapi(client: Any) -> None:
    document = (await client("GET", "/openapi.json")).json()
    run = document["paths"]["/v1/run"]["post"]
    assert run["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/RunAsk"}
    assert {"RunAsk", "LeaseAsk", "ExecAsk", "LimitsAsk", "RunObject", "LeaseObject", "Problem"} <= set(document["components"]["schemas"])
    assert document["paths"]["/v1/leases/{id}/files"].keys() == {"get", "put", "delete"}
    text = msgspec.json.encode(document).decode()
    for name in re.findall(r'"#/components/schemas/(\w+)"', text):
        assert name in document["components"]["schemas"]


async def test_an_unexpected_error_says_nothing_of_itself(stage: Any, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret path /x")

    monkeypatch.setattr(stage.services.leases, "find", broken)
    answer = await client("GET", "/v1/leases")
    assert answer.status == 503 and answer.json()["code"] == "backend_failed" and b"secret" not in answer.body


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE + 7])
async def test_a_large_answer_goes_out_in_pieces(size: int) -> None:
    data, sent = bytes(range(256)) * (size // 256 + 1), []

    async def send(message: Any) -> None:
        sent.append(message)

    await Whole(data[:size])({"type": "http"}, send, send)  # type: ignore[arg-type]
    bodies = [message["body"] for message in sent[1:]]
    assert b"".join(bodies) == data[:size] and max(map(len, bodies)) <= PIECE
    assert [message["more_body"] for message in sent[1:]] == [True] * (len(bodies) - 1) + [False]
