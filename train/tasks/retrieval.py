"""Retrieval with a matching head: every picture against every text.

I images, T texts, R regions, D feature width. All I x T pairs pass through the model, because a
single-stream model reads both together. The matching logit ranks, and not its sigmoid: it has the
same order and does not saturate into ties.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from vlmill.models.imagebert import ImageBert
from vlmill.schemas.commands import InputError
from vlmill.schemas.regions import RegionReader
from vlmill.schemas.rejects import Reason, reject
from vlmill.train.collate import Regions
from vlmill.train.metrics import Ranks, Scores

STAGE = "evaluate_retrieval"  # in the rejects table


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A row of the pairs table, as far as retrieval needs it."""

    pair_id: str
    image_id: str
    text: str
    split: str | None = None


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """What is ranked: T texts and I pictures; ``owners`` int64 [T] is each text's picture."""

    pairs: tuple[Pair, ...]
    image_ids: tuple[str, ...]
    owners: NDArray[np.int64]


def select_candidates(
    pairs: Sequence[Pair], regions: RegionReader
) -> tuple[Candidates, list[dict[str, object]]]:
    """Keep the pairs that can be scored, in their order, and a row of the rejects for each other.

    Raises InputError if a pair_id comes twice: its figure would count twice.
    """
    repeated = _repeated([pair.pair_id for pair in pairs])
    if repeated:
        raise InputError(
            f"--pairs has {len(repeated)} pair_ids twice or more (first: "
            f"{', '.join(repeated[:5])}); give each pair once"
        )
    fault: dict[str, Reason | None] = {}
    kept: list[Pair] = []
    rejects = []
    for pair in pairs:
        if pair.image_id not in fault:
            fault[pair.image_id] = _picture_fault(pair.image_id, regions)
        reason = fault[pair.image_id] or (None if pair.text.strip() else Reason.NO_TEXT)
        if reason is None:
            kept.append(pair)
        else:
            rejects.append(reject(STAGE, pair.pair_id, reason, f"image {pair.image_id}"))
    numbers: dict[str, int] = {}
    owners = [numbers.setdefault(pair.image_id, len(numbers)) for pair in kept]
    candidates = Candidates(
        pairs=tuple(kept), image_ids=tuple(numbers), owners=np.array(owners, dtype=np.int64)
    )
    return candidates, rejects


def _repeated(ids: Sequence[str]) -> list[str]:
    seen: dict[str, int] = {}
    for one in ids:
        seen[one] = seen.get(one, 0) + 1
    return [one for one, count in seen.items() if count > 1]


def _picture_fault(image_id: str, regions: RegionReader) -> Reason | None:
    if image_id not in regions:
        return Reason.NO_REGIONS
    return None if regions.num_boxes(image_id) else Reason.NO_BOXES


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int
) -> list[NDArray[np.int64]]:
    """``[CLS] text [SEP]`` as ids, cut at the end to ``max_tokens``, [SEP] kept."""
    tokenizer = Tokenizer.from_str(tokenizer.to_str())  # truncation is state: not the caller's
    tokenizer.enable_truncation(max_tokens)
    encoded = tokenizer.encode_batch(list(texts))
    return [np.array(one.ids, dtype=np.int64) for one in encoded]


@dataclass(frozen=True, kw_only=True)
class TextBatch:
    """Texts of similar length: their ``columns`` in the score matrix, ids [B, T], mask [B, T]."""

    columns: NDArray[np.int64]
    tokens: torch.Tensor
    token_mask: torch.Tensor


def text_batches(
    texts: Sequence[NDArray[np.int64]], batch_size: int, device: torch.device
) -> list[TextBatch]:
    """Batches by length, so that little of a batch is padding; each text is in one."""
    order = np.argsort([len(text) for text in texts], kind="stable")
    batches = []
    for start in range(0, len(order), batch_size):
        columns = order[start : start + batch_size]
        tokens = np.zeros((len(columns), len(texts[columns[-1]])), dtype=np.int64)
        token_mask = np.zeros(tokens.shape, dtype=bool)
        for row, column in enumerate(columns):
            tokens[row, : len(texts[column])] = texts[column]
            token_mask[row, : len(texts[column])] = True
        batches.append(
            TextBatch(
                columns=columns,
                tokens=torch.from_numpy(tokens).to(device),
                token_mask=torch.from_numpy(token_mask).to(device),
            )
        )
    return batches


