"""Text to token ids and back: the model's tokenizer, and decoding that may stop after any token.

Knows a ``tokenizer.json`` and how its tokens map to bytes. Does not know models, chat formats or stop strings.

Decoding law: a text is the bytes of its tokens, one after another, read as UTF-8 with U+FFFD for what is invalid
(special tokens and ids outside the vocabulary have no bytes). `Detokenizer` gives the same text piece by piece.
"""

from __future__ import annotations

import codecs
import json
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sooner.errors import CorruptModel, InvalidRequest, ModelNotFound, UnsupportedModel, one_line

if TYPE_CHECKING:
    import tokenizers

__all__ = ["Detokenizer", "SourceTokenizer", "TextCodec", "Tokenizer"]


class TextCodec(Protocol):
    """What the engine needs of a tokenizer. The toy target brings its own; models use `Tokenizer`."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id that has a meaning."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end a text."""
        ...

    def encode(self, text: str, *, special: bool = False, bos: bool = True) -> list[int]:
        """The ids of ``text``; see `Tokenizer.encode`."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``."""
        ...

    def token_bytes(self, id: int) -> bytes:
        """What token ``id`` adds to the text, as UTF-8 bytes; empty for special ids and ids outside the map."""
        ...

    def detokenizer(self) -> Detokenizer:
        """A fresh incremental decoder."""
        ...


