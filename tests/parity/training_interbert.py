"""InterBERT's samples: masks of segments and groups, regions merged, text assembled, ranks."""

import re
from typing import Any

import numpy as np
import torch
from tests.parity.draws import Recorded, labels_of, laid_out
from tests.parity.golden import GoldenSet, expect, naming
from tests.parity.results import Results

from vlmill.train.loading.batch import full_image
from vlmill.train.loading.boxes import overlaps
from vlmill.train.loading.collate import padded_locations
from vlmill.train.loading.joined_regions import count_shown, whole_weights
from vlmill.train.loading.masking.regions import mask_groups, masked_by
from vlmill.train.loading.masking.words import (
    Lexicon,
    MaskedTokens,
    Replacement,
    mask_texts,
    one_span,
    replace_masked,
)
from vlmill.train.loading.pairing import choose_pairing
from vlmill.train.settings.parts import Masking
from vlmill.train.tasks.retrieval.metrics import KS, rank_summary, ranks_among
from vlmill.train.tasks.vcr.texts import Piece, choice_texts, name_objects

IGNORED = -1
CAPTION = r'"([^"]+)": ([^",;]+)'  # of a pool: its id and its words


def data_ops(golden: GoldenSet, results: Results) -> None:
    """The released rules of the data, fed the recorded draws."""
    results.given("text_cases:vocab", "text_cases:text", "text_cases:*.tokens")
    results.given("text_cases:*draws*", "text_cases:*.vocab_choice_indices")
    results.given("text_cases:vcr.*.question", "text_cases:vcr.*.answers")
    results.given("text_cases:vcr.*.object_names", "text_cases:vcr.*.max_length")
    kinds = {"pre": sample, "mom": object_masks, "mrm": group_masks, "vcr": merged_regions}
    for case in sorted({key.split(".")[0] for key in golden.tensors}):
        if case[:3] in kinds:
            with naming(case):
                kinds[case[:3]](golden, results, case)
    if "iou.out.iou" in golden.tensors:
        results.check("iou.out.iou", torch.from_numpy(overlaps_of(golden)))
    if "rank.in.scores" in golden.tensors:
        ranks(golden, results)
    for case in text_cases(golden, r"span|mlm\d+", "tokens"):
        with naming(case):
            word_masks(golden, results, case)
    for case in text_cases(golden, "vcr", "max_length"):
        texts_of_choices(golden, results, case)


def text_cases(golden: GoldenSet, kinds: str, name: str) -> list[str]:
    """The keys of the cases of text that have a value ``name``, of the ``kinds`` asked for."""
    pattern = re.compile(rf"(text_cases:(?:{kinds})\.\d+)\.{name}")
    return [found[1] for key in golden.values if (found := pattern.fullmatch(key))]


def captions_of(golden: GoldenSet) -> tuple[str, dict[str, list[str]]]:
    """The sample's own id and the words of the pool's captions, which README.md tells.

    Words are listed, or are ``w0..w6`` for seven.
    """
    own, pool = golden.words(r'sample id "([^"]+)"[^;]*; pool ([^;]+);')
    captions: dict[str, list[str]] = {}
    for caption, words in re.findall(CAPTION, pool):
        ends = re.fullmatch(r"w(\d+)\.\.w(\d+)", words.strip())
        numbered = [f"w{n}" for n in range(int(ends[1]), int(ends[2]) + 1)] if ends else None
        captions[caption] = numbered or words.split()
    expect(own in captions, f"{golden.folder / 'README.md'}: the pool has no caption {own!r}")
    return own, captions


def shares(golden: GoldenSet) -> tuple[float, float]:
    """The share of anchors, and the overlap from which on a region belongs to one's group."""
    share, threshold = golden.words(r"anchor if < ([\d.]+).*?IoU ≥ ([\d.]+)")
    return float(share), float(threshold)


def replacement(golden: GoldenSet) -> Replacement:
    vocabulary = golden.values["text_cases:vocab"]
    return Replacement(mask_id=vocabulary.index("[MASK]"), vocab_size=len(vocabulary))


def numbered(golden: GoldenSet, words: list[str]) -> np.ndarray[Any, np.dtype[np.int64]]:
    vocabulary = golden.values["text_cases:vocab"]
    return np.array([vocabulary.index(word) for word in words], dtype=np.int64)


