"""Drafting in transformers' own `generate` changes nothing but the number of passes (extra ``torch``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sooner.control.fixed import FixedController
from sooner.draft.random import RandomDrafter
from sooner.errors import DraftError, InvalidRequest
from sooner.protocols import Context
from sooner.tree import chain
from sooner.types import Draft, Rows, Step

pytestmark = pytest.mark.convert

V = 32
END, OTHER_END, PAD = 0, 3, 2
NEW = 40

_SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": V,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": END,
    "pad_token_id": PAD,
}


def tiny(name: str = "Llama", seed: int = 0, **more: Any) -> Any:
    """A model with sharp rows; left to itself it falls into loops, which drafts foresee."""
    import torch
    import transformers

    torch.manual_seed(seed)
    config = getattr(transformers, f"{name}Config")(**{**_SHAPE, **more})
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(0.3 / float(parameter.std()))
    return model


def batch(lengths: Sequence[int], seed: int = 0) -> dict[str, Any]:
    """Prompts of these lengths, side by side, filled up on the left."""
    import torch

    torch.manual_seed(seed)
    ids = torch.randint(4, V, (len(lengths), max(lengths)))
    mask = torch.ones_like(ids)
    for row, length in enumerate(lengths):
        mask[row, : max(lengths) - length] = 0
    return {"input_ids": ids.masked_fill(mask == 0, PAD), "attention_mask": mask}


def both(fast: Any, inputs: dict[str, Any], make: Callable[[], dict[str, Any]], seed: int = 5) -> tuple[Any, Any]:
    """Plain `generate` and the drafting one, each with fresh options and the same seed."""
    import torch

    found = []
    for generate in (fast.model.generate, fast.generate):
        torch.manual_seed(seed)
        found.append(generate(**inputs, **{"max_new_tokens": NEW, **make()}))
    return found[0], found[1]


def same(fast: Any, inputs: dict[str, Any], make: Callable[[], dict[str, Any]], seed: int = 5) -> bool:
    plain, drafted = both(fast, inputs, make, seed)
    return bool(plain.shape == drafted.shape and (plain == drafted).all())


class Counting:
    """A processor with a state: every third token is another one's turn; wrong if called twice or too early."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.calls += 1
        if self.calls % 3 == 0:
            scores = scores.clone()
            scores[:, 4 + self.calls % 7] += 6.0
        return scores


def every(count: int) -> Any:
    """A criterion with a state: stops at its ``count``-th call."""
    import torch
    from transformers import StoppingCriteria

    class Every(StoppingCriteria):  # type: ignore[misc]  # transformers is not in the venv that is checked
        calls = 0

        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            self.calls += 1
            return torch.full((input_ids.shape[0],), self.calls >= count)

    return Every()


OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "repetition penalty": lambda: {"repetition_penalty": 1.2},
    "no repeated n-gram": lambda: {"no_repeat_ngram_size": 4},
    "bad words": lambda: {"bad_words_ids": [[5], [6, 7], [9]]},
    "least length": lambda: {"min_new_tokens": 20},
    "greatest length": lambda: {"max_new_tokens": 7},
    "several ends": lambda: {"eos_token_id": [END, OTHER_END, 11]},
    "no end": lambda: {"eos_token_id": None},
    "bias": lambda: {"sequence_bias": {(8,): 2.0, (4, 5): -3.0}},
    "allowed tokens": lambda: {"prefix_allowed_tokens_fn": lambda row, ids: list(range(4 + row, V, 2))},
    "a processor with a state": lambda: {"logits_processor": [Counting()]},
    "a criterion with a state": lambda: {"stopping_criteria": [every(13)]},
    "sampling": lambda: {"do_sample": True, "temperature": 0.6},
    "sampling from few": lambda: {"do_sample": True, "top_k": 4, "top_p": 0.9, "repetition_penalty": 1.1},
    "several answers": lambda: {"do_sample": True, "num_return_sequences": 2},
}


@pytest.mark.parametrize("lengths", [(9,), (12, 5, 8)], ids=["one", "batch"])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_text_is_that_of_plain_generate(fast: Any, name: str, lengths: Sequence[int]) -> None:
    make = OPTIONS[name]
    for seed in range(2):
        assert same(fast, batch(lengths, seed), make, seed), f"{name}, prompts {seed}"


