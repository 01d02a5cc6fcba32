"""What a run is made from: tables, a starting checkpoint and a vocabulary, and what they decide."""

import dataclasses
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from vlmill.schemas.commands import InputError
from vlmill.schemas.images import ImageReader
from vlmill.schemas.progress import Progress
from vlmill.schemas.reading import find_shards
from vlmill.schemas.regions import RegionReader
from vlmill.schemas.tables import NEGATIVES
from vlmill.train.assembly import features_of
from vlmill.train.checkpoint import MODEL, LoadedCheckpoint, load_checkpoint
from vlmill.train.config import flatten, to_plain
from vlmill.train.data import (
    Pictures,
    RegionFacts,
    is_held_out,
    pair_rows,
    pairs_digest,
    region_facts,
)
from vlmill.train.picture_tokenizer import FIELD, PictureTokenizer, read_picture_tokenizer
from vlmill.train.planned_batch import global_feature_of
from vlmill.train.recipes import Recipe
from vlmill.train.vocabulary import read_vocabulary, train_vocabulary

NO_REGIONS = RegionFacts(empty=frozenset(), num_classes=0, num_pictures=0)
PICTURES_MEASURED, MAX_REGIONS = 1000, 100
NO_EFFECT = ("workers", "keep_checkpoints")  # may differ when a run is continued
STARTS = {("beit", "vlmo")}  # which other variant's weights --init may bring


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The tables and files of a run, as given on the command line."""

    pairs: str
    regions: str | None = None
    images: str | None = None
    negatives: str | None = None
    missing: Literal["error", "skip"] = "skip"  # what becomes of pairs without their picture
    init: str | None = None
    vocab: str | None = None


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The inputs, opened and measured."""

    inputs: Inputs
    regions: RegionReader | None
    images: ImageReader | None
    facts: RegionFacts
    num_pairs: int
    pairs_digest: str
    init: LoadedCheckpoint | None
    picture_tokenizer: PictureTokenizer | None = None

    @property
    def reader(self) -> RegionReader:
        """The regions, of a run that reads them."""
        assert self.regions is not None
        return self.regions

    @property
    def pictures(self) -> Pictures | None:
        """What pairs are joined with; None for texts alone."""
        return self.images if self.regions is None else self.regions

    @property
    def fingerprint(self) -> str | None:
        """The detector's; None without regions too."""
        return None if self.regions is None else self.regions.detector_fingerprint


def open_sources(inputs: Inputs, recipe: Recipe) -> Sources:
    """Open and measure the inputs. Raises InputError for what does not fit together."""
    regions, images = _open_pictures(inputs, recipe)
    facts = NO_REGIONS
    if regions is not None and inputs.regions is not None:
        facts = region_facts(inputs.regions)
        _check_classes(inputs.regions, regions, facts, recipe)
    init = load_checkpoint(inputs.init, "--init") if inputs.init else None
    if init is not None and inputs.vocab is not None and _same_words(init, recipe):
        raise InputError("--vocab and --init: a checkpoint brings its vocabulary; drop --vocab")
    if regions is not None:
        _check_detector(regions.detector_fingerprint, init, inputs.init)
    count, digest = pairs_digest(inputs.pairs)
    return Sources(
        inputs=inputs,
        regions=regions,
        images=images,
        facts=facts,
        num_pairs=count,
        pairs_digest=digest,
        init=init,
        picture_tokenizer=_open_tokenizer(recipe),
    )


def _open_tokenizer(recipe: Recipe) -> PictureTokenizer | None:
    if not any(stage.objectives.mim for stage in recipe.stages):
        return None
    if recipe.picture_tokenizer is None:
        raise InputError(
            f"{FIELD} is missing: {recipe.name} guesses tokens of pictures; add {FIELD}=FILE with "
            "the weights of DALL-E's encoder or of BEiT's tokenizer"
        )
    return read_picture_tokenizer(recipe.picture_tokenizer)


def _same_words(init: LoadedCheckpoint, recipe: Recipe) -> bool:
    """Whether the run reads text by the checkpoint's vocabulary; BEiT has read none."""
    return init.variant == recipe.variant


