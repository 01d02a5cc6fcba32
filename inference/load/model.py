"""Computes what ``vlmill.load`` and the service give: a checkpoint for raw images and strings.

I images, T texts, D width of the vectors. Images are written to a table of images and, for models
that read regions, a table of regions, in a temporary folder. The code of ``extract-rois run`` and
``train-vl evaluate`` then reads and scores them, so the numbers are the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from vlmill.extract.weights import resolve_weights
from vlmill.inference.input_checks import warn, warn_faults, without_words
from vlmill.inference.load.answering import (
    ANSWER,
    CLASSIFY,
    ENTAIL,
    GROUND,
    AnswerTask,
    Classes,
    Grounded,
    answer_questions,
    classify_texts,
    ground_expressions,
    required_inputs,
)
from vlmill.inference.load.detector import RegionDetector, open_recorded_detector
from vlmill.inference.load.images import ImageLike, encode_planes, read_image_bytes, require_list
from vlmill.inference.search.embedding_inputs import find_embedding_mode
from vlmill.inference.search.queries import write_images
from vlmill.runtime.console.progress import without_progress
from vlmill.runtime.files.atomic import temporary_folder
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.errors import InputError, with_article
from vlmill.schemas.rejects import Reason
from vlmill.train.checkpoints.files import LoadedCheckpoint, load_checkpoint
from vlmill.train.checkpoints.named import DETECTOR, resolve_checkpoint
from vlmill.train.devices.setup import device_named
from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.features import get_global_widths
from vlmill.train.loading.images.crop import evaluation_image
from vlmill.train.settings.parts import Feeding
from vlmill.train.tasks.retrieval.candidates import SPECIALS, encode_texts
from vlmill.train.tasks.retrieval.checks import (
    body_config,
    find_feeding,
    longest_text,
    select_ranking,
)
from vlmill.train.tasks.retrieval.inputs import DecodePixels, PixelImages, RegionImages, load_pixels
from vlmill.train.tasks.retrieval.job import get_max_elements
from vlmill.train.tasks.retrieval.matching import make_scorer, match_scores
from vlmill.train.tasks.retrieval.vectors import image_vectors, text_vectors

Floats = NDArray[np.float32]
Result = TypeVar("Result")
IMAGES_AT_ONCE = 256  # images with regions in the temporary folder: 0.4 MB each at 100 x 2048


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Holds images as tables, named by their numbers; ``faults`` are the images without a row."""

    images: RegionImages | PixelImages
    good: list[str]
    faults: dict[str, Reason]


