"""``sooner audit --url``: servers that behave, servers that do not, and sooner's own on a socket."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from fake_server import Fake, listening

from commandline import Joined, Result, invoke
from sooner.audit import asking
from sooner.audit.asking import Reply
from sooner.audit.parity import compare_replies
from sooner.control.fixed import FixedController
from sooner.engine import Engine
from sooner.remote import Endpoint, RemoteError
from sooner.server import Service, Settings
from sooner.server.host import bind, serve
from sooner.targets.toy import ToyTarget
from toy import ToyCodec, TreeDrafter, V

FEW = ("--tokens", "200", "--max-tokens", "8", "-t", "0", "-t", "1", "--batch", "2")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(asking, "_TRIES", 2)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


def audited(*fakes: Fake, options: tuple[str, ...] = (), draws: int = 200) -> tuple[Result, dict[str, Any]]:
    with suppress_nothing() as stack:
        urls = [word for fake in fakes for word in ("--url", stack(listening(fake)))]
        out = Path("/tmp") / f"audit-{threading.get_ident()}-{id(fakes)}.json"
        result = invoke("audit", *urls, *FEW, "--draws", str(draws), "--json", str(out), *options)
    record: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    out.unlink(missing_ok=True)
    return result, record


@contextmanager
def suppress_nothing() -> Iterator[Any]:
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield stack.enter_context


def test_a_server_whose_speculation_changes_nothing_is_cleared() -> None:
    fake = Fake()
    result, record = audited(fake)
    assert result.code == 0, result.out
    text = " ".join(result.out.split())
    assert "identical: " in text
    assert "bit for bit" in text
    assert "negative controls: 2 of 2 caught" in text
    plain = [body for body in fake.bodies if body.get("draft") == "none"]
    assert 0.3 < len(plain) / len(fake.bodies) < 0.7
    assert record["findings"]["drafted"] > 0 == record["findings"]["drafted_plain"]


def test_two_servers() -> None:
    result, _ = audited(Fake(speculates=False), Fake())
    assert result.code == 0
    assert " and 127.0.0.1" in " ".join(result.out.split())


@pytest.mark.parametrize(
    ("fake", "said"),
    [
        (Fake(drafted="wrong"), "answers change with speculation"),
        (Fake(drafted="bent"), "another distribution"),
        (Fake(drafted="placeholders"), "placeholders"),
        (Fake(drafted="bent", logprobs="none"), "another distribution"),
        (Fake(drafted="bent", seeds=False), "another distribution"),
        (Fake(drafted="near"), "equal up to rounding"),
        (Fake(drafted="wrong", logprobs="refused"), "answers change with speculation"),
    ],
    ids=lambda value: f"{value.drafted}-{value.logprobs}" if isinstance(value, Fake) else "",
)
def test_a_difference_is_found(fake: Fake, said: str) -> None:
    result, _ = audited(fake)
    assert result.code == 1, result.out
    assert said in " ".join(result.out.split())


@pytest.mark.parametrize(
    ("fake", "note"),
    [
        (Fake(drafted="other texts"), "consistent: "),
        (Fake(seeds=False), "does not repeat itself with the same seed"),
        (Fake(logprobs="none"), "there are no log-probabilities"),
        (Fake(logprobs="refused"), "refuses log-probabilities"),
        (Fake(failing=12), "identical: "),
        (Fake(failing=12, how="drop"), "identical: "),
    ],
    ids=lambda value: f"{value.drafted}-{value.logprobs}-{value.seeds}-{value.how}" if isinstance(value, Fake) else "",
)
def test_what_a_server_cannot_do_is_said_and_the_rest_is_audited(fake: Fake, note: str) -> None:
    result, _ = audited(fake)
    assert result.code == 0, result.out
    assert note in " ".join(result.out.split())


@pytest.mark.parametrize(
    ("fake", "doubt"),
    [
        (Fake(switch=False), "speculated in the plain requests too"),
        (Fake(speculates=False), "the server drafted nothing"),
        (Fake(tells=False), "does not tell whether it speculates"),
        (Fake(failing=2, how="garbage"), "brought no answer"),
    ],
)
def test_where_nothing_can_be_told_that_is_the_verdict(fake: Fake, doubt: str) -> None:
    result, _ = audited(fake)
    assert result.code == 2, result.out
    assert doubt in " ".join(result.out.split())


def test_the_user_may_vouch_for_a_switch() -> None:
    fake = Fake(tells=False)
    result, _ = audited(fake, options=("--plain", '{"draft": "none", "more": 1}'))
    assert result.code == 0
    assert any(body.get("more") == 1 for body in fake.bodies)


def test_too_few_answers_are_not_called_a_proof() -> None:
    result, _ = audited(Fake(drafted="other texts"), draws=20)
    assert result.code == 2
    assert "raise --draws" in " ".join(result.out.split())
    none, _ = audited(Fake(drafted="other texts"), draws=0)
    assert none.code == 2


def test_a_server_that_does_not_repeat_itself_is_no_measure() -> None:
    result, record = audited(Fake(steady=False))
    assert "does not repeat itself at temperature 0" in json.dumps(record)
    assert "DIFFERENT" not in result.out


@pytest.mark.parametrize("how", ["500", "drop", "garbage"])
def test_a_server_that_always_fails(how: str) -> None:
    result, _ = audited(Fake(failing=1, how=how))
    assert result.code == 2
    assert "nothing could be audited" in " ".join(result.err.split())


def test_keys() -> None:
    fake = Fake(key="secret")
    refused, _ = audited(fake)
    assert refused.code == 2
    assert "a key is required" in " ".join(refused.err.split())
    result, record = audited(fake, options=("--api-key", "secret"))
    assert result.code == 0
    assert "secret" not in result.out + result.err + json.dumps(record)


def test_it_goes_on_where_it_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    from sooner.audit import server

    whole = server.ServerAudit._statistics
    fake = Fake()

    def stopped(self: Any, told: Any) -> None:
        raise KeyboardInterrupt

    with listening(fake) as url:
        arguments = ("audit", "--url", url, *FEW, "--draws", "40")
        monkeypatch.setattr(server.ServerAudit, "_statistics", stopped)
        assert invoke(*arguments).code == 130
        before = fake.asked
        monkeypatch.setattr(server.ServerAudit, "_statistics", whole)
        result = invoke(*arguments)
    assert result.code == 0
    assert "going on where it ended" in result.err
    assert fake.asked - before == 80


@contextmanager
def sooners_own(target: ToyTarget) -> Iterator[str]:
    """Sooner's server on a toy model that speculates badly."""
    engine = Engine(
        target, ToyCodec(), name="toy", template=Joined(), drafter=TreeDrafter(0), controller=FixedController(6)
    )
    service = Service(lambda: engine, Settings())
    sock = bind("127.0.0.1", 0)
    thread = threading.Thread(target=serve, args=(service, sock))
    thread.start()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    try:
        for _ in range(2000):
            with suppress(RemoteError):
                Endpoint(url).ask("/models")
                break
            threading.Event().wait(0.01)
        yield url
    finally:
        service.on_failure()
        thread.join()


