"""Retrieval without vision-language training: ridge regression from images to sentence vectors.

Mean EfficientNet-Lite0 features of 1,500 Flickr8k training images (224 x 224 pixels), ridge to the
mean MiniLM vectors of their first captions; the penalty is chosen on 400 validation images.

N images, D width of features, H width of sentence vectors.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize
from transformers import AutoModel, AutoTokenizer

from real import networks
from real.photographs import IMAGES, baseline_images, flickr8k_captions
from real.regions import BOUNDS
from real.tables import Tables, Test
from vlmill.schemas.images.decode import decode
from vlmill.train.tasks.retrieval.candidates import read_pairs
from vlmill.train.tasks.retrieval.metrics import retrieval_metrics

SIDE, IMAGES_PER_BATCH, TEXTS_PER_BATCH = 224, 20, 32
PENALTIES = (300.0, 1000.0, 3000.0, 10000.0)
NUM_VALIDATION = 400


@torch.inference_mode()
def image_features(folder: Path, image_ids: Sequence[str]) -> Tensor:
    """Returns mean features of squashed images, float32 [N, D]."""
    network, parts = networks.open_efficientnet(), []
    for start in range(0, len(image_ids), IMAGES_PER_BATCH):
        pixels = [
            np.asarray(
                decode((folder / IMAGES / image_id).read_bytes(), BOUNDS).image.resize(
                    (SIDE, SIDE), Image.Resampling.BICUBIC
                )
            )
            for image_id in image_ids[start : start + IMAGES_PER_BATCH]
        ]
        x = (torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() - 127) / 128
        parts.append(network.extract_features(x).mean((2, 3)))
    return torch.cat(parts)


@torch.inference_mode()
def text_vectors(folder: Path, texts: Sequence[str]) -> Tensor:
    """Returns mean vectors of MiniLM's last layer, float32 [texts, H]."""
    network, parts = AutoModel.from_pretrained(folder).eval(), []
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for start in range(0, len(texts), TEXTS_PER_BATCH):
        batch = tokenizer(
            list(texts[start : start + TEXTS_PER_BATCH]),
            padding=True,
            truncation=True,
            max_length=32,
            return_tensors="pt",
        )
        mask = batch["attention_mask"][..., None]
        parts.append((network(**batch).last_hidden_state * mask).sum(1) / mask.sum(1))
    return torch.cat(parts)


def fit_ridge(x: Tensor, y: Tensor, penalty: float) -> Tensor:
    """Returns the weights [D, H] of standardised features to centred unit vectors."""
    unit = normalize(y, dim=1)
    target = unit - unit.mean(0)
    weights: Tensor = torch.linalg.solve(x.T @ x + penalty * torch.eye(x.shape[1]), x.T @ target)
    return weights


def similarities(x: Tensor, y: Tensor, weights: Tensor, centre: Tensor) -> NDArray[np.float32]:
    """Returns the cosines of images [N, D] and texts [texts, H], one row for each image."""
    images, texts = normalize(x @ weights, dim=1), normalize(normalize(y, dim=1) - centre, dim=1)
    cosines: NDArray[np.float32] = (images @ texts.T).numpy()
    return cosines


def measure_baseline(tables: Tables, tests: Sequence[Test]) -> dict[str, dict[str, float]]:
    """Returns the recalls of each test, by its name, in 0..1."""
    captions, minilm = (
        flickr8k_captions(tables.data),
        networks.unpack_minilm(tables.output / "minilm"),
    )
    train = baseline_images(tables.data)[0]
    val = sorted(image for split, image in captions if split == "val")[:NUM_VALIDATION]
    features = image_features(tables.data, [*train, *val])
    mean, std = features[: len(train)].mean(0), features[: len(train)].std(0) + 1e-6
    x, val_x = torch.split((features - mean) / std, [len(train), len(val)])
    first = [captions["train", image][0] for image in train]
    vectors = text_vectors(minilm, [*first, *(captions["val", image][0] for image in val)])
    y, val_y = torch.split(vectors, [len(train), len(val)])
    centre = normalize(y, dim=1).mean(0)

    def score(weights: Tensor) -> float:
        metrics = retrieval_metrics(
            similarities(val_x, val_y, weights, centre), np.arange(len(val))
        )
        return sum(metrics[f"text_retrieval/r{k}"] for k in (1, 5, 10))

    weights = max((fit_ridge(x, y, penalty) for penalty in PENALTIES), key=score)
    results = {}
    for test in tests:
        folder = tables.test if test.name.startswith("other") else tables.data
        assert folder is not None
        pairs = read_pairs(str(test.pairs)).pairs
        image_ids = list(dict.fromkeys(str(pair.image_id) for pair in pairs))
        numbers = {image_id: number for number, image_id in enumerate(image_ids)}
        owners = np.array([numbers[str(pair.image_id)] for pair in pairs])
        test_x = (image_features(folder, image_ids) - mean) / std
        test_y = text_vectors(minilm, [pair.text for pair in pairs])
        scores = similarities(test_x, test_y, weights, centre)
        results[test.name] = retrieval_metrics(scores, owners)
    return results
