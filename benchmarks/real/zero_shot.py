"""Tests a model that ranks pairs on SugarCrepe and VSR, without training on them.

SugarCrepe: the share of images whose caption scores higher than its hard negative. VSR: the share
of pairs of a true and a false statement in which the true one scores higher (the area under the
ROC curve; chance 0.5). The blind figures are those of the same texts with another image each, so
that the texts alone decide.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from real.photographs import TASKS, Row, read_rows
from real.tables import Tables, Test, file_digest
from vlmill.runtime.readers.regions import RegionReader
from vlmill.train.checkpoints.files import LoadedCheckpoint, load_checkpoint
from vlmill.train.loading.vocabulary import encode_texts
from vlmill.train.tasks.retrieval.checks import find_feeding, longest_text
from vlmill.train.tasks.retrieval.inputs import RegionImages
from vlmill.train.tasks.retrieval.matching import make_scorer, match_scores

ZERO_SHOT = ("sugarcrepe", "vsr")
BATCH_SIZE = 64


def make_test(tables: Tables, name: str) -> Test:
    """Returns the test of a file below ``tasks/``."""
    path = find_file(tables, name)
    return Test(name=name, pairs=path, regions=tables.regions, digest=file_digest(path))


def find_file(tables: Tables, name: str) -> Path:
    """Returns the path of a set's file."""
    return tables.data / TASKS / f"{name}.tsv"


def measure_zero_shot(checkpoint: Path, test: Test) -> dict[str, float]:
    """Returns the figures of a checkpoint, and the blind ones, in 0..1."""
    rows, loaded = read_rows(test.pairs), load_checkpoint(checkpoint)
    reader = RegionReader(str(test.regions))
    measure = measure_captions if test.name == "sugarcrepe" else measure_statements
    image_ids = [row["image"] for row in rows]
    every = sorted(set(image_ids))
    following = dict(zip(every, [*every[1:], every[0]], strict=True))
    figures = measure(loaded, reader, rows, image_ids)
    blind = measure(loaded, reader, rows, [following[image_id] for image_id in image_ids])
    return figures | {f"blind/{name}": value for name, value in blind.items()}


def measure_captions(
    loaded: LoadedCheckpoint, reader: RegionReader, rows: list[Row], image_ids: list[str]
) -> dict[str, float]:
    """Returns the share of rows whose caption scores higher, of all and of each kind."""
    texts = [row[name] for row in rows for name in ("caption", "negative_caption")]
    scores = score_pairs(loaded, reader, texts, [i for i in image_ids for _ in range(2)])
    right = scores[0::2] > scores[1::2]
    kinds = np.array([row["kind"] for row in rows])
    figures = {"accuracy": float(right.mean())}
    return figures | {
        f"accuracy/{kind}": float(right[kinds == kind].mean()) for kind in sorted(set(kinds))
    }


def measure_statements(
    loaded: LoadedCheckpoint, reader: RegionReader, rows: list[Row], image_ids: list[str]
) -> dict[str, float]:
    """Returns the area under the ROC curve of the statements' scores; ties count half."""
    scores = score_pairs(loaded, reader, [row["statement"] for row in rows], image_ids)
    is_true = np.array([row["label"] == "1" for row in rows])
    differences = scores[is_true][:, None] - scores[~is_true][None]
    return {"auroc": float(((differences > 0) + 0.5 * (differences == 0)).mean())}


def score_pairs(
    loaded: LoadedCheckpoint, reader: RegionReader, texts: list[str], image_ids: list[str]
) -> NDArray[np.float32]:
    """Returns the matching logit of each text with its image, float32 [N]."""
    feeding: Any = find_feeding(loaded)
    tokens = encode_texts(loaded.tokenizer, texts, longest_text(loaded, feeding)).tokens
    every = sorted(set(image_ids))
    numbers = np.array([every.index(image_id) for image_id in image_ids])
    chosen = np.zeros((len(every), len(texts)), dtype=np.bool_)
    chosen[numbers, np.arange(len(texts))] = True
    scores = match_scores(
        make_scorer(loaded.model, feeding.max_elements),
        tokens,
        every,
        RegionImages(reader, feeding),
        device=torch.device("cpu"),
        batch_size=BATCH_SIZE,
        chosen=chosen,
    )
    own: NDArray[np.float32] = scores[numbers, np.arange(len(texts))]
    return own
