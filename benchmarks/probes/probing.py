"""Runs all probes of a checkpoint on the pairs of a table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from probes.rows import (
    Question,
    Shown,
    ShownPixels,
    ShownRegions,
    batches,
    beside,
    other_of,
    region_questions,
    told,
    word_questions,
)
from vlmill.models.layers.blocks import FeedForward
from vlmill.models.outputs import Encoded
from vlmill.models.vlmo.model import Vlmo
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import LoadedCheckpoint
from vlmill.train.loading.arrays import Flags, Ids
from vlmill.train.loading.batch import Batch
from vlmill.train.loading.sample import IGNORED
from vlmill.train.loading.vocabulary import MASK, encode_texts
from vlmill.train.tasks.retrieval.candidates import read_pairs
from vlmill.train.tasks.retrieval.checks import find_feeding, longest_text


@dataclass(frozen=True, kw_only=True)
class Score:
    """Counts how many of the questions ``asked`` were answered right."""

    right: int
    asked: int

    @property
    def share(self) -> float:
        """Returns the share of right answers; 0 where nothing was asked."""
        return self.right / max(self.asked, 1)


def answers(model: Any, batch: Batch) -> tuple[Flags, Flags]:
    """Says for each row [B] whether anything was asked, and whether all of it was guessed right."""
    rows = len(batch.pair_ids)
    asked, right = np.zeros(rows, dtype=np.bool_), np.ones(rows, dtype=np.bool_)
    states = _encoded(model, batch)
    if len(batch.masked_tokens):
        logits = model.mlm_logits(states.text.flatten(0, 1)[batch.masked_tokens])
        place = batch.masked_tokens // states.text.shape[1]
        _mark(asked, right, place, logits.argmax(-1) == batch.token_targets)
    if len(batch.masked_regions):
        known = batch.class_targets != IGNORED
        places = batch.masked_regions[known]
        logits = model.region_class_logits(states.regions.flatten(0, 1)[places])
        hits = logits.argmax(-1) == batch.class_targets[known]
        _mark(asked, right, places // states.regions.shape[1], hits)
    return asked, asked & right


def _encoded(model: Any, batch: Batch) -> Encoded:
    inputs = batch.pixel_inputs(masked=True) if isinstance(model, Vlmo) else batch.inputs
    states: Encoded = model(inputs)
    return states


def _mark(asked: Flags, right: Flags, rows: Tensor, hits: Tensor) -> None:
    places, good = rows.cpu().numpy(), hits.cpu().numpy()
    asked[places] = True
    right[places[~good]] = False


@torch.inference_mode()
def scores(
    model: Any,
    questions: Sequence[Question],
    shown: Shown,
    tokenizer: Tokenizer,
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 64,
) -> dict[str, Score]:
    """Answers by group. A word counts as right if each of its pieces is the first choice of all."""
    mask_id = tokenizer.token_to_id(MASK)
    assert mask_id is not None
    by_group: dict[str, Score] = {}
    asking = iter(questions)
    for batch in batches(questions, shown, mask_id, batch_size):
        for asked, right in zip(*answers(model, batch.to(device)), strict=True):
            group = next(asking).group
            score = by_group.get(group, Score(right=0, asked=0))
            by_group[group] = Score(right=score.right + int(right), asked=score.asked + int(asked))
    return by_group


def switch_off(model: Vlmo, expert: str) -> None:
    """Makes an expert (``text``, ``image`` or ``vl``) add nothing to what passes it, in all layers.

    Raises ValueError where the model has no such expert.
    """
    parts = [
        part
        for name, part in model.encoder.named_modules()
        if name.endswith(f".experts.{expert}") and isinstance(part, FeedForward)
    ]
    if not parts:
        raise ValueError(f"expert {expert!r}: the model has none of that name")
    for part in parts:
        for parameter in part.down.parameters():
            torch.nn.init.zeros_(parameter)


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