@dataclass(kw_only=True)
class LoadedModel:
    """Scores, embeds, answers, grounds and classifies with a checkpoint; ``detector`` and
    ``labels`` are files.

    Invalid images and texts produce a warning and NaN results.
    """

    loaded: LoadedCheckpoint
    device: torch.device
    detector: Path | None = None
    batch_size: int = 64
    labels: Path | None = None
    decode: DecodePixels = evaluation_image
    workers: int = 0  # processes that decode images for the detector
    _warned: set[str] = field(default_factory=set)

    def open_detector(self) -> None:
        """Opens the detector of a model that reads regions, which otherwise the first image does.

        Raises InputError if its file is missing, and for a detector other than the model's.
        """
        if self.feeding.has_regions:
            _ = self._regions
        elif self.detector is not None:
            raise InputError(
                f"detector {self.detector}: {self.loaded.path} is "
                f"{with_article(self.loaded.variant)}, which reads no regions; remove detector"
            )

    def score(self, images: Sequence[ImageLike], texts: Sequence[str]) -> Floats:
        """Scores every image with every text, float32 [I, T]: logits of the matching head, or
        cosines if the model has a contrastive head.

        Raises InputError for a model without either head.
        """
        (scores,) = self.score_each([(images, texts)])
        return scores

    def score_each(
        self, requests: Sequence[tuple[Sequence[ImageLike], Sequence[str]]]
    ) -> list[Floats]:
        """Scores like :meth:`score` for several requests, each with its own images and texts.

        Computations on single images or texts, such as a detector's, run on those of all requests
        together.
        """
        images = [self._contents(members) for members, _ in requests]
        texts = [require_list(members, "texts") for _, members in requests]
        contents = list(chain(*images))
        if select_ranking(self.loaded) == "contrast":
            image_vectors = split_rows(self._image_vectors(contents), images)
            words = split_rows(self.encode_texts(list(chain(*texts))), texts)
            return [
                image_block @ text_block.T
                for image_block, text_block in zip(image_vectors, words, strict=True)
            ]
        scores, tokens = list[Floats](), list[tuple[list[Ids], list[int]]]()
        positions = list[tuple[int, int]]()  # of each image: its request, and its row there
        for members, request_texts in zip(images, texts, strict=True):
            every, good = self.tokens(request_texts)
            warn_faults("text", without_words(len(request_texts), good))
            positions += [(len(scores), row) for row in range(len(members))]
            tokens.append(([every[index] for index in good], good))
            scores.append(np.full((len(members), len(request_texts)), np.nan, dtype=np.float32))
        scorer, faults = (
            make_scorer(self.loaded.model, get_max_elements(self.feeding)),
            dict[int, Reason](),
        )
        for start in range(0, len(contents), IMAGES_AT_ONCE):
            with self._tables(contents[start : start + IMAGES_AT_ONCE]) as tables:
                good_ones = [(name, *positions[start + int(name)]) for name in tables.good]
                for request, request_entries in groupby(good_ones, lambda entry: entry[1]):
                    names, _, rows = zip(*request_entries, strict=True)
                    logits = match_scores(
                        scorer,
                        tokens[request][0],
                        names,
                        tables.images,
                        device=self.device,
                        batch_size=self.batch_size,
                    )
                    scores[request][np.ix_(rows, tokens[request][1])] = logits
                faults |= {start + int(name): why for name, why in tables.faults.items()}
        warn_faults("image", faults)
        return scores

    def encode_images(self, images: Sequence[ImageLike]) -> Floats:
        """Returns unit vectors of images, float32 [I, D]. Raises InputError for a model that
        reads texts and images together.
        """
        return self._image_vectors(self._contents(images))

    def encode_texts(self, texts: Sequence[str]) -> Floats:
        """Returns unit vectors of texts, float32 [T, D]; products with image vectors rank them."""
        self._require_dual("encode_texts")
        texts = require_list(texts, "texts")
        tokens, good = self.tokens(texts)
        warn_faults("text", without_words(len(texts), good))
        vectors = np.full((len(texts), self.loaded.config.width), np.nan, dtype=np.float32)
        vectors[good] = text_vectors(
            self.loaded.model,
            [tokens[index] for index in good],
            device=self.device,
            batch_size=self.batch_size,
        )
        return vectors

    def answer_each(self, requests: Sequence[tuple[ImageLike, str]]) -> list[str | InputError]:
        """Answers questions, each about its image, with the most likely of the checkpoint's
        answers; an error replaces a failed answer.
        """
        return self.run_task(ANSWER, answer_questions, requests)

    def ground_each(self, requests: Sequence[tuple[ImageLike, str]]) -> list[Grounded | InputError]:
        """Returns the boxes that each expression refers to in its image, the best first; an error
        replaces a failed one.
        """
        return self.run_task(GROUND, ground_expressions, requests)

    def classify_each(
        self, requests: Sequence[tuple[ImageLike, str]]
    ) -> list[Classes | InputError]:
        """Returns the classes of images with texts, which may be empty; an error replaces a failed
        one.
        """
        predict = partial(classify_texts, CLASSIFY)
        return self.run_task(CLASSIFY, predict, requests, needs_text=False)

    def entail_each(self, requests: Sequence[tuple[ImageLike, str]]) -> list[Classes | InputError]:
        """Returns whether each image entails its statement; an error replaces a failed one."""
        return self.run_task(ENTAIL, partial(classify_texts, ENTAIL), requests)

    def run_task(
        self,
        task: str,
        predict: Callable[
            [AnswerTask, Path, Mapping[str, str], Mapping[str, str]], Mapping[str, Result]
        ],
        requests: Sequence[tuple[ImageLike, str]],
        *,
        needs_text: bool = True,
    ) -> list[Result | InputError]:
        """Answers questions, each about its image, with the head of ``task``."""
        feeding, longest = required_inputs(self.loaded, task)
        errors = dict[int, InputError]()
        for index, (_, text) in enumerate(requests):
            if not self.tokens([text], longest)[1] and needs_text:
                errors[index] = InputError(f"{text!r} has no word; give a text with one")
        if len(errors) == len(requests):
            return list(errors.values())
        with temporary_folder() as folder, without_progress():
            contents = [
                b"" if index in errors else read_image_bytes(image)
                for index, (image, _) in enumerate(requests)
            ]
            faults = self.write_tables(contents, folder, feeding)
            names = [str(index) for index in range(len(requests)) if index not in errors]
            texts = {name: requests[int(name)][1] for name in names if name not in faults}
            tables = {name: str(folder / name) for name in ("images", "regions")}
            there = {name: path for name, path in tables.items() if Path(path).is_dir()}
            answer_task = AnswerTask(
                loaded=self.loaded, device=str(self.device), labels=self.labels
            )
            results = predict(answer_task, folder, texts, there) if texts else {}
        for name in names:
            if name not in results:
                why = faults.get(name, "no reason is known")
                unread = f"the image has no result: {why}; give another image"
                errors[int(name)] = InputError(unread)
        return [
            errors[index] if index in errors else results[str(index)]
            for index in range(len(requests))
        ]

    @cached_property
    def feeding(self) -> Feeding:
        """Returns the type of the model's inputs."""
        return find_feeding(self.loaded)

    @cached_property
    def _regions(self) -> RegionDetector:
        return open_recorded_detector(
            self.loaded, self.detector, str(self.device), workers=self.workers
        )

    def _contents(self, images: Sequence[ImageLike]) -> list[bytes]:
        return [read_image_bytes(image) for image in require_list(images, "images")]

    def _require_dual(self, what: str) -> None:
        if find_embedding_mode(self.loaded) != "dual":
            raise InputError(
                f"{what}: {with_article(self.loaded.variant)} reads a text and an image "
                "together, and has no vector of one alone; use score, or "
                "`train-vl embed` for vectors of pairs"
            )

    def tokens(
        self, texts: Sequence[str], longest: int | None = None
    ) -> tuple[Sequence[Any], list[int]]:
        """Returns the texts' tokens, and the indices of texts with a word.

        Texts are truncated to the length of the training, or to ``longest``. Raises InputError for
        a value that is not a string.
        """
        for text in texts:
            if not isinstance(text, str):
                raise InputError(f"a text is a {type(text).__name__}; give a string")
        longest = longest_text(self.loaded, self.feeding) if longest is None else longest
        encoded_texts = encode_texts(self.loaded.tokenizer, texts, longest)
        if encoded_texts.cut and "cut" not in self._warned:
            self._warned.add("cut")
            warn(f"texts are cut at {longest} tokens, as in training")
        tokens = encoded_texts.tokens
        return tokens, [index for index, text in enumerate(tokens) if len(text) > SPECIALS]

    def _image_vectors(self, contents: Sequence[bytes]) -> Floats:
        self._require_dual("encode_images")
        vectors = np.full((len(contents), self.loaded.config.width), np.nan, dtype=np.float32)
        faults = dict[int, Reason]()
        for start in range(0, len(contents), IMAGES_AT_ONCE):
            block = contents[start : start + IMAGES_AT_ONCE]
            with temporary_folder() as folder:
                write_images(folder, block)
                embedded = image_vectors(
                    self.loaded.model,
                    [str(index) for index in range(len(block))],
                    PixelImages(ImageReader(folder), self.feeding, self.decode),
                    device=self.device,
                    batch_size=self.batch_size,
                )
            for name, vector in embedded.vectors.items():
                vectors[start + int(name)] = vector
            faults |= {start + int(name): why for name, why in embedded.faults.items()}
        warn_faults("image", faults)
        return vectors

    @contextmanager
    def _tables(self, contents: Sequence[bytes]) -> Iterator[Tables]:
        """Yields the images as the tables that the model reads, while the block runs."""
        names = [str(index) for index in range(len(contents))]
        with temporary_folder() as folder:
            faults = self.write_tables(contents, folder)
            images: RegionImages | PixelImages
            if self.feeding.kind == "pixels":
                images = PixelImages(ImageReader(folder / "images"), self.feeding)
            else:
                has_global_features = bool(get_global_widths(body_config(self.loaded)))
                reader = RegionReader(folder / "regions")
                images = RegionImages(reader, self.feeding, global_features=has_global_features)
            faults |= images.missing([name for name in names if name not in faults])
            left = [name for name in names if name not in faults]
            faults |= {name: why for name in left if (why := images.fault(name)) is not None}
            good = [name for name in names if name not in faults]
            yield Tables(images=images, good=good, faults=faults)

    def write_tables(
        self, contents: Sequence[bytes], folder: Path, feeding: Feeding | None = None
    ) -> dict[str, Reason]:
        """Writes the tables of images and, if the model reads them, of regions; returns the images
        that the detector could not read. ``feeding`` is the task's; default: that of pairs.
        """
        feeding = feeding or self.feeding
        if feeding.kind == "pixels":
            return self._write_pixels(contents, folder / "images", feeding.image_size)
        write_images(folder / "images", contents)
        return self._regions.write_regions(folder / "images", folder / "regions")

    def _write_pixels(
        self, contents: Sequence[bytes], folder: Path, size: int
    ) -> dict[str, Reason]:
        """Writes a table of images at the size that the model sees, each decoded once; returns the
        unreadable ones.
        """
        faults, pixels = dict[str, Reason](), list[bytes]()
        for index, data in enumerate(contents):
            image = load_pixels(data, str(index), size, self.decode)
            if isinstance(image, Reason):
                faults[str(index)] = image
            pixels.append(b"" if isinstance(image, Reason) else encode_planes(image))
        write_images(folder, pixels)
        return faults