class Captions:
    """A table of captions, whose ids end with their number of an image's."""

    def __init__(self, ids: list[str]) -> None:
        self.ids = ids

    def matches(self, text_row: int, image_row: int) -> bool:
        return self.ids[text_row][:-1] == self.ids[image_row][:-1]

    def hard_negatives(self, row: int) -> Any:
        return np.empty(0, dtype=np.int64)


def sample(golden: GoldenSet, results: Results, case: str) -> None:
    """A whole sample of pretraining with spans and groups."""

    def recorded(name: str) -> Any:
        return golden.tensors[f"{case}.in.{name}"].numpy()

    length = len(golden.tensors[f"{case}.out.input_ids"])
    num_rows = len(golden.tensors[f"{case}.out.image_loc"])
    key = "integer_draws_lo_hi_value"
    low, high, drawn = recorded(key).T
    in_range = (low <= drawn).all() and (drawn <= high).all()
    expect(in_range, f"{golden.folder}: {case}.in.{key}: a value is outside its range")
    integers = [*drawn.tolist(), *recorded("vocab_choice_draws").tolist()]
    draws = Recorded(recorded("uniform_draws"), integers)
    own, captions = captions_of(golden)
    ids = list(captions)
    # A run asks two numbers more where it takes another caption, for what it draws that from.
    asked = Recorded([draws.random(), 0.5, 0.5], draws.whole)
    row, _, matching = choose_pairing(
        ids.index(own),
        np.arange(len(ids)),
        Captions(ids),
        asked,
        negative_share=0.5,
        hard_share=0.0,
        text_share=1.0,
    )
    draws.whole = asked.whole
    tokens = numbered(golden, captions[ids[row]][: length - 2])
    text = replace_masked(tokens, one_span(len(tokens), draws), draws, replacement(golden))
    check_text(golden, results, case, tokens, text)
    results.check(f"{case}.out.is_next", torch.tensor(int(not matching)))
    check_regions(golden, results, case, draws)
    draws.finish()
    words = torch.arange(length) < len(tokens) + 2
    regions = torch.arange(num_rows) < len(recorded("boxes_xyxy"))
    results.check(f"{case}.out.input_mask", words.long())
    results.check(f"{case}.out.image_mask", regions.long())
    results.check(f"{case}.out.multimodal_mask", torch.cat([regions, words]).long())


def check_text(
    golden: GoldenSet, results: Results, case: str, tokens: Any, text: MaskedTokens
) -> None:
    cls, sep, pad = numbered(golden, ["[CLS]", "[SEP]", "[PAD]"])
    padding = [pad] * (len(golden.tensors[f"{case}.out.input_ids"]) - 2 - len(tokens))
    results.check(f"{case}.out.input_ids", torch.tensor([cls, *text.tokens, sep, *padding]))
    labels = [IGNORED, *labels_of(text, IGNORED), IGNORED, *(IGNORED for _ in padding)]
    results.check(f"{case}.out.lm_label_ids", torch.tensor(labels))


def check_regions(golden: GoldenSet, results: Results, case: str, draws: Recorded) -> None:
    """Groups by overlaps in whole pixels; every region without a feature is to be guessed."""
    boxes, features, size = (
        golden.tensors[f"{case}.in.{name}"].numpy()
        for name in ("boxes_xyxy", "feature_sum_check", "image_wh")
    )
    width, height = size.tolist()
    num_rows = len(golden.tensors[f"{case}.out.image_loc"])
    (locations,) = padded_locations([boxes], [(int(width), int(height))], len(boxes))
    overlap = overlaps(locations[:, :4], pixel=(1 / width, 1 / height))
    share, threshold = shares(golden)
    masks = mask_groups(overlap, draws, anchor_share=share, threshold=threshold, inclusive=True)
    masked = torch.from_numpy(features).masked_fill(torch.from_numpy(masks.zeroed)[:, None], 0)
    labels = np.where(masks.masked, 1, IGNORED)
    hidden, count = torch.from_numpy(masks.zeroed)[None], torch.tensor([len(features)])
    (whole,) = full_image(masked[None], count, hidden, "mean")
    results.check_all(
        {
            f"{case}.out.image_loc": rows(locations, num_rows),
            f"{case}.out.image_feat_first_dims": rows(masked.numpy(), num_rows),
            f"{case}.out.image_label": torch.from_numpy(
                np.pad(labels, (0, num_rows - len(labels)), constant_values=IGNORED)
            ),
            f"{case}.out.global_feat_first_dims": whole,
            f"{case}.out.global_loc": torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0]),
        }
    )


