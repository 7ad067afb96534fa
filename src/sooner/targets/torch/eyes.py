"""What a vision-language model of transformers makes of a picture: the tokens it takes in a text, and the rows there.

Knows image files (Pillow) and the model's own processor. Does not know caches, passes or messages.

No family's layout is written down here. A picture is put through the model alone, as its processor prepares it, up to
where its language model would begin: what that would be given at the picture's places are its rows and positions.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers

from sooner.errors import InvalidRequest, MissingExtra, SoonerError, TargetError, UnsupportedModel, one_line
from sooner.pictures import PictureToken
from sooner.targets.torch.cache import inner
from sooner.targets.torch.device import out_of_memory
from sooner.targets.torch.kept import Kept

__all__ = ["Eyes", "Picture", "has_eyes", "open_processor"]

_MOST_PIXELS = 64_000_000
"""Of one picture: more is refused before it is decoded."""


@dataclass(frozen=True, eq=False)
class Picture:
    """One picture as ``owner`` saw it. ``layout``: its token ids, the mark where ``rows`` ``[n, H]`` go. ``base``: the
    first id of its own. ``places``: ``[3, n]``, where its rows lie from the first on, of models that place pictures in
    three dimensions (Qwen2-VL, section 2.1), which then take ``shift`` positions more than it has tokens."""

    owner: Any
    base: int
    layout: tuple[int, ...]
    mark: int
    rows: Any
    places: Any
    shift: int

    @property
    def ids(self) -> int:
        """As `sooner.targets.torch.kept.Numbered`."""
        return int(self.rows.shape[0])

    def tokens(self) -> list[int]:
        """The layout with the picture's own ids."""
        own = (PictureToken(self.base + place, self, place) for place in range(self.ids))
        return [next(own) if token == self.mark else token for token in self.layout]


class _Reached(Exception):
    """The language model would begin now."""

    def __init__(self, embeds: Any, positions: Any) -> None:
        super().__init__()
        self.embeds, self.positions = embeds, positions


def has_eyes(config: Any) -> bool:
    """Whether such a model looks at pictures."""
    return type(config) in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def open_processor(folder: Path) -> Any:
    """The processor in ``folder``. One for films as well is opened for pictures alone: films need torchvision.

    Raises `MissingExtra` without Pillow, `UnsupportedModel` where it cannot be opened.
    """
    try:
        import PIL  # noqa: F401 - whether it is there
    except ImportError as error:
        raise MissingExtra("looking at pictures", "torch") from error
    try:
        return _opened(folder)
    except Exception as error:
        reason = one_line(error.__cause__ if isinstance(error.__cause__, Exception) else error)
        raise UnsupportedModel(
            f"the processor in {folder} cannot be opened ({reason}): install the package if it names one, or copy the "
            "processor's files again"
        ) from error


def _opened(folder: Path) -> Any:
    images = _image_processor(folder)
    words = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    settings, _ = transformers.ProcessorMixin.get_processor_dict(folder, local_files_only=True)
    name = settings.get("processor_class") or images.to_dict().get("processor_class")
    kind = getattr(transformers, str(name), None)
    if kind is None:
        return transformers.AutoProcessor.from_pretrained(folder, local_files_only=True, use_fast=False)
    takes = inspect.signature(kind.__init__).parameters
    own = {key: value for key, value in settings.items() if key in takes and not isinstance(value, Mapping)}
    films = {"video_processor": None} if "video_processor" in takes else {}
    return type(kind.__name__, (_Stills, kind), {})(**{**own, **films, "image_processor": images, "tokenizer": words})


def _image_processor(folder: Path) -> Any:
    """Pillow's own, where transformers has one: it needs no torchvision."""
    settings, _ = transformers.ImageProcessingMixin.get_image_processor_dict(folder, local_files_only=True)
    name = str(settings.get("image_processor_type", "")).removesuffix("Fast")
    for known in (f"{name}Pil", name):
        if name and (kind := getattr(transformers, known, None)) is not None:
            return _itself(kind).from_pretrained(folder, local_files_only=True)
    return transformers.AutoImageProcessor.from_pretrained(folder, local_files_only=True)


def _itself(kind: Any) -> Any:
    """The class behind the stand-in that transformers 5.5 puts before some that need no torchvision (Idefics 3's)."""
    return getattr(import_module(kind.__module__), kind.__name__, kind)


class _Stills:
    """Lets a processor do without its part for films."""

    def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
        """As transformers', which takes no None."""
        return None if argument is None else super().check_argument_for_proper_class(name, argument)  # type: ignore[misc]  # of the processor beside