def unwrap_result(results: Sequence[Result | InputError]) -> Result:
    """Returns the only result. Raises the error that replaces it."""
    (result,) = results
    if isinstance(result, InputError):
        raise result
    return result


def split_rows(values: Floats, owners: Sequence[Sequence[Any]]) -> list[Floats]:
    """Splits the rows of all requests by their ``owners``."""
    return np.split(values, np.cumsum([len(owner) for owner in owners])[:-1])


def load_pretrained(
    checkpoint: str | Path,
    detector: str | Path | None,
    labels: str | Path | None,
    device: str,
    batch_size: int,
    *,
    trust: bool | None = None,
    decode: DecodePixels = evaluation_image,
    workers: int = 0,
) -> LoadedModel:
    """Loads a checkpoint from a folder or the hub onto a device.

    A detector in its folder is used. ``trust`` is that of :func:`load_checkpoint`. ``decode`` and
    ``workers`` set the processes that decode images: services use separate ones. Raises InputError
    for an unusable checkpoint.
    """
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size}: expected at least 1")
    loaded = load_checkpoint(resolve_checkpoint(checkpoint, warn=warn), "checkpoint", trust=trust)
    if detector is None and (loaded.path / DETECTOR).is_file():
        detector = loaded.path / DETECTOR
    on_device = device_named(device)
    loaded.model.to(on_device)
    model = LoadedModel(
        loaded=loaded,
        device=on_device,
        detector=None if detector is None else resolve_weights(detector, flag="detector").weights,
        batch_size=batch_size,
        labels=None if labels is None else to_path(labels),
        decode=decode,
        workers=workers,
    )
    if detector is not None:
        model.open_detector()
    return model
