"""Defines the object that ``vlmill.load`` returns: its public methods only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vlmill.inference.load.answering import (
    ANSWER,
    CLASSIFY,
    ENTAIL,
    GROUND,
    Classes,
    Grounded,
    read_answer,
    read_boxes,
    read_classes,
)
from vlmill.inference.load.explaining import Explanation, explain_image
from vlmill.inference.load.model import Floats, LoadedModel

if TYPE_CHECKING:
    from vlmill.inference.load.images import ImageLike


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
        return self._engine.score(images, texts)

    def encode_images(self, images: Sequence[ImageLike]) -> Floats:
        """Returns unit vectors of images, float32 [images, D]; an invalid image has NaN.

        Raises InputError for a model that reads texts and images together.
        """
        return self._engine.encode_images(images)

    def encode_texts(self, texts: Sequence[str]) -> Floats:
        """Returns unit vectors of texts, float32 [texts, D]; products with image vectors rank them.

        Raises InputError for a model that reads texts and images together.
        """
        return self._engine.encode_texts(texts)

    def answer(self, image: ImageLike, question: str) -> str:
        """Answers a question about an image with the most likely of the checkpoint's answers.

        Raises InputError for a checkpoint that was not fine-tuned for VQA, for an image that
        cannot be read, and for a question without a word.
        """
        return self._engine.run_one(ANSWER, read_answer, image, question)

    def ground(self, image: ImageLike, expression: str) -> Grounded:
        """Returns the detector's boxes that an expression refers to in an image, the best first.

        The result has ``boxes`` float32 [N, 4] (x1, y1, x2, y2 in pixels) and ``scores`` [N].
        Raises InputError for a checkpoint that was not fine-tuned for referring expressions, for an
        image that cannot be read, and for an expression without a word.
        """
        return self._engine.run_one(GROUND, read_boxes, image, expression)

    def classify(self, image: ImageLike, text: str = "") -> Classes:
        """Returns the classes of an image, or of an image with a text.

        The result has ``label``, the likeliest class, ``labels``, all that are predicted, and
        ``probabilities``, a dict of every class, the likeliest first. Raises InputError for a
        checkpoint that was not fine-tuned for classification, and for an image that cannot be read.
        """
        return self._engine.run_one(CLASSIFY, read_classes, image, text)

    def entail(self, image: ImageLike, statement: str) -> Classes:
        """Returns whether an image entails a statement, as :meth:`classify` does: the classes are
        those of the training, such as entailment, neutral and contradiction.

        Raises InputError for a checkpoint that was not fine-tuned for entailment, for an image that
        cannot be read, and for a statement without a word.
        """
        return self._engine.run_one(ENTAIL, read_classes, image, statement)

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
        return explain_image(self._engine, image, text)
