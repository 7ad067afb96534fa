"""Processors against plain definitions over the whole vocabulary, and the state a draft row must see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sooner.errors import InvalidRequest
from sooner.sampling import Processor, log_softmax, top_logprobs
from sooner.types import Bans, Logits, Probabilities, Sampling

V = 12


def row(seed: int) -> Logits:
    values = np.random.default_rng(seed).normal(size=V) * 3
    values[seed % V] = values[(seed + 1) % V]  # a tie, often
    return values.astype(np.float32)


def softmax(z: Probabilities) -> Probabilities:
    e: Probabilities = np.exp(z - z.max())
    e /= e.sum()
    return e


def reference(raw: Logits, s: Sampling, prompt: list[int], out: list[int]) -> Probabilities:
    """The textbook pipeline, token by token."""
    z = raw.astype(np.float64)
    for token in range(V):
        z[token] += s.logit_bias.get(token, 0.0)
        if s.repetition_penalty != 1 and token in prompt + out:
            z[token] = z[token] / s.repetition_penalty if z[token] > 0 else z[token] * s.repetition_penalty
        z[token] -= s.presence_penalty * (token in out) + s.frequency_penalty * out.count(token)
    if len(out) < s.min_tokens:
        z[[0, *s.stop_token_ids]] = -np.inf
    if s.temperature == 0:
        p = np.zeros(V)
        p[int(np.argmax(z))] = 1
        return p
    p = softmax(z / s.temperature)
    p = np.where(p >= s.min_p * p.max(), p, 0)
    order = sorted(range(V), key=lambda i: (-p[i], i))
    if s.top_k:
        p[order[s.top_k :]] = 0
    p /= p.sum()
    p = keep(p, sorted(range(V), key=lambda i: (-p[i], i)), s.top_p)
    with np.errstate(divide="ignore", invalid="ignore"):
        surprise = -np.log(p)
        entropy = float(np.nansum(p * np.where(p > 0, surprise, 0)))
        distance = np.abs(surprise - entropy)
    return keep(p, sorted(range(V), key=lambda i: (distance[i], i)), s.typical_p)


def keep(p: Probabilities, order: list[int], mass: float) -> Probabilities:
    if mass >= 1:
        return p
    total, kept = 0.0, []
    for i in order:
        kept.append(i)
        total += p[i]
        if total >= mass:
            break
    out = np.zeros(V)
    out[kept] = p[kept]
    out /= out.sum()
    return out


options = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        "top_k": st.sampled_from([0, 1, 4, 50]),
        "top_p": st.sampled_from([1.0, 0.83, 0.31]),
        "min_p": st.sampled_from([0.0, 0.07]),
        "typical_p": st.sampled_from([1.0, 0.77]),
        "repetition_penalty": st.sampled_from([1.0, 1.3, 0.8]),
        "presence_penalty": st.sampled_from([0.0, 0.7]),
        "frequency_penalty": st.sampled_from([0.0, -2.0, 2.0]),
        "logit_bias": st.sampled_from([{}, {1: 3.0, 5: -100.0}]),
        "min_tokens": st.sampled_from([0, 3]),
        "stop_token_ids": st.sampled_from([(), (7,)]),
    }
)


@given(
    options=options,
    seed=st.integers(0, 500),
    out=st.lists(st.integers(0, V - 1), max_size=6),
    cut=st.integers(0, 6),
)
@settings(max_examples=400, deadline=None)
def test_a_row_behind_drafts_is_the_row_behind_the_same_tokens(
    options: dict[str, Any], seed: int, out: list[int], cut: int
) -> None:
    """Whether tokens were emitted or are only a draft path, the law is the textbook one."""
    sampling = Sampling(**options)
    prompt = [3, 3, 9]
    processor = Processor(sampling, vocab_size=V, seed=1, prompt=prompt, eos_ids=[0])
    for token in out[:cut]:
        processor.push(token)
    law = processor.law(row(seed), out[cut:])
    np.testing.assert_allclose(law.p, reference(row(seed), sampling, prompt, out), atol=1e-9)
    assert law.p[law.draw()] > 0


def test_what_a_model_does_not_write_has_no_chance() -> None:
    z = np.linspace(0, 3, V).astype(np.float32)
    processor = Processor(Sampling(temperature=1.0), vocab_size=V, seed=0, bans=Bans(never=(2,), first=(3, V - 1)))
    law = processor.law(z)
    assert (law.p[2], law.p[3], law.p[V - 1]) == (0, 0, 0)
    assert processor.law(z, [5]).p[2] == 0
    assert processor.law(z, [5]).p[3] > 0
    processor.push(5)
    assert processor.law(z).p[2] == 0
    assert processor.law(z).draw() != 2
    assert processor.law(z).p[V - 1] > 0


def test_bad_words_ban_only_their_last_token_after_the_others() -> None:
    z = np.zeros(V, np.float32)
    processor = Processor(Sampling(temperature=1.0), vocab_size=V, seed=0, prompt=[1], bad_words=[[4, 5], [6]])
    assert processor.law(z).p[5] > 0
    assert processor.law(z).p[6] == 0
    assert processor.law(z, [4]).p[5] == 0
    processor.push(4)
    assert processor.law(z).p[5] == 0
    assert processor.law(z, [4, 4]).p[5] == 0
    assert processor.law(z, [3]).p[5] > 0
    assert Processor(Sampling(), vocab_size=V, seed=0, prompt=[4], bad_words=[[4, 5]]).law(z).p[5] == 0


def test_a_ban_of_everything_is_void() -> None:
    processor = Processor(Sampling(), vocab_size=V, seed=0, bad_words=[[i] for i in range(V)])
    assert processor.law(row(3)).draw() == int(row(3).argmax())


def test_the_draw_has_the_law_of_p() -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9)
    counts = np.zeros(V)
    processor = Processor(sampling, vocab_size=V, seed=5)
    for _ in range(8000):
        counts[processor.law(row(8)).draw()] += 1
        processor.push(0)
    p = Processor(sampling, vocab_size=V, seed=5).law(row(8)).p
    kept = p > 0
    assert (counts[~kept] == 0).all()
    chi = ((counts[kept] - p[kept] * 8000) ** 2 / (p[kept] * 8000)).sum()
    assert chi < 40


def test_raw_logprobs_ignore_processors_and_processed_ones_do_not() -> None:
    raw = Processor(Sampling(temperature=0.5, top_k=2, logprobs=3), vocab_size=V, seed=0).logprob(row(4), 2)
    assert raw.logprob == pytest.approx(float(np.log(softmax(row(4).astype(np.float64)))[2]))
    assert [p for _, p in raw.top] == sorted((p for _, p in raw.top), reverse=True)
    processed = Processor(
        Sampling(temperature=0.5, top_k=2, logprobs=3, logprobs_mode="processed"), vocab_size=V, seed=0
    ).logprob(row(4), int(row(4).argmax()))
    assert np.exp(processed.logprob) == pytest.approx(max(softmax(np.sort(row(4).astype(np.float64))[-2:] / 0.5)))
    assert processed.top[2][1] == -np.inf


def test_top_logprobs_break_ties_by_id() -> None:
    logprobs = log_softmax(np.zeros(V, np.float32))
    assert [i for i, _ in top_logprobs(logprobs, 5, 4).top] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", "hot"),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("top_k", 2.5),
        ("min_p", -1.0),
        ("typical_p", 2.0),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 3.0),
        ("frequency_penalty", -2.1),
        ("logit_bias", {3: 1000.0}),
        ("logit_bias", {-3: 1.0}),
        ("max_tokens", 0),
        ("max_tokens", True),
        ("min_tokens", -1),
        ("stop", ("",)),
        ("stop", "text"),
        ("seed", -1),
        ("seed", 2**64),
        ("n", 0),
        ("logprobs", -1),
        ("logprobs_mode", "both"),
        ("verify", "hope"),
        ("bad_words", ("",)),
        ("stop_token_ids", (-1,)),
        ("ignore_eos", "yes"),
    ],
)
def test_every_bad_parameter_is_named(name: str, value: object) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(InvalidRequest, match=name) as caught:
        Sampling(**options)
    assert caught.value.param == name
    assert "\n" not in str(caught.value)
