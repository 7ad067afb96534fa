"""Who is let in, and that nothing crosses from one key to another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from serving import MESSAGES, client, raw, serving, toy_engine

from sooner.draft.memory import MemoryDrafter
from sooner.errors import InvalidRequest
from sooner.server import Settings
from sooner.server.host import is_loopback, local_names
from sooner.server.keys import Keys, read_keys


def test_each_key_has_its_salt_and_a_wrong_one_none() -> None:
    keys = Keys(["one", "two", "one"])
    assert len(keys) == 2
    salts = [keys.salt(f"Bearer {key}") for key in ("one", "two")]
    assert len({*salts, None}) == 3
    assert keys.salt("bearer  one ") == salts[0]
    for wrong in (None, "", "one", "Basic one", "Bearer", "Bearer onee", "Bearer On"):
        assert keys.salt(wrong) is None
    assert Keys([]).salt(None) == ""
    assert "one" not in str(salts[0])


def test_keys_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\n\none\n two \n")
    assert read_keys(str(path)) == ("one", "two")
    path.write_text("# none\n")
    with pytest.raises(InvalidRequest, match="no key"):
        read_keys(str(path))
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_keys(str(tmp_path / "absent"))


def test_without_a_key_only_health_and_version_answer() -> None:
    async def test() -> None:
        async with serving(settings=Settings(keys=("one",))) as (app, _), raw(app) as http:
            body = {"messages": MESSAGES, "max_tokens": 2}
            for headers in ({}, {"authorization": "Bearer two"}):
                for path in ("/v1/models", "/metrics", "/v1/nothing"):
                    reply = await http.get(path, headers=headers)
                    assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key"), path
                assert (await http.post("/v1/chat/completions", json=body, headers=headers)).status_code == 401
                assert (await http.get("/health", headers=headers)).status_code == 200
                assert (await http.get("/version", headers=headers)).status_code == 200
            right = {"authorization": "Bearer one"}
            assert (await http.post("/v1/chat/completions", json=body, headers=right)).status_code == 200
            assert (await http.get("/metrics", headers=right)).status_code == 200

    asyncio.run(test())


def test_a_page_elsewhere_cannot_reach_a_server_on_this_machine() -> None:
    async def test() -> None:
        async with serving(settings=Settings(hosts=local_names("127.0.0.1"))) as (app, _), raw(app) as http:
            for host, status in (("127.0.0.1:8000", 200), ("localhost", 200), ("[::1]:80", 200), ("evil.example", 403)):
                assert (await http.get("/v1/models", headers={"host": host})).status_code == status, host
            simple = {"content-type": "text/plain", "host": "localhost"}  # what a browser sends without asking first
            reply = await http.post("/v1/chat/completions", content=b'{"messages": []}', headers=simple)
            assert reply.status_code == 400

    asyncio.run(test())


def test_loopback_is_told_from_the_rest() -> None:
    assert [h for h in ("127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]") if not is_loopback(h)] == []
    assert [h for h in ("0.0.0.0", "::", "192.168.1.2", "example.com", "") if is_loopback(h)] == []


def test_neither_drafts_nor_the_cache_cross_keys() -> None:
    """One key's text, asked for again: with the same key the memory drafts it, with another nothing does."""

    async def test() -> list[int]:
        engine = toy_engine(drafter=MemoryDrafter())
        async with serving(engine, Settings(keys=("one", "two"))) as (app, _):
            drafted = []
            for key in ("one", "two", "one"):
                async with client(app, key) as api:
                    reply: Any = await api.chat.completions.create(
                        model="toy", messages=MESSAGES, seed=3, max_tokens=40, extra_body={"ignore_eos": True}
                    )
                    drafted.append(reply.model_extra["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"])
            return drafted

    first, other, again = asyncio.run(test())
    assert again > 10 > first
    assert other == first


def test_salts_reach_the_engine() -> None:
    async def test() -> None:
        async with serving(settings=Settings(keys=("one", "two"))) as (app, service):
            salts = []
            engine = service.ready.engine
            submit = engine.submit

            def noting(request: Any) -> Any:
                salts.append(request.salt)
                return submit(request)

            engine.submit = noting  # type: ignore[method-assign]  # to see what the engine is given
            for key, extra in (("one", {}), ("two", {}), ("one", {}), ("one", {"cache_salt": "x" * 100_000})):
                async with client(app, key) as api:
                    await api.chat.completions.create(model="toy", messages=MESSAGES, max_tokens=2, extra_body=extra)
            one, two, again, salted = salts
            assert one == again
            assert len({one, two, salted}) == 3
            assert len(salted) < 64  # what is cached is kept under it

    asyncio.run(test())
