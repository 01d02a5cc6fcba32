"""Aligns texts and regions before a model reads them together: a contrast of separate passes.

A model that reads pairs scores B x B pairs a step, which two cores compute for few B. Before that,
a step here passes B texts without regions, and B images without words, and contrasts their pooled
vectors: the cost of 2 B passes. None of the four papers does it; the order (align, then fuse) is
that of ALBEF (arXiv:2107.07651). InterBERT's own fusion and matching head make the scores; one
stream has no such vectors, so its scores are the cosines of mean hidden states times `SCALE`.

B pairs, T tokens, R regions, D width of features, P width of pooled vectors.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn

from real.tables import Tables
from vlmill.models import VARIANTS
from vlmill.models.inputs import VLInputs
from vlmill.models.interbert.model import InterBert
from vlmill.models.outputs import Encoded
from vlmill.runtime.readers.regions import RegionReader
from vlmill.train.checkpoints.files import (
    CheckpointRecord,
    TrainingRecord,
    load_checkpoint,
    save_checkpoint,
)
from vlmill.train.loading.arrays import Ids
from vlmill.train.recipes import get_training
from vlmill.train.settings.parts import Feeding
from vlmill.train.tasks.retrieval.candidates import encode_texts, read_pairs
from vlmill.train.tasks.retrieval.inputs import RegionImages

SCALE = 20.0  # of cosines
WARMUP = 0.1
LOG_EVERY = 20
OLD = ("text_embedding", "layers", "interaction_layers", "text_layers", "mlm_head")  # MiniLM's


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """Says how a model is aligned. Of MiniLM's weights those whose names start with one of
    ``trained`` are trained, with the rate times ``old_rate``.
    """

    model: str
    config: Any
    feeding: Feeding
    steps: int = 300
    batch_size: int = 64
    lr: float = 5e-4
    trained: tuple[str, ...] = ()
    old_rate: float = 0.2
    seed: int = 0

    @property
    def name(self) -> str:
        """Returns the name of its folder."""
        return f"real-align-{self.model}"


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Holds training captions as ids, the number of each one's image, and all images' regions.

    Features have float16, and locations and masks as in `VLInputs`.
    """

    tokens: tuple[Ids, ...]
    owners: NDArray[np.int64]
    features: Float[Tensor, "images R D"]
    locations: Float[Tensor, "images R 5"]
    masks: Bool[Tensor, "images R"]


def align(settings: Alignment, tables: Tables, folder: Path) -> None:
    """Writes a checkpoint of the aligned model."""
    torch.manual_seed(settings.seed)
    bert, reader = load_checkpoint(tables.bert), RegionReader(str(tables.regions))
    examples = load_examples(settings.feeding, tables, reader, bert.tokenizer)
    model: Any = VARIANTS[settings.model].model(settings.config)
    real = examples.features[examples.masks].float()
    model.standardise_regions(real.mean(0), real.std(0))
    get_training(settings.model).start(model, bert)
    run_steps(model, settings, examples)
    training = TrainingRecord(
        recipe=settings.name,
        stage="alignment",
        step=settings.steps,
        num_pairs=len(examples.tokens),
    )
    record = CheckpointRecord(
        variant=settings.model,
        tokenizer=bert.tokenizer,
        training=training,
        detector_fingerprint=reader.detector_fingerprint,
        feeding=settings.feeding,
    )
    save_checkpoint(folder, model.eval(), record)


def load_examples(
    feeding: Feeding, tables: Tables, reader: RegionReader, tokenizer: Tokenizer
) -> Examples:
    """Reads the training captions and their images' regions."""
    pairs = read_pairs(str(tables.pairs), "train").pairs
    image_ids = sorted({str(pair.image_id) for pair in pairs})
    numbers = {image_id: number for number, image_id in enumerate(image_ids)}
    batch = RegionImages(reader, feeding).batch(image_ids).to(torch.device("cpu")).inputs
    assert feeding.max_tokens is not None
    return Examples(
        tokens=encode_texts(tokenizer, [pair.text for pair in pairs], feeding.max_tokens).tokens,
        owners=np.array([numbers[str(pair.image_id)] for pair in pairs]),
        features=batch.region_features,
        locations=batch.region_locations,
        masks=batch.region_mask,
    )