def rows(values: Any, count: int) -> torch.Tensor:
    """``values`` [R, ...] with zeros below up to ``count`` rows."""
    return torch.from_numpy(np.pad(values, ((0, count - len(values)), (0, 0))))


def object_masks(golden: GoldenSet, results: Results, case: str) -> None:
    """A region for itself; of the masked ones a share keeps its feature."""
    share, to_zero = (int(n) / 100 for n in golden.words(r"(\d+) % rule with (\d+)/\d+"))
    uniforms = golden.tensors[f"{case}.in.uniform_draws"].tolist()
    masks = masked_by(np.array(uniforms), share=share, to_zero=to_zero)
    results.check(f"{case}.out.label", torch.from_numpy(np.where(masks.masked, 1, IGNORED)))
    results.check(f"{case}.out.zeroed", torch.from_numpy(masks.zeroed))


def overlaps_of(golden: GoldenSet) -> Any:
    """Of the recorded boxes, with whole pixels; the last rows are padding."""
    width, height = golden.tensors["iou.in.image_wh"].tolist()
    boxes = golden.tensors["iou.in.image_loc"][:, :4].numpy()
    return overlaps(boxes, pixel=(1 / width, 1 / height))


def group_masks(golden: GoldenSet, results: Results, case: str) -> None:
    """On the boxes of ``iou``, without padded ones."""
    uniforms = golden.tensors[f"{case}.in.uniform_draws"].tolist()
    share, threshold = shares(golden)
    overlap = settled_overlaps(golden, results, case, threshold)[: len(uniforms), : len(uniforms)]
    masks = mask_groups(
        overlap, Recorded(uniforms), anchor_share=share, threshold=threshold, inclusive=True
    )
    results.check(f"{case}.out.label", torch.from_numpy(np.where(masks.masked, 1, IGNORED)))
    results.check(f"{case}.out.zeroed", torch.from_numpy(masks.zeroed))


def settled_overlaps(golden: GoldenSet, results: Results, case: str, threshold: float) -> Any:
    """Our overlaps; the recorded ones where these are as near to the threshold as they may be off.

    Only what falls on the other side of it counts as an exchange.
    """
    ours, recorded = overlaps_of(golden), golden.tensors["iou.out.iou"]
    margin = (recorded.double() - threshold).abs()
    near = (margin <= golden.allowed("iou.out.iou", recorded)).numpy()
    fallen = near & ((ours >= threshold) != (recorded.numpy() >= threshold))
    results.exchange(f"{case}.out.label", margin.numpy()[fallen].tolist())
    return np.where(near, recorded.numpy(), ours)


def merged_regions(golden: GoldenSet, results: Results, case: str) -> None:
    detected, annotated = (
        (
            golden.tensors[f"{case}.in.{kind}_feat_with_global"].numpy(),
            golden.tensors[f"{case}.in.{kind}_loc_with_global"].numpy(),
        )
        for kind in ("detected", "gt")
    )
    most = int(golden.tensors[f"{case}.in.max_regions"])
    features, locations = merged(detected, annotated, most)
    num_rows = len(golden.tensors[f"{case}.out.mask"])
    results.check(f"{case}.out.feat", rows(features, num_rows))
    results.check(f"{case}.out.loc", rows(locations, num_rows))
    results.check(f"{case}.out.mask", (torch.arange(num_rows) < len(features)).long())


Rows = tuple[Any, Any]  # features and locations, the full image's first