def test_drafts_are_accepted_and_save_passes(fast: Any) -> None:
    fast.generate(**batch([9]), max_new_tokens=NEW, eos_token_id=None)
    figures = fast.last
    assert figures.tokens == NEW
    assert 0 < figures.accepted <= figures.drafted
    assert figures.passes + figures.accepted == NEW
    assert figures.acceptance_length > 1.2


class Unverified:
    """Negative control: a run that takes its drafts on trust."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        from sooner.integrations.transformers_loop import Run

        commit = Run._commit

        def trusting(run: Any, row: Any) -> Any:
            token = commit(run, row)
            if run.trusted:
                run.ids[:, -1] = torch.tensor(run.trusted.pop(0))
                return run.ids[:, -1]
            return token

        def accept(run: Any, logits: Any, draft: Any) -> int:
            run.trusted = draft.T.tolist()
            return int(self.accept(run, logits, draft))

        self.accept = Run._accept
        monkeypatch.setattr(Run, "_commit", trusting)
        monkeypatch.setattr(Run, "_accept", accept)


def test_unverified_drafts_would_be_caught(fast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fast.drafter = RandomDrafter(vocab_size=V)
    assert same(fast, batch([9]), dict)
    Unverified(monkeypatch)
    assert not same(fast, batch([9]), dict)


def test_a_cache_that_is_not_cut_would_be_caught(fast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import DynamicCache

    fast.drafter = RandomDrafter(vocab_size=V)
    monkeypatch.setattr(DynamicCache, "crop", lambda *_: None)
    assert not same(fast, batch([9]), dict)


@pytest.mark.parametrize("malicious", [False, True])
def test_no_drafter_changes_the_text(fast: Any, malicious: bool) -> None:
    fast.drafter = RandomDrafter(vocab_size=V, tree=True, malicious=malicious, seed=3)
    for name in ("plain", "sampling", "a processor with a state", "several ends"):
        assert same(fast, batch((12, 5, 8)), OPTIONS[name]), name
    assert fast.drafter is not None


class Raising:
    """A drafter that fails after a while."""

    name = "raising"

    def __init__(self) -> None:
        self.asked = 0

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        self.asked += 1
        if self.asked > 3:
            raise RuntimeError("no more")
        return [chain([5, 6], 0.9, self.name) for _ in contexts]

    def observe(self, step: Step, rows: Rows) -> None:
        assert rows.logits.shape == (1 + len(step.draft), V)

    def forget(self, id: int) -> None:
        raise RuntimeError("not even that")


def test_a_drafter_that_raises_is_off(fast: Any, caplog: pytest.LogCaptureFixture) -> None:
    fast.drafter = Raising()
    assert same(fast, batch([9]), OPTIONS["no end"])
    assert fast.drafter is None
    assert "drafter raising failed and is off" in caplog.text


def cache_name(model: Any) -> str:
    from sooner.targets.torch.cache import cache_name as name

    return name(model)


def test_scores_logits_and_cache_are_those_of_plain_generate(fast: Any) -> None:
    wanted = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    plain, drafted = both(fast, batch((12, 5, 8)), lambda: {**wanted, "repetition_penalty": 1.3})
    assert type(plain) is type(drafted)
    assert (plain.sequences == drafted.sequences).all()
    for name in ("scores", "logits"):
        ours, theirs = getattr(drafted, name), getattr(plain, name)
        assert len(ours) == len(theirs)
        assert max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)) < 1e-3
    held = [getattr(out, cache_name(fast.model)).get_seq_length() for out in (plain, drafted)]
    assert held[0] == held[1]


def test_a_cache_is_carried_on(fast: Any) -> None:
    """The next turn of a chat goes on from the cache of the one before."""
    from transformers import DynamicCache

    found, name = [], cache_name(fast.model)
    for generate in (fast.model.generate, fast.generate):
        ids, cache = batch([9])["input_ids"], DynamicCache()
        for _ in range(3):
            ids = generate(input_ids=ids, **{name: cache}, max_new_tokens=12, eos_token_id=None)
        found.append(ids.tolist())
    assert found[0] == found[1]


def test_a_prompt_of_embeddings(fast: Any) -> None:
    """As long as what a step feeds, so that one might be taken for the other."""
    rows = fast.model.get_input_embeddings()(batch([7])["input_ids"])
    for length in (2, 7):
        assert same(fast, {"inputs_embeds": rows[:, :length].detach()}, OPTIONS["no end"])


class Listening:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def put(self, value: Any) -> None:
        self.heard.append(value.tolist())

    def end(self) -> None:
        self.heard.append("end")


def test_a_streamer_hears_the_same(fast: Any) -> None:
    plain, drafted = Listening(), Listening()
    fast.model.generate(**batch([9]), max_new_tokens=NEW, streamer=plain)
    fast.generate(**batch([9]), max_new_tokens=NEW, streamer=drafted)
    assert plain.heard == drafted.heard
    assert plain.heard[-1] == "end"


def letters() -> Any:
    """A tokenizer of one letter per token."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({chr(97 + i) if i < 26 else f"<{i}>": i for i in range(V)}, unk_token="<31>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<31>")


