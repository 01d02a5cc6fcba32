"""Computes what ``vlmill.load`` and the service give: a checkpoint for raw images and strings.

I images, T texts, D width of the vectors. The functions of ``extract-rois run`` and ``train-vl
evaluate`` detect and score the images, which stay in memory, so the numbers are the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, groupby
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from vlmill.extract.weights import resolve_weights
from vlmill.inference.load.answering import (
    TaskOutput,
    hold_examples,
    open_head,
)
from vlmill.inference.load.detector import RegionDetector, open_recorded_detector
from vlmill.inference.load.images import (
    ImageLike,
    read_image_bytes,
    require_list,
    warn,
    warn_faults,
    without_words,
)
from vlmill.inference.search.embedding_inputs import find_embedding_mode
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.readers.images import HeldImages
from vlmill.runtime.readers.regions import HeldRegions
from vlmill.schemas.errors import InputError, with_article
from vlmill.schemas.rejects import Reason
from vlmill.train.checkpoints.files import LoadedCheckpoint, load_checkpoint
from vlmill.train.checkpoints.named import DETECTOR, resolve_checkpoint
from vlmill.train.devices.setup import device_named
from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.features import get_global_widths
from vlmill.train.loading.images.crop import DecodePixels, evaluation_image
from vlmill.train.loading.vocabulary import SPECIALS, encode_texts
from vlmill.train.settings.parts import Feeding
from vlmill.train.tasks.batches import in_parts
from vlmill.train.tasks.evaluating.model import TaskModel
from vlmill.train.tasks.retrieval.checks import (
    body_config,
    find_feeding,
    longest_text,
    select_ranking,
)
from vlmill.train.tasks.retrieval.inputs import PixelImages, RegionImages
from vlmill.train.tasks.retrieval.job import get_max_elements
from vlmill.train.tasks.retrieval.matching import make_scorer, match_scores
from vlmill.train.tasks.retrieval.vectors import image_vectors, text_vectors

Floats = NDArray[np.float32]
Result = TypeVar("Result")
IMAGES_AT_ONCE = 256  # images with regions in memory: 0.4 MB each at 100 x 2048


@dataclass(frozen=True, kw_only=True)
class HeldInputs:
    """Holds images and, if a model reads them, their regions: the ``rows`` of the images in what
    the model reads, and the ``faults`` of those without one.
    """

    images: HeldImages
    regions: HeldRegions | None
    rows: dict[str, int]
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
    _heads: dict[str, TaskModel] = field(default_factory=dict)  # that were opened, by task

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
            block = contents[start : start + IMAGES_AT_ONCE]
            held = self.hold(
                {str(start + index): data for index, data in enumerate(block)}, self.feeding
            )
            fed = self.feed(held.regions or held.images)
            unread = {name: why for name in held.rows if (why := fed.fault(name)) is not None}
            good_ones = [(name, *positions[int(name)]) for name in held.rows if name not in unread]
            for request, request_entries in groupby(good_ones, lambda entry: entry[1]):
                names, _, rows = zip(*request_entries, strict=True)
                logits = match_scores(
                    scorer,
                    tokens[request][0],
                    names,
                    fed,
                    device=self.device,
                    batch_size=self.batch_size,
                )
                scores[request][np.ix_(rows, tokens[request][1])] = logits
            faults |= {int(name): why for name, why in (held.faults | unread).items()}
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

    def run_task(
        self,
        task: str,
        read: Callable[[TaskOutput], Result],
        requests: Sequence[tuple[ImageLike, str]],
    ) -> list[Result | InputError]:
        """Returns what ``read`` makes of the predictions of the head of ``task`` for texts, each
        about its image; an error replaces a failed one.

        Raises InputError for a checkpoint without the head.
        """
        if task not in self._heads:
            self._heads[task] = open_head(self.loaded, task, self.labels, self.device)
        model = self._heads[task]
        examples, texts = model.task.examples(""), [text for _, text in requests]
        tokens, worded = self.tokens(texts, model.max_tokens)
        results = dict[int, Result | InputError]()
        faults = dict[str, Reason]()
        rows = list(range(len(texts))) if examples.takes_wordless else worded
        for block in in_parts(rows, IMAGES_AT_ONCE):
            contents = {str(row): read_image_bytes(requests[row][0]) for row in block}
            held = self.hold(contents, model.stage.feeding, takes_empty=examples.takes_empty)
            faults |= held.faults
            chosen = {name: (texts[int(name)], tokens[int(name)]) for name in held.rows}
            samples = hold_examples(model, examples, chosen, held.rows)
            batches = model.make_batches(samples, held.regions, held.images, self.decode)
            for part in in_parts(list(range(len(chosen))), self.batch_size):
                predictions, undecodable = model.predict(batches, part)
                faults |= {fault.pair_id: fault.reason for fault in undecodable}
                for prediction in predictions:
                    output = TaskOutput(model=model, batches=batches, prediction=prediction)
                    results[int(samples.pair_id(prediction.row))] = read(output)
        for row, text in enumerate(texts):
            if row not in rows:
                results[row] = InputError(f"{text!r} has no word; give a text with one")
            elif row not in results:
                why = faults[str(row)]
                results[row] = InputError(f"the image has no result: {why}; give another image")
        return [results[row] for row in range(len(texts))]

    def run_one(
        self, task: str, read: Callable[[TaskOutput], Result], image: ImageLike, text: str
    ) -> Result:
        """Returns the only result of :meth:`run_task`. Raises the error that replaces it."""
        (result,) = self.run_task(task, read, [(image, text)])
        if isinstance(result, InputError):
            raise result
        return result

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
            named = {str(start + index): data for index, data in enumerate(block)}
            embedded = image_vectors(
                self.loaded.model,
                list(named),
                PixelImages(HeldImages(named), self.feeding, self.decode),
                device=self.device,
                batch_size=self.batch_size,
            )
            for name, vector in embedded.vectors.items():
                vectors[int(name)] = vector
            faults |= {int(name): why for name, why in embedded.faults.items()}
        warn_faults("image", faults)
        return vectors

    def feed(self, images: HeldImages | HeldRegions) -> PixelImages | RegionImages:
        """Returns images or regions as the model reads them with texts."""
        if isinstance(images, HeldImages):
            return PixelImages(images, self.feeding, self.decode)
        has_global_features = bool(get_global_widths(body_config(self.loaded)))
        return RegionImages(images, self.feeding, global_features=has_global_features)

    def hold(
        self, contents: Mapping[str, bytes], feeding: Feeding, *, takes_empty: bool = False
    ) -> HeldInputs:
        """Returns encoded images and, if ``feeding`` reads them, the detector's regions. Images
        without a region are faults unless the model ``takes_empty``.
        """
        images = HeldImages(contents)
        if not feeding.has_regions:
            rows = {name: row for row, name in enumerate(contents)}
            return HeldInputs(images=images, regions=None, rows=rows, faults={})
        regions, faults = self._regions.find_regions(contents)
        rows = {name: row for row, name in enumerate(regions.index.ids())}
        if not takes_empty:
            counts = regions.box_counts()
            faults |= {name: Reason.NO_BOXES for name, row in rows.items() if not counts[row]}
        rows = {name: row for name, row in rows.items() if name not in faults}
        return HeldInputs(images=images, regions=regions, rows=rows, faults=faults)


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
