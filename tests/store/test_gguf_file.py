from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import gguf as reference
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_gguf import write_gguf

from sooner.errors import CorruptModel, ModelNotFound, SoonerError, UnsupportedModel
from sooner.store.gguf_file import TENSOR_TYPES, read_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_reads_what_the_reference_reader_reads(tiny: Path) -> None:
    ours, theirs = read_gguf(tiny), reference.GGUFReader(tiny)
    assert [(t.name, list(t.shape), t.type, t.size) for t in ours.tensors] == [
        (t.name, [int(n) for n in t.shape], t.tensor_type.name, int(t.n_bytes)) for t in theirs.tensors
    ]
    assert ours.metadata["tokenizer.ggml.tokens"] == theirs.fields["tokenizer.ggml.tokens"].contents()
    assert ours.metadata["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)


def test_tensor_types_agree_with_ggml() -> None:
    known = {kind.value: (kind.name, *size) for kind, size in reference.GGML_QUANT_SIZES.items()}
    assert {kind: known[kind] for kind in TENSOR_TYPES} == dict(TENSOR_TYPES)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0, 1, exclude_max=True))
def test_any_truncation_is_named(tiny: Path, tmp_path: Path, cut: float) -> None:
    data = tiny.read_bytes()
    short = tmp_path / "short.gguf"
    short.write_bytes(data[: int(len(data) * cut)])
    with pytest.raises(CorruptModel) as caught:
        read_gguf(short)
    assert "\n" not in str(caught.value)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255))
def test_a_damaged_header_never_escapes_as_another_error(tiny: Path, tmp_path: Path, where: float, value: int) -> None:
    data = bytearray(tiny.read_bytes())
    data[int(20_000 * where)] = value
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(data)
    with contextlib.suppress(SoonerError):
        read_gguf(broken)


@pytest.mark.parametrize(
    ("head", "error", "says"),
    [
        (b"", CorruptModel, "not a GGUF file"),
        (b"PK\x03\x04rest", CorruptModel, "not a GGUF file"),
        (b"GGUF", CorruptModel, "truncated"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(32), UnsupportedModel, "version 1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(32), UnsupportedModel, "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), CorruptModel, "announces"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62), CorruptModel, "runs past its end"),
    ],
)
def test_refusals_say_what_is_wrong(tmp_path: Path, head: bytes, error: type[SoonerError], says: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(head)
    with pytest.raises(error, match=says):
        read_gguf(path)


def test_split_files_are_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "part.gguf", extra={"split.count": 3})
    with pytest.raises(UnsupportedModel, match="llama-gguf-split --merge"):
        read_gguf(path)


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="cannot be read"):
        read_gguf(tmp_path / "absent.gguf")


def test_wrongly_typed_metadata_is_damage(tmp_path: Path) -> None:
    read = read_gguf(write_gguf(tmp_path / "odd.gguf", extra={"odd.key": "text"}))
    with pytest.raises(CorruptModel, match=r"odd\.key has an unexpected type"):
        read.need("odd.key", int)
