"""What is refused at load, with the reason: windows, states, foreign inputs, damaged files, untested precisions."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from sooner.errors import CorruptModel, InvalidRequest, SoonerError, TargetError, UnsupportedModel
from sooner.store import ModelFiles
from sooner.targets.openvino import OpenVINOTarget, graph, load


@pytest.fixture(scope="module")
def paged(default_files: ModelFiles) -> ov.Model:
    return graph.paged_graph(ov.Core(), default_files.xml)


def refused(kind: type[SoonerError], message: str) -> Any:
    return pytest.raises(kind, match=f"^[^\n]*{message}[^\n]*$")


def test_a_sliding_window_is_refused_by_its_name_and_by_its_graph(default_files: ModelFiles) -> None:
    with refused(UnsupportedModel, "sliding window of 4096 tokens"):
        load(replace(default_files, sliding_window=4096))
    model = ov.Core().read_model(default_files.xml)
    graph._make_paged(model, default_files.xml)
    graph._refuse_unsupported(model, default_files.xml)
    attention = next(op for op in model.get_ordered_ops() if op.get_type_name() == "PagedAttentionExtension")
    attention.input(10).replace_source_output(ops.constant(np.int32(128)).output(0))
    with refused(UnsupportedModel, "sliding window"):
        graph._refuse_unsupported(model, default_files.xml)


def test_missing_and_foreign_inputs_are_named(paged: ov.Model) -> None:
    graph._check_inputs(paged, Path("model.xml"))
    lonely = ov.Model([ops.relu(ids := ops.parameter([-1], np.float32, name="input_ids"))], [ids])
    lonely.inputs[0].get_tensor().set_names({"input_ids"})
    with refused(TargetError, "position_ids, past_lens, .*key_cache.0.*pip install"):
        graph._check_inputs(lonely, Path("model.xml"))
    parameter = ops.parameter([-1], np.float32, name="token_type_ids")
    parameter.output(0).get_tensor().set_names({"token_type_ids"})
    paged.add_parameters([parameter])
    with refused(UnsupportedModel, "token_type_ids"):
        graph._check_inputs(paged, Path("model.xml"))
    paged.remove_parameter(parameter)


def test_a_model_without_attention_or_with_state_is_refused(tmp_path: Path) -> None:
    ids = ops.parameter([-1, 4], np.float32, name="input_ids")
    xml = tmp_path / "dense.xml"
    ov.save_model(ov.Model([ops.matmul(ids, ops.constant(np.ones((4, 4), np.float32)), False, False)], [ids]), xml)
    with refused(UnsupportedModel, "decoder-only"):
        graph.paged_graph(ov.Core(), xml)


def test_a_damaged_file_is_corrupt(tmp_path: Path, default_files: ModelFiles) -> None:
    xml = tmp_path / "cut.xml"
    xml.write_bytes(default_files.xml.read_bytes()[:20000])
    with refused(CorruptModel, "import the model again"):
        load(replace(default_files, xml=xml))


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"kv_precision": "u8"}, "kv_precision"),
        ({"precision": "f32", "kv_precision": "bf16"}, "kv_precision"),
        ({"precision": "int4"}, "precision"),
        ({"threads": 0}, "threads"),
    ],
)
def test_untested_options_are_refused(default_files: ModelFiles, options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        load(default_files, **options)
    assert refusal.value.param == param


def test_a_layer_that_does_not_exist_cannot_be_tapped(default_files: ModelFiles) -> None:
    with refused(UnsupportedModel, "no layer 30"):
        graph.paged_graph(ov.Core(), default_files.xml, taps=(30,))


def test_the_fingerprint_names_all_that_rows_depend_on(target: OpenVINOTarget, default_files: ModelFiles) -> None:
    print_ = target.fingerprint
    assert print_["model"] == default_files.sha256
    assert re.match(r"openvino \d+\.\d+", print_["engine"])
    assert print_["precision"] in ("bf16", "f32")
    assert print_["kv_precision"] in ("bf16", "f16", "f32")
    assert print_["processor"]


def test_the_plan_is_logged(default_files: ModelFiles, target: OpenVINOTarget) -> None:
    assert str(target.plan).startswith("memory: ")
    assert target.plan.pool_tokens >= 4096
