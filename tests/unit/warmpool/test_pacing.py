from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from warmpool.pacing import Backoff, TokenBucket, Want, share

MS = 1_000_000


def test_the_bucket_gives_its_burst_then_its_rate() -> None:
    bucket = TokenBucket(rate=10, burst=5, now=0)
    assert bucket.take(100, 0) == 5
    assert bucket.take(1, 0) == 0
    assert bucket.take(100, 300 * MS) == 3
    assert bucket.take(100, 3600 * 1000 * MS) == 5


def test_the_bucket_says_when_its_next_token_comes() -> None:
    bucket = TokenBucket(rate=10, burst=1, now=0)
    assert bucket.ready_at(0) == 0
    bucket.take(1, 0)
    at = bucket.ready_at(0)
    assert 100 * MS <= at <= 101 * MS
    assert bucket.take(1, at) == 1


def test_backoff_doubles_up_to_its_cap_and_forgets_after_a_success() -> None:
    backoff = Backoff(20 * MS, 100 * MS, random=lambda: 1.0)
    now, pauses = 0, []
    for _ in range(5):
        backoff.failed(now)
        pauses.append(backoff.ready_at - now)
        now = backoff.ready_at
    assert pauses == [20 * MS, 40 * MS, 80 * MS, 100 * MS, 100 * MS]
    backoff.succeeded()
    assert (backoff.failures, backoff.ready_at) == (0, 0)


def test_failures_of_one_attempt_count_once() -> None:
    backoff = Backoff(20 * MS, 100 * MS, random=lambda: 0.0)
    for _ in range(32):
        backoff.failed(0)
    assert (backoff.failures, backoff.ready_at) == (1, 10 * MS)


def test_claims_that_wait_come_before_refill_and_need_no_tokens() -> None:
    bucket = TokenBucket(rate=1, burst=3, now=0)
    assert share([Want(0, 10), Want(4, 0)], 6, bucket, 0) == [2, 4]
    assert share([Want(0, 10), Want(4, 0)], 6, bucket, 0) == [1, 4]
    assert share([Want(0, 10), Want(4, 0)], 6, bucket, 0) == [0, 4]


def test_no_pool_starves_another() -> None:
    assert share([Want(1000, 0), Want(2, 0), Want(1000, 0)], 10, TokenBucket(1, 1, 0), 0) == [4, 2, 4]


@given(
    st.lists(st.builds(Want, st.integers(0, 50), st.integers(0, 50)), max_size=6),
    st.integers(-5, 200),
    st.integers(1, 60),
)
def test_a_share_never_exceeds_room_tokens_or_wants(wants: list[Want], room: int, tokens: int) -> None:
    granted = share(wants, room, TokenBucket(1, tokens, 0), 0)
    urgent, refill = sum(want.urgent for want in wants), sum(want.refill for want in wants)
    assert all(0 <= got <= want.urgent + want.refill for got, want in zip(granted, wants, strict=True))
    assert sum(granted) == min(max(0, room), urgent + min(refill, tokens))