def test_stop_strings(fast: Any) -> None:
    tokenizer, inputs = letters(), batch([9])
    text = tokenizer.decode(fast.model.generate(**inputs, max_new_tokens=20)[0, 9:])
    stop = text[11:14]
    assert same(fast, inputs, lambda: {"stop_strings": [stop], "tokenizer": tokenizer})
    assert fast.last.tokens < 20
    with pytest.raises(InvalidRequest, match="pass tokenizer"):
        fast.generate(**inputs, stop_strings=[stop])


def test_stop_strings_in_a_configuration(fast: Any) -> None:
    from transformers import GenerationConfig

    tokenizer, inputs = letters(), batch([9])
    text = tokenizer.decode(fast.model.generate(**inputs, max_new_tokens=20)[0, 9:])
    config = GenerationConfig(stop_strings=[text[11:14]], max_new_tokens=NEW)
    plain = fast.model.generate(**inputs, generation_config=config, tokenizer=tokenizer)
    assert (plain == fast.generate(**inputs, generation_config=config, tokenizer=tokenizer)).all()
    assert config.stop_strings == [text[11:14]]


@pytest.mark.parametrize(("name", "more"), [("Mistral", {"sliding_window": 12}), ("Qwen3", {})])
def test_sliding_windows(name: str, more: dict[str, Any]) -> None:
    from sooner.integrations.transformers import speed_up

    fast = speed_up(tiny(name, **more), budget=6)
    for option in ("plain", "no end", "sampling"):
        assert same(fast, batch((20, 9)), OPTIONS[option]), option
    assert fast.last.accepted


def test_drafters_by_name(model: Any) -> None:
    from sooner.integrations.transformers import speed_up

    with pytest.raises(DraftError, match="layerskip"):
        speed_up(model, draft="layerskip")
    with pytest.raises(DraftError, match="needs the model's tokenizer"):
        speed_up(model, draft="kind=model,path=x")
    for draft in ("ngram", ["suffix", "memory"], None):
        assert same(speed_up(model, draft=draft), batch([9]), OPTIONS["no end"]), draft


def test_the_controller_measures_the_model_and_leaves_the_text_alone(model: Any) -> None:
    from sooner.integrations.transformers import speed_up

    fast = speed_up(model)
    for lengths in ((9,), (12, 5, 8), (7,)):
        assert same(fast, batch(lengths), OPTIONS["sampling"])
    assert isinstance(speed_up(model, controller=FixedController(2))._given, FixedController)


def test_in_place_of_the_models_own(model: Any) -> None:
    """Code that calls ``model.generate`` is served, too, and the model is left as it was."""
    from sooner.integrations.transformers import speed_up

    plain = model.generate(**batch([9]), max_new_tokens=NEW)
    other = tiny()
    other.generate = speed_up(other).generate
    assert (other.generate(**batch([9]), max_new_tokens=NEW) == plain).all()
    del other.generate
    assert (other.generate(**batch([9]), max_new_tokens=NEW) == plain).all()