def _open_pictures(
    inputs: Inputs, recipe: Recipe
) -> tuple[RegionReader | None, ImageReader | None]:
    feeds = [stage.feeding for stage in recipe.stages]
    regions = images = None
    if any(feeding.reads_regions for feeding in feeds):
        if inputs.regions is None:
            raise InputError(f"--regions is missing: {recipe.name} learns from regions")
        regions = RegionReader(inputs.regions)
    if any(feeding.reads_pictures for feeding in feeds):
        if inputs.images is None:
            raise InputError(f"--images is missing: {recipe.name} learns from pictures")
        images = ImageReader(inputs.images)
    return regions, images


def _check_classes(where: str, regions: RegionReader, facts: RegionFacts, recipe: Recipe) -> None:
    if not facts.num_classes and any(stage.objectives.moc for stage in recipe.stages):
        raise InputError(
            f"--regions {where} has no class ids, which objectives.moc needs; "
            "extract them with classes, or add objectives.moc=0"
        )
    wanted = any(stage.feeding.region_targets == "distribution" for stage in recipe.stages)
    if wanted and "class_probs" not in regions.arrays:
        say(
            f"warning: --regions {where} has no distribution over classes; the class itself is the "
            "target (extract with --class-probs full or topk:K for the distribution)"
        )


def _check_detector(ours: str | None, init: LoadedCheckpoint | None, where: str | None) -> None:
    theirs = init and init.detector_fingerprint
    if ours and theirs and ours != theirs:
        raise InputError(
            f"--regions come from detector {ours}, --init {where} was trained on {theirs}; "
            "extract the regions with that detector, or start without --init"
        )
    if ours is None or (init is not None and theirs is None):
        who = "--regions" if ours is None else "--init"
        say(f"warning: {who} has no detector fingerprint; the detector counts as unknown")


def say(line: str) -> None:
    """Tell the user on standard error; standard output is for the result."""
    print(line, file=sys.stderr, flush=True)


def settings_of(recipe: Recipe, sources: Sources) -> dict[str, Any]:
    """What decides the output: the recipe's fields, and the inputs by content, not by path."""
    inputs, init = sources.inputs, sources.init
    fields = {k: v for k, v in flatten(to_plain(recipe)).items() if k not in NO_EFFECT}
    negatives = find_shards(inputs.negatives, NEGATIVES, "--negatives") if inputs.negatives else []
    tokenizer = [Path(p)] if (p := recipe.picture_tokenizer) else []
    return fields | {
        "pairs": f"{sources.num_pairs} pairs, {sources.pairs_digest[:16]}",
        "regions": _table_digest(sources.regions, f"detector {sources.fingerprint or 'unknown'}"),
        "images": _table_digest(sources.images, "encoded"),
        "negatives": _digest(negatives, "--negatives"),
        "vocab": _digest([Path(inputs.vocab)] if inputs.vocab else [], "--vocab"),
        FIELD: _digest(tokenizer, FIELD),
        "init": _digest([init.path / MODEL] if init else [], "--init"),
    }


def _table_digest(reader: RegionReader | ImageReader | None, what: str) -> str | None:
    """By size: reading terabytes of features only to hash them would take hours."""
    if reader is None:
        return None
    size = sum(path.stat().st_size for path in reader.paths)
    return f"{len(reader)} pictures, {size} bytes, {what}"


def _digest(paths: list[Path], flag: str) -> str | None:
    """The start of SHA-256 over the files' content; None without a file."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise InputError(f"{flag} {path} cannot be read: {error.strerror}") from None
    return digest.hexdigest()[:16] if paths else None


def make_tokenizer(recipe: Recipe, sources: Sources) -> Tokenizer:
    """``--init``'s, ``--vocab``'s, or one trained on the captions that are not held out."""
    if sources.init is not None and _same_words(sources.init, recipe):
        return sources.init.tokenizer
    if sources.inputs.vocab is not None:
        return read_vocabulary(sources.inputs.vocab)

    def texts() -> Iterator[str]:
        with Progress(total=sources.num_pairs, unit="pair", label="vocabulary") as progress:
            for rows in pair_rows(sources.inputs.pairs):
                progress.advance(len(rows))
                yield from (row["text"] for row in rows if not is_held_out(row))

    return train_vocabulary(texts(), recipe.vocabulary_size)


def model_config(recipe: Recipe, tokenizer: Tokenizer, sources: Sources) -> Any:
    """The recipe's model with the data's sizes, or ``--init``'s if the data fit it."""
    config = _sized_config(recipe, tokenizer, sources)
    if sources.regions is not None:
        check_global_features(sources.regions, config)
    return config


