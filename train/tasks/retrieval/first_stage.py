"""Selects the candidates that a model of pairs then ranks: ``--rerank K``.

A dual encoder reads texts and images separately: VLMo itself, or with ``--first-stage DIR`` another
checkpoint. Words and classes need no model (``--first-stage words``): a text and an image score
higher the more of the image's detected classes the text names; rare classes count more [choice: by
the logarithm of the share of images that have them].

I images, T texts, C classes of the detector, K candidates of a query.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.digests import file_input
from vlmill.runtime.readers.class_names import read_names, require_number
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.errors import InputError, with_article
from vlmill.schemas.rejects import Reason
from vlmill.train.checkpoints.files import LoadedCheckpoint, load_checkpoint
from vlmill.train.checkpoints.folders import MODEL
from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.vocabulary import encode_texts
from vlmill.train.tasks.retrieval.checks import find_feeding, longest_text, select_ranking
from vlmill.train.tasks.retrieval.inputs import PixelImages
from vlmill.train.tasks.retrieval.vectors import image_vectors, text_vectors

WORDS = "words"
Scores = NDArray[np.float32]
Names = Sequence[Sequence[str]]


@dataclass(kw_only=True)
class DualStage:
    """Ranks by a contrastive head: `prepare_images` embeds images, and `scores` embeds texts."""

    loaded: LoadedCheckpoint
    images: PixelImages
    max_tokens: int
    device: torch.device
    batch_size: int
    _vectors: dict[str, NDArray[np.float32]] | None = None

    def missing(self, image_ids: Sequence[str]) -> Mapping[str, Reason]:
        """Returns the images that its table lacks."""
        return self.images.missing(image_ids)

    def prepare_images(self, image_ids: Sequence[str]) -> dict[str, Reason]:
        """Reads and embeds images, each once; returns the ones that cannot be decoded."""
        self.loaded.model.to(self.device)
        with Progress(total=len(image_ids), unit="image", label="vectors") as progress:
            embedded = image_vectors(
                self.loaded.model,
                image_ids,
                self.images,
                device=self.device,
                batch_size=self.batch_size,
                advance=progress.advance,
            )
        self._vectors = embedded.vectors
        return embedded.faults

    def scores(self, texts: Sequence[str], image_ids: Sequence[str]) -> Scores:
        """Returns cosines [I, T], by one product of all vectors."""
        assert self._vectors is not None
        tokens: tuple[Ids, ...] = encode_texts(self.loaded.tokenizer, texts, self.max_tokens).tokens
        with Progress(total=len(texts), unit="text", label="texts") as progress:
            text_matrix = text_vectors(
                self.loaded.model,
                tokens,
                device=self.device,
                batch_size=self.batch_size,
                advance=progress.advance,
            )
        cosines: Scores = (
            np.stack([self._vectors[image_id] for image_id in image_ids]) @ text_matrix.T
        )
        return cosines


@dataclass(frozen=True, kw_only=True)
class WordStage:
    """Ranks by the detected classes whose names are in the text."""

    names: Names
    regions: RegionReader

    def missing(self, image_ids: Sequence[str]) -> Mapping[str, Reason]:
        """Returns nothing: the model that ranks reads the same table."""
        return {}

    def prepare_images(self, image_ids: Sequence[str]) -> dict[str, Reason]:
        """Returns nothing: an image without a named class has a score of 0."""
        return {}

    def scores(self, texts: Sequence[str], image_ids: Sequence[str]) -> Scores:
        """Returns the scores of texts and images by their shared classes, [I, T]."""
        present = np.zeros((len(image_ids), len(self.names)), dtype=np.float32)
        for row, image_id in zip(present, image_ids, strict=True):
            class_ids = self.regions[image_id].class_ids
            if class_ids is None:
                raise InputError(
                    "--first-stage words: --regions has no classes for the boxes of "
                    f"{image_id}; give regions with classes, or a checkpoint"
                )
            row[class_ids[(class_ids >= 0) & (class_ids < len(self.names))]] = 1
        return common_classes(present, find_text_classes(self.names, texts))


FirstStage = DualStage | WordStage


def split_words(text: str) -> list[str]:
    """Returns the words of a text in lower case, without the s of a plural."""
    words = re.findall(r"\w+", text.lower())
    return [word[:-1] if len(word) > 3 and word.endswith("s") else word for word in words]


def find_text_classes(names: Names, texts: Sequence[str]) -> NDArray[np.float32]:
    """Returns which classes each text names, 1 or 0 as float32 [T, C]: the text contains all words
    of one of the class's names.
    """
    by_word = defaultdict[str, list[tuple[int, frozenset[str]]]](list)
    for number, synonyms in enumerate(names):
        for words in map(split_words, synonyms):
            if words:
                by_word[words[0]].append((number, frozenset(words)))
    class_flags = np.zeros((len(texts), len(names)), dtype=np.float32)
    for row, text in zip(class_flags, texts, strict=True):
        text_words = set(split_words(text))
        row[
            [
                n
                for word in text_words
                for n, class_words in by_word.get(word, ())
                if class_words <= text_words
            ]
        ] = 1
    return class_flags


def common_classes(present: NDArray[np.float32], text_classes: NDArray[np.float32]) -> Scores:
    """Sums the weights of the classes that an image has [I, C] and a text names [T, C]: [I, T]."""
    weights = np.log((len(present) + 1) / (present.sum(axis=0) + 1)).astype(np.float32)
    scores: Scores = (present * weights) @ text_classes.T
    return scores


def open_first_stage(
    first: str | None,
    *,
    class_names: str | None,
    images: str | None,
    regions: RegionReader | None,
    device: torch.device,
    batch_size: int,
) -> FirstStage | None:
    """Opens ``--first-stage``, if it is given. Raises InputError for its missing inputs."""
    if first == WORDS:
        return _open_words(class_names, regions)
    if class_names is not None:
        raise InputError("--class-names is only for --first-stage words; give both or neither")
    if first is None:
        return None
    loaded = load_checkpoint(Path(first))
    if select_ranking(loaded) != "contrast":
        raise InputError(
            f"--first-stage {first} is {with_article(loaded.variant)} without a contrastive "
            "head, which reads texts and images together; give a VLMo with one, or words"
        )
    if images is None:
        raise InputError(f"--images is missing: --first-stage {first} reads images")
    feeding = find_feeding(loaded)
    return DualStage(
        loaded=loaded,
        images=PixelImages(ImageReader(images), feeding),
        max_tokens=longest_text(loaded, feeding),
        device=device,
        batch_size=batch_size,
    )


def _open_words(class_names: str | None, regions: RegionReader | None) -> WordStage:
    if regions is None:
        raise InputError(
            "--first-stage words reads the classes of regions, and this model has no "
            "regions; remove it, or give a checkpoint"
        )
    if class_names is None:
        raise InputError(
            "--class-names is missing: --first-stage words needs the names of the detector's "
            "classes, one per line"
        )
    names = read_names(class_names, "--class-names")
    require_number(names, regions.producer, "classes", flag="--class-names", regions="--regions")
    return WordStage(names=names, regions=regions)


def first_stage_settings(first: str, class_names: str | None) -> dict[str, Any]:
    """Returns the settings of a first stage that decide the figures."""
    if first == WORDS:
        assert class_names is not None
        digest = file_input("--class-names", class_names).digest
        return {"first_stage": first, "class_names_sha256": digest}
    digest = file_input("--first-stage", Path(first) / MODEL).digest
    return {"first_stage": first, "first_stage_sha256": digest}
