"""What drafting in transformers' `generate` does not honour is refused by name, before anything runs."""

from __future__ import annotations

from typing import Any

import pytest
from test_transformers import batch, tiny

from sooner.errors import InvalidRequest, UnsupportedModel

pytestmark = pytest.mark.convert


REFUSED: dict[str, dict[str, Any]] = {
    "num_beams": {"num_beams": 2},
    "use_cache": {"use_cache": False},
    "cache_implementation": {"cache_implementation": "static"},
    "output_attentions": {"return_dict_in_generate": True, "output_attentions": True},
    "output_hidden_states": {"return_dict_in_generate": True, "output_hidden_states": True},
    "prompt_lookup_num_tokens": {"prompt_lookup_num_tokens": 4},
    "prefill_chunk_size": {"prefill_chunk_size": 4},
    "penalty_alpha": {"penalty_alpha": 0.5, "top_k": 4},
    "assistant_model": {"assistant_model": object()},
    "synced_gpus": {"synced_gpus": True},
    "custom_generate": {"custom_generate": "owner/name"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_honoured_is_refused_by_name(fast: Any, name: str) -> None:
    with pytest.raises(InvalidRequest, match=name) as caught:
        fast.generate(**batch([9]), max_new_tokens=4, **REFUSED[name])
    assert "\n" not in str(caught.value)


def test_a_setting_of_a_later_version_is_refused(fast: Any) -> None:
    from transformers import GenerationConfig

    config = GenerationConfig(max_new_tokens=4)
    config.fancy_new_setting = 3
    with pytest.raises(InvalidRequest, match="fancy_new_setting"):
        fast.generate(**batch([9]), generation_config=config)


def test_another_version_of_transformers_is_refused(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    from sooner.errors import TargetError
    from sooner.integrations.transformers import speed_up

    monkeypatch.setattr(transformers, "__version__", "4.30.0")
    with pytest.raises(TargetError, match=r"from 4\.57, before 6"):
        speed_up(model)


def test_models_whose_cache_cannot_be_cut_are_refused() -> None:
    from sooner.integrations.transformers import speed_up

    lfm = tiny("Lfm2", layer_types=["conv", "full_attention"])
    with pytest.raises(UnsupportedModel, match="cannot be cut back"):
        speed_up(lfm)
    with pytest.raises(UnsupportedModel, match="has no generate"):
        speed_up(object())
