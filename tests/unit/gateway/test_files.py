"""Files of a lease over HTTP, on the fake backend."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest

from gateway.errors import BadRange
from gateway.routes_files import range_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def at(client: Any) -> str:
    return f"/v1/leases/{await client.lease()}"


async def test_put_and_get(client: Any, at: str) -> None:
    put = await client("PUT", f"{at}/files?path=/tmp/a/b&mkdirs=true&mode=0600", body=[b"01234", b"56789"])
    assert put.status == 201 and put.json()["size"] == 10 and put.json()["mode"] == "0600"
    got = await client("GET", f"{at}/files?path=/tmp/a/b")
    assert got.body == b"0123456789" and got.headers["content-length"] == "10" and got.headers["etag"] == put.headers["etag"]
    head = await client("HEAD", f"{at}/files?path=/tmp/a/b")
    assert head.status == 200 and head.body == b"" and head.headers["content-length"] == "10"
    same = await client("GET", f"{at}/files?path=/tmp/a/b", headers={"if-none-match": got.headers["etag"]})
    assert same.status == 304 and same.body == b""
    for tags in ("*", "W/" + got.headers["etag"]):
        assert (await client("GET", f"{at}/files?path=/tmp/a/b", headers={"if-none-match": tags})).status == 304
    await client("PUT", f"{at}/files?path=/tmp/a/b&append=true", body=b"x")
    assert (await client("GET", f"{at}/files?path=/tmp/a/b")).body == b"0123456789x"


@pytest.mark.parametrize(
    ("header", "status", "body", "said"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=8-", 206, b"89", "bytes 8-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=0-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=4-2", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
        ("bytes=0-1,4-5", 200, b"0123456789", None),
        ("bytes=10-", 416, None, "bytes */10"),
    ],
)
async def test_ranges(client: Any, at: str, header: str, status: int, body: bytes | None, said: str | None) -> None:
    await client("PUT", f"{at}/files?path=/tmp/f", body=b"0123456789")
    got = await client("GET", f"{at}/files?path=/tmp/f", headers={"range": header})
    assert got.status == status and got.headers.get("content-range") == said
    assert body is None or got.body == body


def test_a_range_of_nothing() -> None:
    assert range_of(None, 0) is None
    with pytest.raises(BadRange):
        range_of("bytes=0-", 0)
    with pytest.raises(BadRange):
        range_of("bytes=-0", 5)


async def test_an_upload_that_breaks_off_leaves_nothing(client: Any, at: str) -> None:
    exchange = client.open("PUT", f"{at}/files?path=/tmp/f", body=[b"01234"], whole=False)
    exchange.leave()
    await exchange.broken()
    assert (await client("GET", f"{at}/files?path=/tmp/f")).json()["code"] == "not_found"
    assert (await client("GET", f"{at}/list?path=/tmp")).json()["entries"] == []


async def test_a_body_shorter_than_it_said_leaves_nothing(client: Any, at: str) -> None:
    exchange = client.open("PUT", f"{at}/files?path=/tmp/f", body=b"0123", headers={"content-length": "9"})
    await exchange.broken()
    assert (await client("GET", f"{at}/stat?path=/tmp/f")).status == 404


async def test_entries(client: Any, at: str) -> None:
    for name in "abc":
        await client("PUT", f"{at}/files?path=/tmp/d/{name}&mkdirs=1", body=name.encode())
    page = (await client("GET", f"{at}/list?path=/tmp/d&limit=2")).json()
    rest = (await client("GET", f"{at}/list?path=/tmp/d&limit=2&cursor={page['next']}")).json()
    assert sorted(entry["name"] for entry in page["entries"] + rest["entries"]) == ["a", "b", "c"] and rest["next"] is None
    assert (await client("GET", f"{at}/stat?path=/tmp/d")).json()["type"] == "directory"


async def test_moving_making_and_modes(client: Any, at: str) -> None:
    assert (await client("POST", f"{at}/mkdir", {"path": "/tmp/x/y", "mode": "0700"})).json()["mode"] == "0700"
    await client("PUT", f"{at}/files?path=/tmp/x/f", body=b"1")
    assert (await client("POST", f"{at}/move", {"from": "/tmp/x/f", "to": "/tmp/x/g"})).json()["path"] == "/tmp/x/g"
    assert (await client("POST", f"{at}/chmod", {"path": "/tmp/x/g", "mode": "0755"})).json()["mode"] == "0755"
    assert (await client("DELETE", f"{at}/files?path=/tmp/x")).json()["code"] == "wrong_state"
    assert (await client("DELETE", f"{at}/files?path=/tmp/x&recursive=true")).status == 204
    assert (await client("GET", f"{at}/stat?path=/tmp/x")).status == 404


async def test_archives(client: Any, at: str) -> None:
    await client("PUT", f"{at}/files?path=/tmp/d/e/f&mkdirs=true", body=b"content")
    tar = await client("GET", f"{at}/archive?path=/tmp/d")
    with tarfile.open(fileobj=io.BytesIO(tar.body)) as archive:
        assert any(name.endswith("e/f") for name in archive.getnames())
    assert (await client("PUT", f"{at}/archive?path=/tmp/copy", body=[tar.body[:700], tar.body[700:]])).status == 204
    assert (await client("GET", f"{at}/files?path=/tmp/copy/e/f")).body == b"content"


@pytest.mark.parametrize(
    ("method", "url", "status", "field"),
    [
        ("GET", "files", 400, "/path"),
        ("GET", "files?path=/tmp", 400, "/path"),
        ("GET", "files?path=/nope", 404, "/path"),
        ("GET", "stat?path=/tmp&follow=perhaps", 400, "/follow"),
        ("PUT", "files?path=/tmp/a&mode=x", 400, "/mode"),
        ("GET", "list?path=/tmp&depth=0", 400, "/depth"),
        ("GET", "list?path=/tmp&cursor=%21", 400, "/cursor"),
        ("GET", "files?path=a%00b", 400, "/path"),
    ],
)
async def test_refused(client: Any, at: str, method: str, url: str, status: int, field: str) -> None:
    answer = await client(method, f"{at}/{url}")
    assert (answer.status, answer.json()["field"]) == (status, field)