class Detokenizer:
    """Decodes one text token by token. Never emits half a character; what is in doubt waits for the next token.

    Law: the pushes joined with the flush equal ``decode`` of all tokens, however many tokens a step brings.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], *, strip_space: bool = False) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = strip_space

    def push(self, token: int) -> str:
        """The text that became certain with ``token``; may be empty."""
        return self._text(self._token_bytes(token), final=False)

    def flush(self) -> str:
        """The rest: an unfinished character becomes U+FFFD. The decoder then starts over."""
        return self._text(b"", final=True)

    def _text(self, data: bytes, *, final: bool) -> str:
        # SentencePiece puts a space in front of every text; decoding takes one back.
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data, final)


class Tokenizer:
    """A model's tokenizer, read from its ``tokenizer.json``; byte-level BPE and SentencePiece with byte fallback."""

    def __init__(
        self,
        core: tokenizers.Tokenizer,
        *,
        eos_ids: Iterable[int] = (),
        bos: str = "",
        eos: str = "",
        times: int | None = None,
    ) -> None:
        """Wrap ``core``. ``bos`` and ``eos`` are those tokens' texts, empty for none. Tokens from ``times`` on are a
        speech model's time stamps, which are no text.

        Raises `UnsupportedModel` if its decoder is neither byte-level nor SentencePiece-like.
        """
        self._core = core
        self._lock = threading.Lock()
        self._added = core.get_added_tokens_decoder()
        silent = float("inf") if times is None else times
        self._special = frozenset(i for i, token in self._added.items() if token.special or i >= silent)
        self._eos = frozenset(eos_ids)
        self._size = max(core.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self._bytes: dict[int, bytes] = {}
        self._piece, self._strip = _piece_reader(core)
        self._prefix = _prefix(core, self._eos)
        self.bos_token, self.eos_token = bos, eos

    @classmethod
    def load(cls, folder: str | Path, *, eos_ids: Iterable[int] | None = None) -> Tokenizer:
        """The tokenizer in ``folder``: ``tokenizer.json`` and, beside it, the usual Hugging Face configuration files.

        Raises `ModelNotFound`, `CorruptModel` or `UnsupportedModel`.
        """
        import tokenizers

        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise ModelNotFound(f"{folder} has no tokenizer.json; add the one from the model's Hugging Face page")
        try:
            core = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise CorruptModel(f"{path} cannot be read ({one_line(error)}); download it again") from error
        settings = _Settings(path.parent)
        ends = settings.eos_ids(core) if eos_ids is None else set(eos_ids)
        if settings.reads_sources:
            return SourceTokenizer(core, settings.id("eos"), settings.start, eos=settings.token("eos"))
        return cls(core, eos_ids=ends, bos=settings.token("bos"), eos=settings.token("eos"), times=settings.first_time)

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id that has a meaning (a model's logits rows may be longer)."""
        return self._size

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end a text."""
        return self._eos

    @property
    def special_ids(self) -> frozenset[int]:
        """The control tokens: they steer the model and are no text."""
        return self._special

    def encode(self, text: str, *, special: bool = False, bos: bool = True) -> list[int]:
        """The ids of ``text``.

        ``special``: whether the names of control tokens in ``text`` mean those tokens (a rendered chat template) or
        are plain characters (anything a user typed). ``bos``: whether ``text`` starts a sequence: then a model that
        wants a beginning-of-sequence token gets exactly one, also if the text already begins with it.
        A byte that the model has no token for (SmolLM2 lacks some control characters and unassigned planes) adds
        nothing. Raises `InvalidRequest` if ``text`` holds lone surrogates, which are no Unicode text.
        """
        with self._lock:
            self._core.encode_special_tokens = not special
            try:
                ids = list(self._core.encode(text, add_special_tokens=False).ids)
            except (TypeError, UnicodeEncodeError) as error:
                raise InvalidRequest("the text must be a string of valid Unicode (no lone surrogates)") from error
        if bos and ids[: len(self._prefix)] != self._prefix:
            return [*self._prefix, *ids]
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``; special tokens and ids outside the vocabulary have none."""
        data = b"".join(map(self.token_bytes, ids))
        return (data.removeprefix(b" ") if self._strip else data).decode("utf-8", "replace")

    def token_bytes(self, id: int) -> bytes:
        """What token ``id`` adds to the text, as UTF-8 bytes; empty for special ids and ids outside the map."""
        known = self._bytes.get(id)
        if known is None:
            known = self._bytes[id] = self._read(id)
        return known

    def token_name(self, id: int) -> str:
        """How the vocabulary writes token ``id``, control tokens too; empty for ids outside the map."""
        return self._core.id_to_token(id) or ""

    def detokenizer(self) -> Detokenizer:
        """A fresh incremental decoder."""
        return Detokenizer(self.token_bytes, strip_space=self._strip)

    def _read(self, id: int) -> bytes:
        if id in self._special or not 0 <= id < self._size:
            return b""
        if id in self._added:
            return str(self._added[id].content).encode()
        piece = self._core.id_to_token(id)
        return b"" if piece is None else self._piece(piece)


class SourceTokenizer(Tokenizer):
    """The tokenizer of a model with an encoder: a prompt's text is a source, ``end`` ends it, and the decoder's text
    begins with ``start``.

    Raises `UnsupportedModel` where the model puts more behind a source than its end.
    """

    def __init__(self, core: tokenizers.Tokenizer, end: int, start: Iterable[int], *, eos: str = "") -> None:
        super().__init__(core, eos_ids=[end], eos=eos)
        around = list(core.encode("", add_special_tokens=True).ids)
        at = around.index(end) if end in around else len(around)
        if around[at + 1 :]:
            raise UnsupportedModel(
                f"its tokenizer puts {len(around) - at - 1} more tokens behind a source's end, which sooner does not "
                "lay out; use another model"
            )
        self._before, self._behind = around[:at], [end, *start]

    def encode(self, text: str, *, special: bool = False, bos: bool = True) -> list[int]:
        """As `Tokenizer.encode`; with ``bos`` a whole prompt, up to where the decoder writes."""
        ids = super().encode(text, special=special, bos=False)
        return [*self._before, *ids, *self._behind] if bos else ids


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes (Radford et al. 2019, ``bytes_to_unicode``)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def _piece_reader(core: tokenizers.Tokenizer) -> tuple[Callable[[str], bytes], bool]:
    """How a piece of the vocabulary reads as bytes, and whether a text's first space is dropped."""
    state = json.loads(core.decoder.__getstate__()) if core.decoder else {}
    steps = state.get("decoders", [state])
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        alphabet = _byte_alphabet()

        def byte_level(piece: str) -> bytes:
            codes = [alphabet.get(character) for character in piece]
            return piece.encode() if None in codes else bytes(code for code in codes if code is not None)

        return byte_level, False
    if kinds & {"ByteFallback", "Metaspace"} or {"Replace", "Fuse"} <= kinds:
        return _sentence_piece, any(_strips(step) for step in steps)
    found = ", ".join(sorted(map(str, kinds)))
    raise UnsupportedModel(f"its tokenizer decodes with {found}; sooner reads byte-level BPE and SentencePiece")


def _strips(step: dict[str, Any]) -> bool:
    if step.get("type") == "Metaspace":
        return bool(step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space", True))
    return step.get("type") == "Strip" and step.get("content") == " " and step.get("start", 0) > 0


def _sentence_piece(piece: str) -> bytes:
    if match := re.fullmatch("<0x([0-9A-Fa-f]{2})>", piece):
        return bytes([int(match[1], 16)])
    return piece.replace("▁", " ").encode()


def _prefix(core: tokenizers.Tokenizer, eos_ids: frozenset[int]) -> list[int]:
    """What the model's post-processor puts before a text. An EOS it would put after it is not wanted: we go on."""
    ids = list(core.encode("", add_special_tokens=True).ids)
    while len(ids) > 1 and ids[-1] in eos_ids:
        ids.pop()
    return ids


class _Settings:
    """The Hugging Face configuration files beside a tokenizer; each may be missing."""

    def __init__(self, folder: Path) -> None:
        self._config = _read_json(folder / "tokenizer_config.json")
        self._generation = _read_json(folder / "generation_config.json")
        self._model = _read_json(folder / "config.json")

    @property
    def reads_sources(self) -> bool:
        """Whether the model has an encoder for text; one for sound has mel bands."""
        return bool(self._model.get("is_encoder_decoder")) and "num_mel_bins" not in self._model

    @property
    def first_time(self) -> int | None:
        """A speech model's first time stamp."""
        last = self._generation.get("no_timestamps_token_id")
        return last + 1 if isinstance(last, int) else None

    @property
    def start(self) -> list[int]:
        """What a decoder's text begins with."""
        forced = self._generation.get("forced_bos_token_id", self._model.get("forced_bos_token_id"))
        return [self.id("decoder_start"), *([forced] if isinstance(forced, int) else [])]

    def id(self, name: str) -> int:
        """The first token of that name. Raises `CorruptModel`."""
        for source in (self._generation, self._model):
            value = source.get(f"{name}_token_id")
            value = value[0] if isinstance(value, list) and value else value
            if isinstance(value, int):
                return value
        raise CorruptModel(f"the model's config.json names no {name}_token_id: copy it again from the model's page")

    def token(self, name: str) -> str:
        value = self._config.get(f"{name}_token")
        return str(value.get("content", "") if isinstance(value, dict) else value or "")

    def eos_ids(self, core: tokenizers.Tokenizer) -> set[int]:
        ids: set[int] = set()
        for source in (self._generation, self._model):
            value = source.get("eos_token_id")
            ids |= {int(i) for i in (value if isinstance(value, list) else [value]) if isinstance(i, int)}
            if ids:
                break
        own = core.token_to_id(self.token("eos")) if self.token("eos") else None
        return ids if own is None else ids | {own}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CorruptModel(f"{path} cannot be read ({one_line(error)}); download it again") from error
    return value if isinstance(value, dict) else {}
