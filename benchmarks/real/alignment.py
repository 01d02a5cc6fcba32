"""Aligns texts and regions before a model reads them together: a contrast of separate passes.

A model that reads pairs scores B x B pairs a step, which two cores compute for few B. Before that,
a step here passes B texts without regions, and B images without words, and contrasts their pooled
vectors: the cost of 2 B passes. None of the four papers does it; the order (align, then fuse) is
that of ALBEF (arXiv:2107.07651). InterBERT's own fusion and matching head make the scores; one
stream has no such vectors, so its scores are the cosines of mean hidden states times `SCALE`.

B pairs, T tokens, R regions, D width of features, P width of pooled vectors.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
from vlmill.models.layers.blocks import run_layers
from vlmill.models.layers.packing import make_layout
from vlmill.models.outputs import Encoded
from vlmill.models.positions import first_cells
from vlmill.runtime.readers.regions import RegionReader
from vlmill.train.checkpoints.files import (
    CheckpointRecord,
    TrainingRecord,
    load_checkpoint,
    save_checkpoint,
)
from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.vocabulary import encode_texts
from vlmill.train.recipes import get_training
from vlmill.train.settings.parts import Feeding
from vlmill.train.tasks.retrieval.candidates import read_pairs
from vlmill.train.tasks.retrieval.inputs import RegionImages, text_batches

SCALE = 20.0  # of cosines
WARMUP = 0.1
LOG_EVERY, READ_AT_ONCE = 20, 256
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

    Features have float16, and locations and masks as in `VLInputs`. ``read``: the captions before
    the last layer of the text, float16 [T, H], where all layers below are frozen.
    """

    tokens: tuple[Ids, ...]
    owners: NDArray[np.int64]
    features: Float[Tensor, "images R D"]
    locations: Float[Tensor, "images R 5"]
    masks: Bool[Tensor, "images R"]
    read: tuple[Float[Tensor, "T H"], ...] | None = None


def align(settings: Alignment, tables: Tables, folder: Path) -> None:
    """Writes a checkpoint of the aligned model."""
    torch.manual_seed(settings.seed)
    bert, reader = load_checkpoint(tables.bert), RegionReader(str(tables.regions))
    examples = load_examples(settings.feeding, tables, reader, bert.tokenizer)
    model: Any = VARIANTS[settings.model].model(settings.config)
    real = examples.features[examples.masks].float()
    model.standardise_regions(real.mean(0), real.std(0))
    get_training(settings.model).start(model, bert)
    if isinstance(model, InterBert):
        examples = replace(examples, read=read_below(model, examples.tokens))
    run_steps(model, settings, examples)
    training = TrainingRecord(
        recipe=settings.name, stage="alignment", step=settings.steps, num_pairs=len(examples.tokens)
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


@torch.no_grad()
def read_below(model: InterBert, texts: Sequence[Ids]) -> tuple[Float[Tensor, "T H"], ...]:
    """Returns the hidden states of captions before the text's last layer."""
    model.eval()
    read: dict[int, Tensor] = {}
    for batch in text_batches(texts, READ_AT_ONCE, torch.device("cpu")):
        layout = make_layout(batch.token_mask)
        hidden = layout.pack(model.text_embedding(batch.tokens, 0))
        below = [*model.interaction_layers, *model.text_layers[:-1]]
        hidden = run_layers(below, hidden, layout)
        for row, (column, length) in enumerate(zip(batch.columns, batch.lengths, strict=True)):
            read[int(column)] = hidden[row, : int(length)].half()
    return tuple(read[number].clone() for number in range(len(texts)))


def pool_read(model: InterBert, read: Sequence[Float[Tensor, "T H"]]) -> Float[Tensor, "B P"]:
    """Returns the pooled vectors of captions that were read below the last layer."""
    hidden = nn.utils.rnn.pad_sequence([text.float() for text in read], batch_first=True)
    lengths = torch.tensor([len(text) for text in read])
    mask = torch.arange(hidden.shape[1]) < lengths[:, None]
    first = first_cells((len(read), hidden.shape[1]), hidden)
    layout = make_layout(mask, read=first)
    last = run_layers([model.text_layers[-1]], layout.pack(hidden), layout)
    pooled: Tensor = model.text_pooler(last[:, 0])
    return pooled


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
        logits = step_scores(model, examples, rows)
        same = (owners[:, None] == owners) & ~torch.eye(len(rows), dtype=torch.bool)
        logits = logits.masked_fill(same, -torch.inf)
        target = torch.arange(len(rows))
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % LOG_EVERY == 0:
            print(f"align: step {step}, loss {loss.item():.3f}", file=sys.stderr, flush=True)
    model.requires_grad_(True)


def step_scores(model: Any, examples: Examples, rows: NDArray[np.int64]) -> Float[Tensor, "B B"]:
    """Returns the scores of all pairs of a step, texts in rows."""
    if examples.read is None:
        return score_passes(model, *(model(inputs) for inputs in passes(model, examples, rows)))
    texts = pool_read(model, [examples.read[row] for row in rows.tolist()])
    images = model(passes(model, examples, rows)[1])
    return stream_scores(model, texts, images.pooled)


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


def passes(model: Any, examples: Examples, rows: NDArray[np.int64]) -> tuple[VLInputs, VLInputs]:
    """Returns the inputs of captions without an image, and of their images without words.

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
    real = torch.ones_like(marks, dtype=torch.bool)
    text = VLInputs(tokens=tokens, token_mask=mask, **none)
    return text, VLInputs(tokens=marks, token_mask=real, **regions)


def score_passes(model: Any, texts: Encoded, images: Encoded) -> Float[Tensor, "B B"]:
    """Returns the scores of all pairs, texts in rows."""
    if isinstance(model, InterBert):
        return stream_scores(model, texts.pooled, images.pooled)
    return cosines(texts, images)


def stream_scores(
    model: InterBert, texts: Float[Tensor, "B P"], images: Float[Tensor, "B P"]
) -> Float[Tensor, "B B"]:
    """Returns InterBERT's matching logits of all pairs, without its interaction."""
    fused = texts[:, None] * images
    return model.match_logit(fused.flatten(0, 1)).view(fused.shape[:2])


def cosines(texts: Encoded, images: Encoded) -> Float[Tensor, "B B"]:
    """Returns the scaled cosines of all pairs: mean words and mean regions, from the step's mean.

    [CLS] hardly differs between texts, so that its cosines start, and stay, equal.
    """
    words, regions = texts.text[:, 1:].mean(1), images.regions.mean(1)
    words, regions = words - words.mean(0), regions - regions.mean(0)
    return SCALE * F.normalize(words, dim=1) @ F.normalize(regions, dim=1).T