def merged(detected: Rows, annotated: Rows, most: int) -> Rows:
    """The rows that our joined regions have.

    The recorded image's feature is not the mean of its regions: ours is asked of regions that all
    have it.
    """
    counts = len(detected[0]) - 1, len(annotated[0]) - 1
    shown = count_shown(*counts, most - 1)
    tables = (detected, annotated)
    wholes = [np.repeat(table[0][:1], n, 0) for table, n in zip(tables, counts, strict=True)]
    whole = full_image(
        torch.from_numpy(np.concatenate(wholes))[None],
        torch.tensor([sum(counts)]),
        torch.zeros(1, sum(counts), dtype=torch.bool),
        "mean",
        torch.from_numpy(whole_weights(*counts))[None],
    ).numpy()
    features, locations = (
        [table[part][1 : n + 1] for table, n in zip(tables, shown, strict=True)]
        for part in range(2)
    )
    first = detected[1][:1]
    return np.concatenate([whole, *features]), np.concatenate([first, *locations])


def ranks(golden: GoldenSet, results: Results) -> None:
    right = golden.tensors["rank.in.target_image"].numpy()
    ours = ranks_among(golden.tensors["rank.in.scores"].numpy(), right)
    results.check("rank.out.rank0", torch.from_numpy(ours.optimistic))
    summary = rank_summary(ours)
    figures = {f"r{k}": 100 * summary[f"r{k}"] for k in KS}
    figures |= {"medr": summary["median_rank"], "meanr": summary["mean_rank"]}
    for key in golden.tensors:
        names = key.removeprefix("rank.out.").split("_")
        if names[-1] in figures:
            strange = [name for name in names if name not in figures]
            expect(not strange, f"{golden.folder}: {key}: no figure {', '.join(strange)} here")
            values = [figures[name] for name in names]
            results.check(key, torch.tensor(values, dtype=torch.float64))


def word_masks(golden: GoldenSet, results: Results, key: str) -> None:
    """One span, or each token for itself."""
    fields = ("tokens", "uniform_draws", "vocab_choice_indices", "integer_draws_lo_hi_value")
    recorded = {field: golden.values.get(f"{key}.{field}", []) for field in fields}
    integers = [draw[2] for draw in recorded["integer_draws_lo_hi_value"]]
    draws = Recorded(recorded["uniform_draws"], [*integers, *recorded["vocab_choice_indices"]])
    tokens, fate = numbered(golden, recorded["tokens"]), replacement(golden)
    name = key.removeprefix("text_cases:").partition(".")[0]
    if name == "span":
        text = replace_masked(tokens, one_span(len(tokens), draws), draws, fate)
    else:
        every = np.ones(len(tokens), dtype=np.bool_)
        masking = Masking(words=int(name.removeprefix("mlm")) / 100)
        numbers = laid_out(every, every, draws, masking, fate.vocab_size)
        lexicon = Lexicon(
            mask_id=fate.mask_id,
            size=fate.vocab_size,
            continues=np.zeros(fate.vocab_size, dtype=np.bool_),
            specials=frozenset(),
        )
        drawn = Recorded(numbers.ravel().tolist())
        (text,) = mask_texts(
            [tokens], [drawn], masking, lexicon, longest=len(tokens), specials=False
        )
    draws.finish()
    vocabulary = golden.values["text_cases:vocab"]
    results.check(f"{key}.masked_tokens", [vocabulary[i] for i in text.tokens])
    results.check(f"{key}.labels", labels_of(text, IGNORED).tolist())


def texts_of_choices(golden: GoldenSet, results: Results, key: str) -> None:
    """The released code's cut, which the choices share."""
    names, longest = golden.values[f"{key}.object_names"], golden.values[f"{key}.max_length"]
    first, *choices = (
        [Piece(word, number) for word, number in name_objects(words, names)]
        for words in (golden.values[f"{key}.question"], *golden.values[f"{key}.answers"])
    )
    texts = choice_texts(first, choices, max_tokens=longest, shared_cut=True)
    for i, text in enumerate(texts):
        tokens = [piece.token for piece in text.pieces]
        padding = [0] * (longest - len(tokens))
        results.check_all(
            {
                f"{key}.per_answer.{i}.tokens": tokens,
                f"{key}.per_answer.{i}.input_ids": numbered(golden, tokens).tolist() + padding,
                f"{key}.per_answer.{i}.input_mask": [1] * len(tokens) + padding,
                f"{key}.per_answer.{i}.segment_ids": text.segments + padding,
            }
        )
