"""Runs all probes of a checkpoint on the pairs of a table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from probes.answers import Score, scores
from probes.questions import Question, beside, other_of, region_questions, told, word_questions
from probes.rows import Shown, ShownPixels, ShownRegions
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import LoadedCheckpoint
from vlmill.train.loading.arrays import Ids
from vlmill.train.tasks.retrieval.candidates import encode_texts, read_pairs
from vlmill.train.tasks.retrieval.checks import find_feeding, longest_text

Ask = Callable[[list[Question]], Mapping[str, Score]]


@dataclass(frozen=True, kw_only=True)
class ProbeInputs:
    """Holds tables (folders, files or globs), and what is asked of them.

    ``groups`` names the words that are masked, lower case, by what they say. The first ``most``
    pairs of ``split`` are asked, all with None.
    """

    pairs: str
    groups: Mapping[str, frozenset[str]]
    regions: str | None = None
    images: str | None = None
    split: str | None = None
    most: int | None = None
    device: str = "cpu"
    batch_size: int = 64


def probe(loaded: LoadedCheckpoint, inputs: ProbeInputs) -> dict[str, float]:
    """Returns the shares of right answers: ``words/GROUP/own_picture``,
    ``words/GROUP/other_picture`` and their difference ``words/GROUP/seen``; of models that read
    regions ``regions/class/own_caption``, ``regions/class/no_caption`` and
    ``regions/class/other_caption``. ``.../asked`` counts.

    Pairs without their image are left out, and a model without a head for words is asked none.
    Raises InputError for tables that do not do.
    """
    shown, tokenizer = _shown(loaded, inputs), loaded.tokenizer
    longest = longest_text(loaded, shown.feeding)
    read = read_pairs(inputs.pairs, inputs.split).pairs
    pairs = [pair for pair in read if pair.image_id and shown.has(pair.image_id)][: inputs.most]
    loaded.model.to(torch.device(inputs.device))
    ask: Ask = partial(
        scores,
        loaded.model,
        shown=shown,
        tokenizer=tokenizer,
        device=inputs.device,
        batch_size=inputs.batch_size,
    )
    ids = [str(pair.image_id) for pair in pairs]
    try:
        others = other_of(ids)
    except ValueError as error:
        raise InputError(f"--pairs {inputs.pairs}: {error}") from None
    metrics: dict[str, float] = {}
    if getattr(loaded.config, "mlm", True):
        words = [
            question
            for pair, image_id in zip(pairs, ids, strict=True)
            for question in word_questions(tokenizer, pair.text, image_id, inputs.groups, longest)
        ]
        metrics |= probe_words(ask, words, others)
    if isinstance(shown, ShownRegions):
        tokens = encode_texts(tokenizer, [pair.text for pair in pairs], longest).tokens
        texts: dict[str, Ids] = {}
        for image_id, text in zip(ids, tokens, strict=True):
            texts.setdefault(image_id, text)
        metrics |= probe_regions(ask, shown.regions, texts, others)
    return metrics


def _shown(loaded: LoadedCheckpoint, inputs: ProbeInputs) -> Shown:
    feeding = find_feeding(loaded)
    if feeding.kind == "pixels":
        if inputs.images is None:
            raise InputError(f"--images is missing: a {loaded.variant} reads images")
        return ShownPixels(ImageReader(inputs.images), feeding)
    if inputs.regions is None:
        raise InputError(f"--regions is missing: a {loaded.variant} reads regions")
    return ShownRegions(RegionReader(inputs.regions), feeding)


def probe_words(ask: Ask, words: list[Question], others: Mapping[str, str]) -> dict[str, float]:
    """Probes masked words beside their own image and beside another one."""
    own_scores, other_scores = ask(words), ask(beside(words, others))
    metrics: dict[str, float] = {}
    for group, score in own_scores.items():
        name = f"words/{group}"
        metrics[f"{name}/own_picture"] = score.share
        metrics[f"{name}/other_picture"] = other_scores[group].share
        metrics[f"{name}/seen"] = score.share - other_scores[group].share
        metrics[f"{name}/asked"] = score.asked
    return metrics


def probe_regions(
    ask: Ask, regions: RegionReader, texts: Mapping[str, Ids], others: Mapping[str, str]
) -> dict[str, float]:
    """Probes masked things beside their image's text, [CLS] [SEP] alone, and another image's
    text.
    """
    things = [
        question
        for image_id, tokens in texts.items()
        for question in region_questions(regions[image_id].class_ids, tokens, image_id)
    ]
    if not things:
        return {}
    told_of = {
        "own_caption": texts,
        "no_caption": {name: text[np.array([0, -1])] for name, text in texts.items()},
        "other_caption": {name: texts[others[name]] for name in texts},
    }
    metrics: dict[str, float] = {}
    for name, captions in told_of.items():
        score = ask(told(things, captions))["class"]
        metrics[f"regions/class/{name}"] = score.share
        metrics["regions/class/asked"] = score.asked
    return metrics
