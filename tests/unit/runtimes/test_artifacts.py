"""The compile cache: hits, misses, damage, eviction, sharing, cancellation."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimes.artifacts import CompileCache, Compiled, key_of
from runtimes.call import CompileResult

pytestmark = pytest.mark.anyio
GOOD = CompileResult(status="Accepted", exit_code=0)
KEY = "ab" * 32


class Maker:
    """Compiles `data`, and counts how often."""

    def __init__(self, data: bytes = b"tar", result: CompileResult = GOOD) -> None:
        self.data, self.result, self.made = data, result, 0
        self.go = asyncio.Event()
        self.go.set()
        self.ended = asyncio.Event()

    async def __call__(self, fd: int) -> CompileResult:
        self.made += 1
        try:
            await self.go.wait()
        finally:
            self.ended.set()
        os.write(fd, self.data)
        return self.result


def content(compiled: Compiled) -> bytes:
    fd = compiled.open()
    try:
        return os.pread(fd, 1 << 20, 0)
    finally:
        os.close(fd)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def stored(directory: Path, ending: str = "") -> list[Path]:
    return sorted(directory.glob(f"*/*{ending}"))


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    before = descriptors()
    yield
    assert descriptors() <= before


async def test_the_second_time_is_a_hit(tmp_path: Path) -> None:
    cache, maker = CompileCache(tmp_path), Maker()
    with await cache.get("t", KEY, maker) as first, await cache.get("t", KEY, maker) as second:
        assert (first.result.cached, second.result.cached, maker.made) == (False, True, 1)
        assert first.result.artifact == second.result.artifact == f"sha256:{KEY}"
        assert content(first) == content(second) == content(second) == b"tar"


async def test_tenants_share_nothing(tmp_path: Path) -> None:
    cache, maker = CompileCache(tmp_path), Maker()
    for tenant in ("a", "b"):
        (await cache.get(tenant, KEY, maker)).close()
    assert maker.made == 2


async def test_it_survives_a_restart(tmp_path: Path) -> None:
    maker = Maker()
    (await CompileCache(tmp_path).get("t", KEY, maker)).close()
    with await CompileCache(tmp_path).get("t", KEY, maker) as compiled:
        assert (compiled.result.cached, content(compiled), maker.made) == (True, b"tar", 1)


@pytest.mark.parametrize("damage", ["flip", "cut", "no tar", "no json", "bad json"])
async def test_damage_is_a_miss(tmp_path: Path, damage: str) -> None:
    maker = Maker()
    (await CompileCache(tmp_path).get("t", KEY, maker)).close()
    tar, text = stored(tmp_path, ".tar")[0], stored(tmp_path, ".json")[0]
    cache = CompileCache(tmp_path)
    match damage:
        case "flip":
            tar.write_bytes(b"tat")
        case "cut":
            tar.write_bytes(b"t")
        case "no tar":
            tar.unlink()
        case "no json":
            text.unlink()
        case "bad json":
            text.write_bytes(b"{}")
    with await cache.get("t", KEY, maker) as compiled:
        assert (compiled.result.cached, content(compiled), maker.made) == (False, b"tar", 2)
    with await cache.get("t", KEY, maker) as compiled:
        assert compiled.result.cached


async def test_what_failed_is_not_kept(tmp_path: Path) -> None:
    cache, maker = CompileCache(tmp_path), Maker(result=CompileResult(status="Compile Error", exit_code=1))
    for _ in range(2):
        with await cache.get("t", KEY, maker) as compiled:
            assert compiled.result.artifact is None
            with pytest.raises(ValueError):
                compiled.open()
    assert maker.made == 2 and stored(tmp_path) == []


async def test_the_least_recently_used_of_the_largest_tenant_goes(tmp_path: Path) -> None:
    cache, maker = CompileCache(tmp_path, limit_bytes=1000), Maker(b"x" * 250)
    (await cache.get("small", "s" * 8, maker)).close()
    for key in ("a", "b", "a", "c", "d"):
        (await cache.get("big", key * 8, maker)).close()
    assert cache.bytes == 1000 and maker.made == 5
    for tenant, key, hit in (("small", "s", True), ("big", "a", True), ("big", "d", True), ("big", "b", False)):
        with await cache.get(tenant, key * 8, maker) as compiled:
            assert compiled.result.cached is hit, key
    assert sum(path.stat().st_size for path in stored(tmp_path, ".tar")) == cache.bytes <= 1000


async def test_an_evicted_tar_stays_readable_to_who_holds_it(tmp_path: Path) -> None:
    cache, maker = CompileCache(tmp_path, limit_bytes=4), Maker()
    with await cache.get("t", "a" * 8, maker) as held:
        (await cache.get("t", "b" * 8, maker)).close()
        assert content(held) == b"tar"


async def test_larger_than_all_is_not_kept_but_used(tmp_path: Path) -> None:
    cache, maker = CompileCache(tmp_path, limit_bytes=2), Maker()
    with await cache.get("t", KEY, maker) as compiled:
        assert content(compiled) == b"tar"
    assert cache.bytes == 0


async def test_identical_compiles_are_one(tmp_path: Path) -> None:
    cache, maker = CompileCache(tmp_path), Maker()
    maker.go.clear()
    tasks = [asyncio.create_task(cache.get("t", KEY, maker)) for _ in range(5)]
    await asyncio.sleep(0)
    tasks[0].cancel()  # who began it may go away
    await asyncio.wait([tasks[0]])
    maker.go.set()
    for compiled in await asyncio.gather(*tasks[1:]):
        with compiled:
            assert content(compiled) == b"tar"
    assert maker.made == 1


async def test_nobody_waits_any_more(tmp_path: Path) -> None:
    cache, maker = CompileCache(tmp_path), Maker()
    maker.go.clear()
    tasks = [asyncio.create_task(cache.get("t", KEY, maker)) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await maker.ended.wait()
    await asyncio.sleep(0)
    assert stored(tmp_path) == []
    maker.go.set()
    (await cache.get("t", KEY, maker)).close()
    assert maker.made == 2


async def test_an_error_reaches_all_and_is_not_kept(tmp_path: Path) -> None:
    async def broken(fd: int) -> CompileResult:
        raise RuntimeError("ours")

    cache = CompileCache(tmp_path)
    results = await asyncio.gather(*(cache.get("t", KEY, broken) for _ in range(3)), return_exceptions=True)
    assert [str(result) for result in results] == ["ours"] * 3
    (await cache.get("t", KEY, Maker())).close()


async def test_a_directory_that_cannot_be_written_stops_no_compile(tmp_path: Path) -> None:
    cache, maker = CompileCache(tmp_path / "cache"), Maker()
    (tmp_path / "cache").rmdir()
    (tmp_path / "cache").write_text("in the way")
    with await cache.get("t", KEY, maker) as compiled:
        assert content(compiled) == b"tar"


def test_half_written_entries_are_swept(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    for name in (".scratch", "orphan.tar"):
        (tmp_path / "t" / name).write_text("x")
    CompileCache(tmp_path)
    assert list((tmp_path / "t").iterdir()) == []


def test_keys_know_where_parts_end() -> None:
    assert key_of(["ab", "c"]) != key_of(["a", "bc"]) != key_of(["abc"])
    assert key_of([b"a"]) == key_of(["a"]) != key_of(["a", ""])