def test_sooners_own_server_is_identical() -> None:
    with sooners_own(ToyTarget(V)) as url:
        result = invoke("audit", "--url", url, *FEW, "--draws", "40")
    assert result.code == 0, result.out + result.err
    assert "identical: " in result.out
    assert "toy at 127.0.0.1" in " ".join(result.out.split())


def test_sooners_own_server_on_a_broken_model_is_caught() -> None:
    with sooners_own(ToyTarget(V, row_dependent=True)) as url:
        result = invoke("audit", "--url", url, *FEW, "--draws", "0")
    assert result.code == 1, result.out + result.err


def test_parity_counts_bits_and_names_the_first_difference() -> None:
    tops = ((("x", -0.1), ("y", -0.3)),) * 3
    plain = Reply("xyx", ("x", "y", "x"), (-0.1, -0.3, -0.1), tops)
    same = compare_replies(plain, plain)
    assert (same.kind, same.compared, same.equal, same.largest) == ("same", 3, 3, 0.0)
    moved = compare_replies(plain, Reply("xyx", ("x", "y", "x"), (-0.1, -0.4, -0.1), tops))
    assert (moved.kind, moved.equal) == ("same", 2)
    assert moved.largest == pytest.approx(0.1)
    tie = compare_replies(plain, Reply("xyy", ("x", "y", "y"), (-0.1, -0.3, -0.3), tops))
    assert (tie.kind, tie.position, tie.wanted, tie.got) == ("numeric near-tie", 2, "x", "y")
    assert tie.margin == pytest.approx(0.2)
    far = compare_replies(plain, Reply("xyz", ("x", "y", "z"), (-0.1, -0.3, -5.0), tops))
    assert (far.kind, far.margin) == ("difference", None)
    longer = compare_replies(plain, Reply("xyxx", ("x", "y", "x", "x"), (-0.1,) * 4, tops))
    assert longer.position == 3
    filled = compare_replies(plain, Reply("xyx", ("x", "y", "x"), (0.0, -0.3, -0.1), tops))
    assert filled.kind == "placeholder"
