"""Records the data that a run has read, for its checkpoints and its manifest."""

from pathlib import Path
from typing import Any

from vlmill.runtime.console.lineage import read_record
from vlmill.runtime.files.digests import file_input, path_input, table_input
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import IMAGES, NEGATIVES, PAIRS, REGIONS, Table
from vlmill.train.checkpoints.folders import MODEL
from vlmill.train.loading.images.tokenizer import FIELD
from vlmill.train.loading.vocabulary import vocabulary_files
from vlmill.train.recipes import Recipe, RunSettings
from vlmill.train.run.inputs import Sources

WEIGHTS = "--weights"


def run_inputs(recipe: RunSettings, sources: Sources) -> list[Input]:
    """Records the run's tables, and the files and checkpoint that it starts from."""
    inputs = sources.inputs
    tables: dict[str, tuple[str | None, Table]] = {
        "--pairs": (inputs.pairs, PAIRS),
        "--regions": (inputs.regions if sources.regions else None, REGIONS),
        "--annotated-regions": (inputs.annotated_regions if sources.regions else None, REGIONS),
        "--images": (inputs.images if sources.images else None, IMAGES),
        "--negatives": (inputs.negatives, NEGATIVES),
    }
    if (examples := inputs.examples) is not None:
        tables["--examples"] = (examples.path, examples.table)
    records = [
        table_input(flag, argument, table)
        for flag, (argument, table) in tables.items()
        if argument is not None
    ]
    if sources.init is not None:
        records.append(checkpoint_input("--init", sources.init.path))
    tokenizer = recipe.picture_tokenizer if isinstance(recipe, Recipe) else None
    files: list[tuple[str, str | Path]] = [(FIELD, tokenizer)] if tokenizer is not None else []
    if inputs.vocab is not None:
        files = [*(("--vocab", path) for path in vocabulary_files(inputs.vocab)), *files]
    return records + [file_input(flag, path) for flag, path in files]


def checkpoint_input(flag: str, folder: Path) -> Input:
    """Records a checkpoint by the ends of its weights; its own inputs are in its folder."""
    job, _ = read_record(folder)
    return path_input(flag, folder / MODEL, job=job or "train-vl")


def detector_record(regions: RegionReader) -> dict[str, Any]:
    """Records how the regions were made: the shards' producer, and the weights' SHA-256.

    The digest is of the file that `extract-rois run` was given, where the regions' manifest has
    recorded it.
    """
    record = dict(regions.producer)
    try:
        _, inputs = read_record(regions.paths[0].parent)
    except InputError:
        return record  # a damaged manifest has no record; the shards have been read
    digests = [entry.digest for entry in inputs or [] if entry.flag == WEIGHTS]
    return record | {"weights_sha256": digests[0]} if digests else record
