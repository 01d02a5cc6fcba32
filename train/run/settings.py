"""Collects the settings that decide a run's output: recipe fields, and inputs by content."""

import hashlib
from pathlib import Path
from typing import Any

from vlmill.runtime.files.reading import find_shards
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.regions import RegionReader
from vlmill.runtime.settings.plain_fields import flatten, to_plain
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import NEGATIVES, NEIGHBOURS
from vlmill.train.checkpoints.folders import MODEL
from vlmill.train.loading.images.tokenizer import FIELD
from vlmill.train.loading.vocabulary import vocabulary_files
from vlmill.train.recipes import Recipe, RunSettings
from vlmill.train.run.inputs import Sources

# Settings that runs of earlier versions do not have, with the value that changes nothing.
ADDED = dict.fromkeys(("cuda_graph", "attention_kernel", "residual_kernel", "half_norms"), False)
NO_EFFECT = ("workers", "keep_checkpoints", "max_bad", "trackers")  # may differ in a continued run


def collect_settings(recipe: Recipe, sources: Sources) -> dict[str, Any]:
    """Returns the settings that decide the output: recipe fields, and inputs by content, not
    path.
    """
    tokenizer = [Path(p)] if (p := recipe.picture_tokenizer) else []
    return collect_run_settings(recipe, sources) | {FIELD: _digest(tokenizer, FIELD)}


def collect_run_settings(recipe: RunSettings, sources: Sources) -> dict[str, Any]:
    """Returns the settings that decide any run's output, fine-tuning's too."""
    inputs, init = sources.inputs, sources.init
    fields = {
        k: v
        for k, v in to_plain(recipe).items()
        if k not in NO_EFFECT and not (k in ADDED and v == ADDED[k])
    }
    negatives = find_shards(inputs.negatives, NEGATIVES, "--negatives") if inputs.negatives else []
    what = "pairs" if inputs.examples is None else "examples"
    near = {}
    if inputs.neighbours is not None:
        shards = find_shards(inputs.neighbours, NEIGHBOURS, "--negatives")
        near = {"neighbours": _digest(shards, "--negatives")}
    return flatten(fields) | {
        what: f"{sources.pairs.count} {what}, {sources.pairs.digest[:16]}",
        "regions": _table_digest(sources.regions, f"detector {sources.fingerprint or 'unknown'}"),
        "annotated_regions": _table_digest(sources.annotated, "annotated"),
        "images": _table_digest(sources.images, "encoded"),
        "negatives": _digest(negatives, "--negatives"),
        "vocab": _digest(vocabulary_files(inputs.vocab) if inputs.vocab else [], "--vocab"),
        "init": _digest([init.path / MODEL] if init else [], "--init"),
        **near,
    }


def _table_digest(reader: RegionReader | ImageReader | None, what: str) -> str | None:
    """Returns a table's digest by size: hashing terabytes of features would take hours."""
    if reader is None:
        return None
    size = sum(path.stat().st_size for path in reader.paths)
    return f"{len(reader)} images, {size} bytes, {what}"


def _digest(paths: list[Path], flag: str) -> str | None:
    """Returns the start of SHA-256 over the files' content; None without a file."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise InputError(f"{flag} {path} cannot be read: {error.strerror}") from None
    return digest.hexdigest()[:16] if paths else None