@torch.inference_mode()
def score_matrix(
    model: ImageBert,
    texts: Sequence[NDArray[np.int64]],
    pictures: Iterable[Regions],
    *,
    device: torch.device,
    batch_size: int,
    advance: Callable[[int], None] = lambda pairs: None,
) -> NDArray[np.float32]:
    """Matching logits, float32 [I, T].

    Pictures are read one after the other, so memory is the matrix and one batch of ``batch_size``
    pairs. A picture's regions are embedded once for all texts and never padded. ``advance`` is
    told the number of pairs of each batch. Raises ValueError for features that are not finite.
    """
    model.eval()
    batches = text_batches(texts, batch_size, device)
    rows = []
    for number, picture in enumerate(pictures):
        if not (np.isfinite(picture.features).all() and np.isfinite(picture.locations).all()):
            raise ValueError(f"picture {number}: its features or locations are not finite")
        embedded = model.embed_regions(
            torch.from_numpy(picture.features)[None].to(device),
            torch.from_numpy(picture.locations)[None].to(device),
        )
        region_mask = torch.ones(embedded.shape[:2], dtype=torch.bool, device=device)
        row = np.empty(len(texts), dtype=np.float32)
        for batch in batches:
            count = len(batch.columns)
            output = model.encode(
                batch.tokens,
                batch.token_mask,
                embedded.expand(count, -1, -1),
                region_mask.expand(count, -1),
            )
            row[batch.columns] = model.match_logit(output.pooled).float().cpu().numpy()
            advance(count)
        rows.append(row)
    return np.stack(rows) if rows else np.empty((0, len(texts)), dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A candidate among the first: its number, logit, and whether it is a right answer."""

    candidate: int
    score: float
    right: bool


@dataclass(frozen=True, kw_only=True)
class Found:
    """A query's outcome: its number, the (pessimistic) rank of its best right answer, that answer,
    and the first few candidates.
    """

    query: int
    rank: int
    right: Neighbour
    neighbours: tuple[Neighbour, ...]


def found_images(scores: Scores, owners: NDArray[np.int64], ranks: Ranks, k: int) -> list[Found]:
    """The first ``k`` pictures of each text."""
    return [
        _found(text, scores[:, text], np.arange(len(scores)) == owners[text], ranks, k)
        for text in range(scores.shape[1])
    ]


def found_texts(scores: Scores, owners: NDArray[np.int64], ranks: Ranks, k: int) -> list[Found]:
    """The first ``k`` texts of each picture."""
    return [_found(i, row, owners == i, ranks, k) for i, row in enumerate(scores)]


def _found(
    query: int, scores: NDArray[Any], right: NDArray[np.bool_], ranks: Ranks, k: int
) -> Found:
    # Right answers last among equals, as in the ranks: the shown order never flatters either.
    order = np.lexsort((right, -scores))

    def neighbour(candidate: np.int64) -> Neighbour:
        return Neighbour(
            candidate=int(candidate), score=float(scores[candidate]), right=bool(right[candidate])
        )

    return Found(
        query=query,
        rank=int(ranks.pessimistic[query]),
        right=neighbour(order[right[order]][0]),
        neighbours=tuple(neighbour(candidate) for candidate in order[:k]),
    )


def neighbours_json(
    candidates: Candidates, by_text: Sequence[Found], by_image: Sequence[Found]
) -> dict[str, list[dict[str, Any]]]:
    """Queries with the first few they found, under ids; ranks count from 0, scores are logits."""

    def text(number: int) -> dict[str, Any]:
        return dataclasses.asdict(candidates.pairs[number])

    def image(number: int) -> dict[str, Any]:
        return {"image_id": candidates.image_ids[number]}

    def record(found: Found, query: Any, candidate: Any) -> dict[str, Any]:
        def near(n: Neighbour) -> dict[str, Any]:
            return {**candidate(n.candidate), "score": n.score, "right": n.right}

        return {
            **query(found.query),
            "rank": found.rank,
            "best_right": near(found.right),
            "neighbours": [near(n) for n in found.neighbours],
        }

    return {
        "image_retrieval": [record(found, text, image) for found in by_text],
        "text_retrieval": [record(found, image, text) for found in by_image],
    }
