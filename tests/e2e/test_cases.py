"""Every case, over each version of HTTP, through the SDK."""

from __future__ import annotations

from typing import Any

import pytest

from stokehold.transport import Http
from tests.e2e import replay
from tests.e2e.service import Service


@pytest.mark.parametrize("http", [1, 2, 3])
@pytest.mark.parametrize("case", [*replay.load("run.jsonl"), *replay.load("verdicts.jsonl")], ids=lambda case: str(case["id"]))
def test_run(service: Service, http: Http, case: dict[str, Any]) -> None:
    with service.client(http) as client:
        have = {language.name for language in client.languages()}
        missing = set(case.get("needs", [])) - have
        if missing:
            pytest.skip(f"no {', '.join(sorted(missing))} on this machine")
        assert replay.play(client, case) is None


@pytest.mark.parametrize("http", [1, 2, 3])
@pytest.mark.parametrize("case", replay.load("leases.jsonl"), ids=lambda case: str(case["id"]))
def test_lease(service: Service, http: Http, case: dict[str, Any]) -> None:
    with service.client(http) as client:
        assert replay.play(client, case) is None


@pytest.mark.parametrize("http", [1, 2, 3])
def test_the_version_asked_for_is_the_one_spoken(service: Service, http: Http) -> None:
    with service.client(http) as client:
        client.languages()
        reply = client._session.get(client.settings.url + "/v1/languages")
        assert reply.http_version == {1: 11, 2: 20, 3: 30}[http]
