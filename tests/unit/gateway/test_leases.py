"""Leases over HTTP: create, many, streams, list, patch, delete, tokens, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.anyio


async def test_create_and_get(client: Any) -> None:
    made = await client("POST", "/v1/leases", {"kind": "fake", "metadata": {"job": "j"}})
    lease = made.json()
    assert made.status == 201 and lease["state"] == "running" and lease["metadata"] == {"job": "j"}
    assert {"endpoint", "token", "created_at", "expires_at", "idle_s", "warmth", "timing", "node", "backend"} <= set(lease)
    got = (await client("GET", f"/v1/leases/{lease['id']}")).json()
    assert got["id"] == lease["id"] and "token" not in got


async def test_another_tenant_sees_nothing(stage: Any, client: Any) -> None:
    id = await client.lease()
    other = stage.client("other")
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/exec"), ("GET", "/files?path=/x")):
        answer = await other(method, f"/v1/leases/{id}{path}", {"argv": ["true"]} if method == "POST" else None)
        assert answer.status == 404 and answer.json()["code"] == "not_found"


async def test_many_at_once(client: Any) -> None:
    answer = await client("POST", "/v1/leases", {"kind": "fake", "count": 8})
    assert answer.status == 201 and len({lease["id"] for lease in answer.json()}) == 8
    assert isinstance((await client("POST", "/v1/leases", {"kind": "fake", "count": 1})).json(), dict)


async def test_a_line_for_each(client: Any) -> None:
    answer = await client("POST", "/v1/leases", {"kind": "fake", "count": 300}, headers={"accept": "application/x-ndjson"})
    lines = answer.lines()
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert sorted(line["index"] for line in lines) == list(range(300))
    assert all(line["lease"]["state"] == "running" for line in lines)


async def test_problems_are_lines_too(make_stage: Any, tmp_path: Any) -> None:
    from runtimes.fake import FakeHost

    refused: list[str] = []

    def refuse(name: str) -> str | None:
        refused.append(name)
        return "ENOSPC: full"

    async with make_stage(tmp_path, FakeHost(refuse=refuse)) as stage:
        answer = await stage.client()("POST", "/v1/leases", {"kind": "fake", "count": 2}, headers={"accept": "application/x-ndjson"})
        assert [line["problem"]["status"] for line in answer.lines()] == [503, 503]
        whole = await stage.client()("POST", "/v1/leases", {"kind": "fake", "count": 2})
        assert whole.status == 503 and whole.json()["retryable"] and int(whole.headers["retry-after"]) >= 1
        assert stage.services.leases.counts()["running"] == 0


async def test_a_client_that_leaves_a_stream_keeps_what_it_read(stage: Any, client: Any) -> None:
    exchange = client.open("POST", "/v1/leases", json_={"kind": "fake", "count": 5000}, headers={"accept": "application/x-ndjson"})
    await exchange.until(lambda e: b"\n" in e.body)
    exchange.leave()
    await exchange.broken()
    await stage.services.settle()
    read = bytes(exchange.body).count(b"\n")
    assert 0 < read < 5000
    assert stage.services.leases.counts()["running"] <= read


async def test_a_client_that_leaves_before_the_answer_gets_nothing(make_stage: Any, tmp_path: Any) -> None:
    from runtimes.fake import FakeHost

    async with make_stage(tmp_path, FakeHost(create_s=0.2)) as stage:
        exchange = stage.client().open("POST", "/v1/leases", json_={"kind": "fake", "count": 2})
        while not stage.services.leases.counts()["starting"]:
            await _turn()
        exchange.leave()
        await exchange.broken()
        await stage.services.settle()
        assert stage.services.leases.counts()["running"] + stage.services.leases.counts()["starting"] == 0


async def test_starting_if_patience_is_short(make_stage: Any, tmp_path: Any) -> None:
    from runtimes.fake import FakeHost

    async with make_stage(tmp_path, FakeHost(create_s=0.1)) as stage:
        answer = await stage.client()("POST", "/v1/leases", {"kind": "fake", "wait_s": 0})
        assert answer.status == 202 and answer.json()["state"] == "starting"


async def test_the_same_key_is_the_same_lease(client: Any) -> None:
    key = {"idempotency-key": "k1"}
    first = await client("POST", "/v1/leases", {"kind": "fake"}, headers=key)
    again = await client("POST", "/v1/leases", {"kind": "fake"}, headers=key)
    other = await client("POST", "/v1/leases", {"kind": "fake", "ttl_s": 5}, headers=key)
    assert first.json()["id"] == again.json()["id"]
    assert other.status == 422 and other.json()["code"] == "idempotency_mismatch"


async def test_list_pages_and_filters(client: Any) -> None:
    ids = [await client.lease(metadata={"job": "a" if number % 2 else "b"}) for number in range(5)]
    page = (await client("GET", "/v1/leases?limit=3")).json()
    rest = (await client("GET", f"/v1/leases?limit=3&cursor={page['next']}")).json()
    assert [lease["id"] for lease in page["leases"] + rest["leases"]] == ids and rest["next"] is None
    assert len((await client("GET", "/v1/leases?metadata.job=a&state=running")).json()["leases"]) == 2


@pytest.mark.parametrize(
    ("url", "field"),
    [
        ("/v1/leases?limit=0", "/limit"),
        ("/v1/leases?limit=x", "/limit"),
        ("/v1/leases?state=lost", "/state"),
        ("/v1/leases?x=1", "/x"),
    ],
)
async def test_bad_queries(client: Any, url: str, field: str) -> None:
    answer = await client("GET", url)
    assert answer.status == 400 and answer.json()["field"] == field


async def test_patch(client: Any) -> None:
    id = await client.lease(ttl_s=60)
    answer = await client("PATCH", f"/v1/leases/{id}", {"ttl_s": 600, "idle_s": 30, "metadata": {"a": "b"}})
    assert answer.json()["idle_s"] == 30 and answer.json()["metadata"] == {"a": "b"}
    same = await client("PATCH", f"/v1/leases/{id}", {})
    assert same.json()["idle_s"] == 30 and same.json()["expires_at"] == answer.json()["expires_at"]
    assert (await client("PATCH", f"/v1/leases/{id}", {"idle_s": None})).json()["idle_s"] is None
    assert (await client("PATCH", f"/v1/leases/{id}", {"ttl_s": -1})).json()["field"] == "/ttl_s"


async def test_delete_and_after(client: Any) -> None:
    id = await client.lease()
    for _ in range(2):
        assert (await client("DELETE", f"/v1/leases/{id}")).json()["ended"]["reason"] == "deleted"
    for method, path in (("POST", "/exec"), ("GET", "/list?path=/"), ("PATCH", "")):
        answer = await client(
            method, f"/v1/leases/{id}{path}", {"argv": ["true"]} if path == "/exec" else {} if method == "PATCH" else None
        )
        assert (answer.status, answer.json()["code"]) == (410, "lease_deleted")


async def test_delete_by_metadata(client: Any) -> None:
    for _ in range(3):
        await client.lease(metadata={"job": "a"})
    refused = await client("DELETE", "/v1/leases")
    assert refused.status == 400 and refused.json()["code"] == "bad_request"
    assert (await client("DELETE", "/v1/leases?metadata.job=a")).json() == {"deleted": 3}


async def test_lost_and_expired(stage: Any, client: Any) -> None:
    id = await client.lease()
    for name in list(stage.host.boxes):
        stage.host.lose(name)
    answer = await client("POST", f"/v1/leases/{id}/exec", {"argv": ["true"]})
    assert (answer.status, answer.json()["code"]) == (410, "lease_lost")
    short = await client.lease(ttl_s=0.05)
    answer = await client("POST", f"/v1/leases/{short}/exec", {"argv": ["sleep", "5"]})
    assert (answer.status, answer.json()["code"]) == (410, "lease_expired")


@pytest.mark.parametrize(
    ("fields", "status", "field"),
    [
        ({"ttl": 5}, 400, "/ttl"),
        ({"kind": "zeppelin"}, 400, "/kind"),
        ({"kind": "vm"}, 501, "/kind"),
        ({"count": 0}, 400, "/count"),
        ({"count": 32769}, 400, "/count"),
        ({"resources": {"memory_mb": 1e9}}, 400, "/resources/memory_mb"),
        ({"resources": {"disk": {"on": "disk"}}}, 501, "/resources/disk/on"),
        ({"network": {"mode": "open"}}, 501, "/network/mode"),
        ({"network": {"allow": ["x"]}}, 501, "/network/allow"),
        ({"backend": "native"}, 501, "/backend"),
        ({"user": "a\0b"}, 400, "/user"),
        ({"env": {"a/b": "\0"}}, 400, "/env/a~1b"),
        ({"from": {"snapshot": "s"}}, 501, "/from/snapshot"),
        ({"on_idle": "pause"}, 501, "/on_idle"),
        ({"cwd": "x"}, 400, "/cwd"),
        ({"metadata": {"a": 1}}, 400, "/metadata"),
        ({"layers": {"base": "x"}}, 501, "/layers/base"),
        ({"ttl_s": 1e10}, 400, "/ttl_s"),
    ],
)
async def test_refused(client: Any, fields: dict[str, Any], status: int, field: str) -> None:
    answer = await client("POST", "/v1/leases", {"kind": "fake", **fields})
    assert (answer.status, answer.json()["field"]) == (status, field)
    assert answer.headers["content-type"] == "application/problem+json"


async def test_a_leases_own_token(stage: Any, client: Any) -> None:
    made = (await client("POST", "/v1/leases", {"kind": "fake"})).json()
    other = await client.lease()
    own = stage.client()
    own.token = made["token"]
    assert (await own("POST", f"/v1/leases/{made['id']}/exec", {"argv": ["true"]})).status == 200
    assert (await own("POST", f"/v1/leases/{other}/exec", {"argv": ["true"]})).status == 403
    for method, path in (
        ("GET", f"/v1/leases/{made['id']}"),
        ("DELETE", f"/v1/leases/{made['id']}"),
        ("GET", "/v1/leases"),
        ("POST", "/v1/run"),
    ):
        assert (await own(method, path)).status == 403
    again = await client("POST", f"/v1/leases/{made['id']}/token")
    assert again.status == 201 and again.json()["token"]


async def _turn() -> None:
    import asyncio

    await asyncio.sleep(0)
