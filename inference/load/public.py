"""Defines the object that ``vlmill.load`` returns, and reads the images that it is given."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vlmill.inference.load import scoring
from vlmill.inference.load.explaining import Explanation, encode_png, explain_image
from vlmill.inference.load.faults import warn
from vlmill.inference.load.model import (
    CLASSIFICATION,
    ENTAILMENT,
    REFCOCO,
    VQA,
    Classes,
    Floats,
    Grounded,
    LoadedModel,
    read_answer,
    read_boxes,
    read_classes,
)
from vlmill.runtime.files.paths import read_regular, to_path
from vlmill.schemas.errors import InputError
from vlmill.schemas.images.decode import Bounds, upright
from vlmill.schemas.rejects import Rejected
from vlmill.train.loading.images.crop import BOUNDS

# A path, encoded bytes, an open binary file, a PIL image, an array uint8 [H, W, 3] or [H, W], or a
# tensor [3, H, W], [1, H, W] or [H, W], of uint8 or of floats from 0 to 1.
ImageLike = Any


class Pretrained:
    """A checkpoint for your own images and texts, as ``vlmill.load`` opens it.

    An image is a path, encoded bytes, a file opened with mode "rb", a PIL image, a NumPy array
    (uint8 [height, width, 3] in red, green, blue, or [height, width]) or a PyTorch tensor (uint8,
    or floats from 0 to 1, [3, height, width], [1, height, width] or [height, width]).

    Which methods work depends on the head of the checkpoint; the others raise InputError, a
    ValueError, that states this. ``task`` names what the checkpoint was fine-tuned for.
    """

    def __init__(self, engine: LoadedModel) -> None:
        """Wraps an opened checkpoint; use ``vlmill.load``."""
        self._engine = engine

    def __repr__(self) -> str:
        loaded = self._engine.loaded
        return f"<{loaded.variant} of {loaded.path} on {self._engine.device}>"

    def __dir__(self) -> list[str]:
        """Lists the public methods."""
        return sorted(name for name in vars(type(self)) if not name.startswith("_"))

    @property
    def variant(self) -> str:
        """The model: "vilbert-classifier", "vlmo", ..."""
        return self._engine.loaded.variant

    @property
    def task(self) -> str | None:
        """What the checkpoint was fine-tuned for: "vqa", "classification", ...; None if nothing."""
        record = self._engine.loaded.task
        return None if record is None else record.name

    @property
    def labels(self) -> tuple[str, ...]:
        """The answers or classes of the head, in the order of its outputs; empty without any."""
        record = self._engine.loaded.task
        return () if record is None else record.labels

    @property
    def device(self) -> str:
        """Where the model computes: "cpu", "cuda:0", ..."""
        return str(self._engine.device)

    def score(self, images: Sequence[ImageLike], texts: Sequence[str]) -> Floats:
        """Scores every image with every text.

        Returns float32 [images, texts]: logits of the matching head, or cosines if the model has a
        contrastive head. An invalid image or text has NaN, and a warning gives the reason. Raises
        InputError for a model without either head.
        """
        request = (read_images(images), require_list(texts, "texts"))
        (scores,) = scoring.score_each(self._engine, [request])
        return scores

    def encode_images(self, images: Sequence[ImageLike]) -> Floats:
        """Returns unit vectors of images, float32 [images, D]; an invalid image has NaN.

        Raises InputError for a model that reads texts and images together.
        """
        return scoring.encode_images(self._engine, read_images(images))

    def encode_texts(self, texts: Sequence[str]) -> Floats:
        """Returns unit vectors of texts, float32 [texts, D]; products with image vectors rank them.

        Raises InputError for a model that reads texts and images together.
        """
        return scoring.encode_texts(self._engine, require_list(texts, "texts"))

    def answer(self, image: ImageLike, question: str) -> str:
        """Answers a question about an image with the most likely of the checkpoint's answers.

        Raises InputError for a checkpoint that was not fine-tuned for VQA, for an image that
        cannot be read, and for a question without a word.
        """
        return self._engine.run_one(VQA, read_answer, read_image_bytes(image), question)

    def ground(self, image: ImageLike, expression: str) -> Grounded:
        """Returns the detector's boxes that an expression refers to in an image, the best first.

        The result has ``boxes`` float32 [N, 4] (x1, y1, x2, y2 in pixels) and ``scores`` [N].
        Raises InputError for a checkpoint that was not fine-tuned for referring expressions, for an
        image that cannot be read, and for an expression without a word.
        """
        return self._engine.run_one(REFCOCO, read_boxes, read_image_bytes(image), expression)

    def classify(self, image: ImageLike, text: str = "") -> Classes:
        """Returns the classes of an image, or of an image with a text.

        The result has ``label``, the likeliest class, ``labels``, all that are predicted, and
        ``probabilities``, a dict of every class, the likeliest first. Raises InputError for a
        checkpoint that was not fine-tuned for classification, and for an image that cannot be read.
        """
        return self._engine.run_one(CLASSIFICATION, read_classes, read_image_bytes(image), text)

    def entail(self, image: ImageLike, statement: str) -> Classes:
        """Returns whether an image entails a statement, as :meth:`classify` does: the classes are
        those of the training, such as entailment, neutral and contradiction.

        Raises InputError for a checkpoint that was not fine-tuned for entailment, for an image that
        cannot be read, and for a statement without a word.
        """
        return self._engine.run_one(ENTAILMENT, read_classes, read_image_bytes(image), statement)

    def explain(self, image: ImageLike, text: str = "") -> Explanation:
        """Shows which regions of an image a score rests on, by removing each of them (occlusion,
        arXiv:1311.2901, sec. 4.2). A model that reads pixels has a grid of squares made grey.

        The score is the logit of the predicted answer or class or, of a model without such a head,
        that of the text with the image. The result has ``image``, a PIL image with the regions in
        orange (the score falls without them) and blue (it rises), ``boxes`` float32 [R, 4] and
        ``weights`` [R], by how much the score falls without each, the strongest first; and the
        ``score`` of ``label``. It costs one computation for each region. Raises InputError as the
        method of that head does, and for an image with fewer than two regions.
        """
        return explain_image(self._engine, read_image_bytes(image), text)


def read_images(images: Sequence[ImageLike]) -> list[bytes]:
    """Returns each image's bytes, as :func:`read_image_bytes` does."""
    return [read_image_bytes(image) for image in require_list(images, "images")]


