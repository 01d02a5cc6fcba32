"""Runs the official repositories' own ranking of captions and images, for comparison in one run.

They take the checkouts that `official_models` names. ViLBERT's and InterBERT's is the loop of
their ``eval_retrieval.py`` with ``--zero_shot``: each caption with all images in one batch (500
there, as many as are given here), captions padded to 30 tokens and images to 100 or 102 rows, all
heads of pretraining computed. VL-BERT, which has no such loop, reads pairs in batches of 8 that are
padded to the longest, as its loader pads them. PyTorch's norm has the place of apex's.

Each writes its weights into a folder before anything else, and after each pass its scores: log odds
[I, T] that a caption belongs to an image.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from peers.captions import SIDE_PX, PeerWork
from peers.official_models import (
    VL_BERT_PRETRAINING,
    Step,
    interbert_code,
    vilbert_code,
    vl_bert_code,
)
from peers.works import mask_of
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

WEIGHTS, SCORES = "weights.pt", "scores.npy"
MAX_TOKENS = 30
PAIRS = 8  # of a batch of VL-BERT
CLASSES = 1_601


def vilbert(root: Path, work: PeerWork, folder: Path) -> tuple[nn.Module, Step]:
    """Makes the loop of ViLBERT with six co-attention layers."""
    code, config = vilbert_code(root)
    config.fast_mode = True  # as its loop sets it: the first text layers once a caption
    torch.manual_seed(0)
    model: nn.Module = code.BertForMultiModalPreTraining(config)
    return model, _caption_by_caption(model, work, folder, max_rows=100)


def interbert(root: Path, work: PeerWork, folder: Path) -> tuple[nn.Module, Step]:
    """Makes the loop of InterBERT in its released depth."""
    code, config = interbert_code(root)
    torch.manual_seed(0)
    model: nn.Module = code.InterBertForMultiModalPreTraining(config)
    return model, _caption_by_caption(model, work, folder, max_rows=102)


def _caption_by_caption(model: nn.Module, work: PeerWork, folder: Path, max_rows: int) -> Step:
    """Each caption with all images, as ``eval_retrieval.py`` has it."""
    torch.save(model.state_dict(), folder / WEIGHTS)
    model.eval()
    of_all = "multimodal_mask" in model.forward.__code__.co_varnames
    features, locations = (
        F.pad(rows, (0, 0, 0, max_rows - rows.shape[1])) for rows in (work.features, work.locations)
    )
    image_mask = mask_of(work.region_lengths, max_rows).long()
    images = len(features)

    def step(_: bool) -> None:
        scores = np.zeros((images, len(work.captions)), dtype=np.float32)
        for at, caption in enumerate(work.captions):
            tokens = torch.zeros(1, MAX_TOKENS, dtype=torch.int64)
            tokens[0, : len(caption)] = torch.from_numpy(caption)
            mask, more = (tokens > 0).long(), dict[str, Tensor]()
            if of_all:  # InterBERT's loop repeats the caption itself
                more["multimodal_mask"] = torch.cat([image_mask, mask.expand(images, -1)], dim=1)
                tokens = tokens.expand(images, -1)
            with torch.no_grad():
                # Its loader copies all images for each caption.
                logits = model(
                    tokens,
                    features.clone(),
                    locations,
                    torch.zeros(1, MAX_TOKENS, dtype=torch.int64),
                    mask,
                    image_mask,
                    **more,
                )[2]
            scores[:, at] = (logits[:, 0] - logits[:, 1]).numpy()
        np.save(folder / SCORES, scores)

    return step


def vl_bert(root: Path, work: PeerWork, folder: Path) -> tuple[nn.Module, Step]:
    """Makes VL-BERT base's pass over all pairs, with the head that its settings leave out."""
    code, config = vl_bert_code(root, *VL_BERT_PRETRAINING)
    config["NETWORK"]["WITH_REL_LOSS"] = True
    config["NETWORK"]["VLBERT"]["with_pooler"] = True
    torch.manual_seed(0)
    model: Any = code.ResNetVLBERTForPretraining(config)
    torch.save(model.state_dict(), folder / WEIGHTS)
    model.eval()
    present = mask_of(work.region_lengths, work.features.shape[1])
    boxes = torch.cat([work.locations[..., :4] * SIDE_PX, work.features], dim=-1)
    boxes = torch.where(present[..., None], boxes, -2.0)
    count = len(work.captions)
    order = torch.randperm(len(boxes) * count, generator=torch.Generator().manual_seed(0))

    def logits(pairs: Tensor) -> Tensor:
        texts = [torch.from_numpy(work.captions[at]) for at in (pairs % count).tolist()]
        tokens, images = pad_sequence(texts, batch_first=True), boxes[pairs // count]
        rows = int((images[:, :, 0] > -1.5).sum(1).max())
        nothing = torch.zeros(len(pairs), rows, dtype=torch.int64)
        outputs, _ = model(
            None,
            images[:, :rows].clone(),
            torch.full((len(pairs), 4), float(SIDE_PX)),
            tokens,
            torch.zeros(len(pairs), dtype=torch.int64),
            torch.full_like(tokens, -1),
            nothing,
            torch.zeros(len(pairs), rows, CLASSES),
        )
        two: Tensor = outputs["relationship_logits"]
        return two[:, 1] - two[:, 0]

    def step(_: bool) -> None:
        scores = torch.zeros(len(order))
        with torch.no_grad():
            for start in range(0, len(order), PAIRS):
                pairs = order[start : start + PAIRS]
                scores[pairs] = logits(pairs)
        np.save(folder / SCORES, scores.view(len(boxes), count).numpy())

    return model, step


RETRIEVAL_PEERS: dict[str, Callable[[Path, PeerWork, Path], tuple[nn.Module, Step]]] = {
    "vilbert": vilbert,
    "interbert": interbert,
    "vl-bert": vl_bert,
}