def run_steps(model: Any, settings: Alignment, examples: Examples) -> None:
    """Trains a model; most of MiniLM stays as it is."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(OLD) or name.startswith(settings.trained))
    optimizer = torch.optim.AdamW(parameter_groups(model, settings), weight_decay=0.01)
    warmup, steps = max(1, int(WARMUP * settings.steps)), settings.steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, (steps - step) / (steps - warmup))
    )
    model.train()
    for step, rows in enumerate(draw_rows(len(examples.tokens), settings)):
        owners = torch.from_numpy(examples.owners[rows])
        logits = score_passes(model, *passes(model, examples, rows))
        same = (owners[:, None] == owners) & ~torch.eye(len(rows), dtype=torch.bool)
        logits = logits.masked_fill(same, -torch.inf)
        target = torch.arange(len(rows))
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % LOG_EVERY == 0:
            print(f"align: step {step}, loss {loss.item():.3f}", file=sys.stderr, flush=True)
    model.requires_grad_(True)


def parameter_groups(model: nn.Module, settings: Alignment) -> list[dict[str, Any]]:
    """Returns MiniLM's weights with their smaller rate, and the new ones."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    old = [p for n, p in named if n.startswith(OLD)]
    new = [p for n, p in named if not n.startswith(OLD)]
    return [
        {"params": old, "lr": settings.lr * settings.old_rate},
        {"params": new, "lr": settings.lr},
    ]


def draw_rows(count: int, settings: Alignment) -> Iterator[NDArray[np.int64]]:
    """Yields the captions of each step, each caption once an epoch."""
    sampler, order = np.random.default_rng(settings.seed), np.empty(0, np.int64)
    for _ in range(settings.steps):
        if len(order) < settings.batch_size:
            order = sampler.permutation(count)
        rows, order = order[: settings.batch_size], order[settings.batch_size :]
        yield rows


def passes(model: Any, examples: Examples, rows: NDArray[np.int64]) -> tuple[Encoded, Encoded]:
    """Returns the texts of captions without an image, and their images without words.

    One stream gets [CLS] and [SEP] with an image.
    """
    texts = [examples.tokens[row] for row in rows.tolist()]
    length = max(map(len, texts))
    tokens = torch.zeros(len(texts), length, dtype=torch.int64)
    mask = torch.zeros(len(texts), length, dtype=torch.bool)
    for number, text in enumerate(texts):
        tokens[number, : len(text)] = torch.from_numpy(text)
        mask[number, : len(text)] = True
    owners = torch.from_numpy(examples.owners[rows])
    regions = {
        "region_features": examples.features[owners].float(),
        "region_locations": examples.locations[owners],
        "region_mask": examples.masks[owners],
    }
    none = {name: value[:, :0] for name, value in regions.items()}
    ends = 0 if isinstance(model, InterBert) else 2
    marks = torch.from_numpy(texts[0][[0, -1]])[None].expand(len(texts), -1)[:, :ends]
    text = model(VLInputs(tokens=tokens, token_mask=mask, **none))
    images = VLInputs(tokens=marks, token_mask=torch.ones_like(marks, dtype=torch.bool), **regions)
    return text, model(images)


def score_passes(model: Any, texts: Encoded, images: Encoded) -> Float[Tensor, "B B"]:
    """Returns the scores of all pairs, texts in rows."""
    if isinstance(model, InterBert):
        return stream_scores(model, texts, images)
    return cosines(texts, images)


def stream_scores(model: InterBert, texts: Encoded, images: Encoded) -> Float[Tensor, "B B"]:
    """Returns InterBERT's matching logits of all pairs, without its interaction."""
    fused = texts.pooled[:, None] * images.pooled
    return model.match_logit(fused.flatten(0, 1)).view(fused.shape[:2])


def cosines(texts: Encoded, images: Encoded) -> Float[Tensor, "B B"]:
    """Returns the scaled cosines of all pairs: mean words and mean regions, from the step's mean.

    [CLS] hardly differs between texts, so that its cosines start, and stay, equal.
    """
    words, regions = texts.text[:, 1:].mean(1), images.regions.mean(1)
    words, regions = words - words.mean(0), regions - regions.mean(0)
    return SCALE * F.normalize(words, dim=1) @ F.normalize(regions, dim=1).T