def read_image_bytes(image: ImageLike, bounds: Bounds = BOUNDS) -> bytes:
    """Returns an image's bytes: the bytes of a file, or a PNG of the upright pixels of an image,
    array or tensor. An open file is read to its end, from where it is.

    An unreadable file gives no bytes, which is an error of that image only. Raises InputError for a
    value that is not an image.
    """
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, str | os.PathLike):
        path = image if isinstance(image, str | Path) else Path(image)
        try:
            return read_regular(to_path(path))
        except OSError as error:
            warn(f"image {image}: {error.strerror or error}")
            return b""
    if callable(getattr(image, "read", None)) and not isinstance(image, Image.Image):
        return read_open_file(image, bounds.max_bytes)
    if isinstance(image, torch.Tensor):
        image = array_of_tensor(image)
    if isinstance(image, np.ndarray):
        grey_or_rgb = image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)
        if image.dtype != np.uint8 or not grey_or_rgb or not image.size:
            raise InputError(
                f"an image is an array {image.dtype} {list(image.shape)}; expected uint8 "
                "[height, width, 3] in red, green, blue, or [height, width]"
            )
        image = Image.fromarray(image)
    if not isinstance(image, Image.Image):
        raise InputError(
            f"an image is a {type(image).__name__}; give a path, bytes, an open file, a PIL image, "
            "an array or a tensor"
        )
    try:
        return encode_png(upright(image, bounds).image)
    except (Rejected, OSError):  # a truncated file that pillow has opened
        return b""


def read_open_file(file: Any, max_bytes: int | None) -> bytes:
    """Returns the rest of an open binary file; no bytes, which is an error of that image only, if
    it cannot be read or has more than ``max_bytes`` (None: no limit). Raises InputError for a file
    of text.
    """
    try:
        content = file.read(-1 if max_bytes is None else max_bytes + 1)
    except (OSError, ValueError) as error:  # closed, or not open for reading
        warn(f"open file {getattr(file, 'name', '')}: {error}")
        return b""
    if not isinstance(content, bytes):
        raise InputError(
            f"an open image gives {type(content).__name__}, not bytes; open it with mode 'rb'"
        )
    if not content or (max_bytes is not None and len(content) > max_bytes):
        why = f"over {max_bytes} bytes" if content else "no bytes left to read"
        warn(f"open file {getattr(file, 'name', '')}: {why}")
        return b""
    return content


def array_of_tensor(image: torch.Tensor) -> NDArray[np.uint8]:
    """Returns a tensor's pixels, uint8 [H, W, 3] or [H, W].

    Raises InputError for another shape, and for floats outside of 0 to 1, such as normalised ones.
    """
    pixels = image.detach().cpu()
    is_image = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[0] in (1, 3))
    if is_image and pixels.numel() and pixels.is_floating_point():
        pixels = pixels.float()
        low, high = float(pixels.min()), float(pixels.max())
        if not (low >= 0 and high <= 1):  # NaN too
            raise InputError(
                f"an image is a tensor of floats from {low:.3g} to {high:.3g}; expected 0 to 1, "
                "before any normalisation, or uint8"
            )
        pixels = (pixels * 255).round().to(torch.uint8)
    if not is_image or pixels.dtype != torch.uint8 or not pixels.numel():
        raise InputError(
            f"an image is a tensor {str(image.dtype).removeprefix('torch.')} {list(image.shape)}; "
            "expected uint8, or floats from 0 to 1, [3, height, width], [1, height, width] or "
            "[height, width]"
        )
    if pixels.ndim == 3:
        pixels = pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)
    array: NDArray[np.uint8] = pixels.contiguous().numpy()
    return array


def require_list(values: Any, what: str) -> Sequence[Any]:
    """Returns the values as a list. Raises InputError for a single one."""
    arrays = (np.ndarray, torch.Tensor)
    single = isinstance(values, (str, bytes, os.PathLike, Image.Image, *arrays))
    single = single or hasattr(values, "read")
    if single and not (isinstance(values, arrays) and values.ndim == 4):
        raise InputError(f"{what}: expected a list, got a single {type(values).__name__}")
    return list(values)