def check_global_features(regions: RegionReader, config: Any) -> None:
    """Raises InputError if the model takes whole pictures' features and the table has other ones.

    By its first row; a later one without them is named when it is read.
    """
    widths = getattr(config, "global_widths", ())
    if not widths or not len(regions):
        return
    width = len(global_feature_of(regions.row(0)))
    if width != sum(widths):
        raise InputError(
            f"--regions has global features {width} wide, the model takes {sum(widths)} "
            f"(model.global_widths={list(widths)}); set model.global_widths=[{width}]"
        )


def _sized_config(recipe: Recipe, tokenizer: Tokenizer, sources: Sources) -> Any:
    init = sources.init
    variants = (init.variant if init else recipe.variant, recipe.variant)
    if variants[0] != variants[1] and variants not in STARTS:
        raise InputError(f"--init is a {variants[0]}, the recipe's is {recipe.variant}")
    if sources.picture_tokenizer is not None:
        return _picture_config(recipe, sources.picture_tokenizer)
    sizes: dict[str, int] = {"vocab_size": tokenizer.get_vocab_size()}
    if sources.regions is not None:
        width, classes = sources.reader.feature_dim, _num_classes(sources)
        if recipe.variant == "vl-bert-end-to-end":
            return _end_to_end_config(recipe, sizes["vocab_size"], classes, init)
        if init is not None:
            _check_sizes(init.config, width, classes)
        sizes["region_width"] = width
        sizes["num_region_classes"] = max(recipe.model.num_region_classes, classes)
    if init is None or sources.regions is None:  # VLMo's stages differ in their heads and positions
        return dataclasses.replace(recipe.model, **sizes)
    return init.config


def _end_to_end_config(
    recipe: Recipe, words: int, classes: int, init: LoadedCheckpoint | None
) -> Any:
    """Features are the network's own, of its own width."""
    if init is not None:
        inner = init.config.model
        _check_sizes(inner, inner.region_width, classes)
        return init.config
    inner = recipe.model.model
    classes = max(inner.num_region_classes, classes)
    inner = dataclasses.replace(inner, vocab_size=words, num_region_classes=classes)
    return dataclasses.replace(recipe.model, model=inner)


def _picture_config(recipe: Recipe, tokenizer: PictureTokenizer) -> Any:
    for number, stage in enumerate(recipe.stages):
        size = (stage.feeding.token_size or 0) // tokenizer.stride
        if size != recipe.model.side:
            raise InputError(
                f"stages.{number}.feeding.token_size={stage.feeding.token_size} gives {size} "
                f"tokens a side, the model has {recipe.model.side} patches; "
                f"set it to {recipe.model.side * tokenizer.stride}"
            )
    return dataclasses.replace(recipe.model, num_visual_tokens=tokenizer.num_tokens)


def _num_classes(sources: Sources) -> int:
    """Classes of the regions: of the ids, or of their distributions with background."""
    about = sources.reader.arrays.get("class_probs")
    stored = 0 if about is None else int(about.get("of", about["dim"]))
    return max(sources.facts.num_classes, stored)


def _check_sizes(config: Any, width: int, classes: int) -> None:
    if config.region_width != width or config.num_region_classes < classes:
        raise InputError(
            f"--init takes features of {config.region_width} and {config.num_region_classes} "
            f"classes, --regions has {width} and {classes}; use its detector's regions"
        )


def feature_statistics(sources: Sources) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation by dimension, float32 [D], over the first pictures with boxes.

    A dimension that hardly varies gets a twentieth of the mean deviation, lest it be blown up.
    """
    pictures = (i for i in sources.reader.image_ids if i not in sources.facts.empty)
    count, total, squares = 0, np.float64(0), np.float64(0)
    for image_id in islice(pictures, PICTURES_MEASURED):
        features = features_of(sources.reader[image_id], MAX_REGIONS).astype(np.float64)
        count += len(features)
        total, squares = total + features.sum(0), squares + (features**2).sum(0)
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    std = np.maximum(std, 0.05 * std.mean()) if std.any() else np.ones_like(std)
    return torch.tensor(mean, dtype=torch.float32), torch.tensor(std, dtype=torch.float32)