class Eyes:
    """The eyes of ``model``. Pictures are decoded and encoded one at a time, and encoded once as long as a text shows
    them."""

    def __init__(self, model: Any, processor: Any, vocab_size: int) -> None:
        self._model = inner(model)
        self._processor = processor
        self._takes = frozenset(inspect.signature(self._model.forward).parameters)
        self.mark = self._mark()
        self.ends = self._ends()
        self._here = threading.local()
        self._kept: Kept[Picture] = Kept(vocab_size)
        _words(self._model).register_forward_pre_hook(self._reached, with_kwargs=True)

    def see(self, data: bytes) -> Picture:
        """What the model makes of an image file. Raises `InvalidRequest`, `TargetError`."""
        with self._kept.turn:  # one large picture's pixels in memory, not one for each thread
            image = _image(data)
            key = hashlib.sha256(repr(image.size).encode())
            key.update(image.tobytes())
            return self._kept.get(key.digest(), partial(self._encoded, image))

    def prepared(self, image: Any) -> dict[str, Any]:
        """What the processor makes of a text that is one picture: the model's inputs, on its device."""
        before, behind = self.ends
        text = "".join(self._processor.tokenizer.convert_ids_to_tokens([*before, self.mark, *behind]))
        given = self._processor(
            text=[text], images=[image], return_tensors="pt", add_special_tokens=False, return_mm_token_type_ids=True
        )
        dtype = self._model.dtype
        return {
            name: value.to(self._model.device, dtype if value.is_floating_point() else None)
            for name, value in given.items()
            if name in self._takes and torch.is_tensor(value)
        }

    def _encoded(self, image: Any) -> Picture:
        try:
            inputs = self.prepared(image)
            embeds, positions = self._reach(inputs)
        except SoonerError:
            raise
        except Exception as error:
            if out_of_memory(error):
                raise TargetError(
                    f"{self._model.device} is out of memory over a picture of {image.width} x {image.height} "
                    "pixels: make it smaller"
                ) from error
            raise InvalidRequest(
                f"the model cannot take this picture ({one_line(error)}): give another or another size", "messages"
            ) from error
        ids = inputs["input_ids"][0].tolist()
        before, behind = self.ends
        at = [i for i, token in enumerate(ids) if token == self.mark]
        places, shift = None, 0
        if positions is not None and positions.ndim == 3:
            own = positions[-3:, 0, at]
            places, shift = own - at[0], int(own.max()) + 1 - at[0] - len(at)
        layout = tuple(ids[len(before) : len(ids) - len(behind)])
        return Picture(self, self._kept.next, layout, self.mark, embeds[0, at].clone(), places, shift)

    @torch.inference_mode()
    def _reach(self, inputs: Mapping[str, Any]) -> tuple[Any, Any]:
        self._here.looking = True
        try:
            self._model(**inputs, use_cache=False)
        except _Reached as reached:
            return reached.embeds, reached.positions
        finally:
            self._here.looking = False
        raise UnsupportedModel(f"{type(self._model).__name__} hides its language model; use another model")

    def _reached(self, module: Any, given: Any, named: Mapping[str, Any]) -> None:
        if getattr(self._here, "looking", False) and (embeds := named.get("inputs_embeds")) is not None:
            raise _Reached(embeds, named.get("position_ids"))

    def _ends(self) -> tuple[list[int], list[int]]:
        """What a model wants before and behind a picture's tokens; templates write it themselves."""
        config = self._model.config
        start, end = (getattr(config, f"vision_{name}_token_id", None) for name in ("start", "end"))
        return ([start], [end]) if isinstance(start, int) and isinstance(end, int) else ([], [])

    def _mark(self) -> int:
        for owner in (self._model.config, self._processor):
            for name in ("image_token_id", "image_token_index"):
                if isinstance(value := getattr(owner, name, None), int):
                    return value
        raise UnsupportedModel(f"{type(self._model).__name__} names no image token; use another model")


def _words(model: Any) -> Any:
    """The language model inside, which transformers 4.57 finds only half-way down in some (Idefics 3's)."""
    found = model.get_decoder()
    return next((getattr(found, name) for name in ("language_model", "text_model") if hasattr(found, name)), found)


def _image(data: bytes) -> Any:
    """The file decoded, in RGB. Raises `InvalidRequest`."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise InvalidRequest(
                    f"the picture has {image.width} x {image.height} pixels and {_MOST_PIXELS // 10**6} million are "
                    "allowed: make it smaller",
                    "messages",
                )
            return ImageOps.exif_transpose(image).convert("RGB")
    except SoonerError:
        raise
    except Exception as error:  # decoders raise whatever they like over damaged files
        reason = "it is no image" if isinstance(error, UnidentifiedImageError) else one_line(error)
        raise InvalidRequest(
            f"the picture cannot be read ({reason}): give an undamaged PNG, JPEG, WebP or GIF file", "messages"
        ) from None
