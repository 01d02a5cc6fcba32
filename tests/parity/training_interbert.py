"""InterBERT's samples: masks of segments and groups, regions merged, text assembled, ranks."""

from typing import Any

import numpy as np
import torch
from tests.parity.draws import Recorded, labels_of, laid_out
from tests.parity.golden import GoldenSet, Results

from vlmill.train.loading.batch import whole_picture
from vlmill.train.loading.boxes import overlaps, padded_locations
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
from vlmill.train.recipes.spec import Masking
from vlmill.train.tasks.retrieval.metrics import rank_summary, ranks_among
from vlmill.train.tasks.vcr.texts import choice_texts, merge_regions, name_objects

CAPTIONS = {
    "10": [f"w{i}" for i in range(7)],
    "11": [f"w{i}" for i in range(20, 23)],
    "20": [f"w{i}" for i in range(30, 36)],
}
OWN, LENGTH, ROWS = "10", 12, 12  # of the three recorded samples
IGNORED = -1


def data_ops(golden: GoldenSet, results: Results) -> None:
    """The set ``interbert/data_ops``: the released rules, fed the recorded draws."""
    results.given("text_cases:vocab", "text_cases:text", "text_cases:*.tokens")
    results.given("text_cases:*draws*", "text_cases:*.vocab_choice_indices")
    results.given("text_cases:vcr.*.question", "text_cases:vcr.*.answers")
    results.given("text_cases:vcr.*.object_names", "text_cases:vcr.*.max_length")
    kinds = {"pre": sample, "mom": object_masks, "mrm": group_masks, "vcr": merged_regions}
    for case in sorted({key.split(".")[0] for key in golden.tensors}):
        if case[:3] in kinds:
            kinds[case[:3]](golden, results, case)
    results.check("iou.out.iou", torch.from_numpy(overlaps_of(golden)))
    ranks(golden, results)
    for name in ("span", "mlm15"):
        for i in range(sum(key.startswith(f"text_cases:{name}.") for key in golden.values)):
            if f"text_cases:{name}.{i}.tokens" in golden.values:
                word_masks(golden, results, f"text_cases:{name}.{i}", name)
    for i in range(sum(key.endswith(".max_length") for key in golden.values)):
        texts_of_choices(golden, results, f"text_cases:vcr.{i}")


def replacement(golden: GoldenSet) -> Replacement:
    vocabulary = golden.values["text_cases:vocab"]
    return Replacement(mask_id=vocabulary.index("[MASK]"), vocab_size=len(vocabulary))


def numbered(golden: GoldenSet, words: list[str]) -> np.ndarray[Any, np.dtype[np.int64]]:
    vocabulary = golden.values["text_cases:vocab"]
    return np.array([vocabulary.index(word) for word in words], dtype=np.int64)


class Captions:
    """A table of captions, whose ids end with their number of a picture's."""

    def __init__(self, ids: list[str]) -> None:
        self.ids = ids

    def matches(self, text_row: int, image_row: int) -> bool:
        return self.ids[text_row][:-1] == self.ids[image_row][:-1]

    def hard_negatives(self, row: int) -> Any:
        return np.empty(0, dtype=np.int64)


def sample(golden: GoldenSet, results: Results, case: str) -> None:
    """A whole sample of pretraining with spans and groups."""
    given = {
        key.removeprefix(f"{case}.in."): value.numpy()
        for key, value in golden.tensors.items()
        if key.startswith(f"{case}.in.")
    }
    low, high, drawn = given["integer_draws_lo_hi_value"].T
    assert (low <= drawn).all() and (drawn <= high).all()
    integers = [*drawn.tolist(), *given["vocab_choice_draws"].tolist()]
    draws = Recorded(given["uniform_draws"], integers)
    ids = list(CAPTIONS)
    # A run asks two numbers more where it takes another caption, for what it draws that from.
    asked = Recorded([draws.random(), 0.5, 0.5], draws.whole)
    row, _, matching = choose_pairing(
        ids.index(OWN),
        np.arange(len(ids)),
        Captions(ids),
        asked,
        negative_share=0.5,
        hard_share=0.0,
        text_share=1.0,
    )
    draws.whole = asked.whole
    tokens = numbered(golden, CAPTIONS[ids[row]][: LENGTH - 2])
    text = replace_masked(tokens, one_span(len(tokens), draws), draws, replacement(golden))
    check_text(golden, results, case, tokens, text)
    results.check(f"{case}.out.is_next", torch.tensor(int(not matching)))
    check_regions(results, case, given, draws)
    draws.finish()
    words = torch.arange(LENGTH) < len(tokens) + 2
    regions = torch.arange(ROWS) < len(given["boxes_xyxy"])
    results.check(f"{case}.out.input_mask", words.long())
    results.check(f"{case}.out.image_mask", regions.long())
    results.check(f"{case}.out.multimodal_mask", torch.cat([regions, words]).long())


def check_text(
    golden: GoldenSet, results: Results, case: str, tokens: Any, text: MaskedTokens
) -> None:
    cls, sep = numbered(golden, ["[CLS]", "[SEP]"])
    padding = [0] * (LENGTH - 2 - len(tokens))
    results.check(f"{case}.out.input_ids", torch.tensor([cls, *text.tokens, sep, *padding]))
    labels = [IGNORED, *labels_of(text, tokens, IGNORED), IGNORED, *(IGNORED for _ in padding)]
    results.check(f"{case}.out.lm_label_ids", torch.tensor(labels))


def check_regions(results: Results, case: str, given: dict[str, Any], draws: Recorded) -> None:
    """Groups by overlaps in whole pixels; every region without a feature is to be guessed."""
    boxes, features = given["boxes_xyxy"], given["feature_sum_check"]
    width, height = given["image_wh"].tolist()
    (locations,) = padded_locations([boxes], [(int(width), int(height))], len(boxes))
    overlap = overlaps(locations[:, :4], pixel=(1 / width, 1 / height))
    masks = mask_groups(overlap, draws, inclusive=True)
    masked = torch.from_numpy(features).masked_fill(torch.from_numpy(masks.zeroed)[:, None], 0)
    labels = np.where(masks.masked, 1, IGNORED)
    hidden, count = torch.from_numpy(masks.zeroed)[None], torch.tensor([len(features)])
    (whole,) = whole_picture(masked[None], count, hidden, "mean")
    results.check_all(
        {
            f"{case}.out.image_loc": rows(locations),
            f"{case}.out.image_feat_first_dims": rows(masked.numpy()),
            f"{case}.out.image_label": torch.from_numpy(
                np.pad(labels, (0, ROWS - len(labels)), constant_values=IGNORED)
            ),
            f"{case}.out.global_feat_first_dims": whole,
            f"{case}.out.global_loc": torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0]),
        }
    )


def rows(values: Any) -> torch.Tensor:
    return torch.from_numpy(np.pad(values, ((0, ROWS - len(values)), (0, 0))))


def object_masks(golden: GoldenSet, results: Results, case: str) -> None:
    """15 % and 90 %, a region for itself."""
    uniforms = golden.tensors[f"{case}.in.uniform_draws"].tolist()
    masks = masked_by(np.array(uniforms), share=0.15, to_zero=0.9)
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
    overlap = overlaps_of(golden)[: len(uniforms), : len(uniforms)]
    masks = mask_groups(overlap, Recorded(uniforms), inclusive=True)
    results.check(f"{case}.out.label", torch.from_numpy(np.where(masks.masked, 1, IGNORED)))
    results.check(f"{case}.out.zeroed", torch.from_numpy(masks.zeroed))


def merged_regions(golden: GoldenSet, results: Results, case: str) -> None:
    detected, annotated = (
        (
            golden.tensors[f"{case}.in.{kind}_feat_with_global"].numpy(),
            golden.tensors[f"{case}.in.{kind}_loc_with_global"].numpy(),
        )
        for kind in ("detected", "gt")
    )
    most = int(golden.tensors[f"{case}.in.max_regions"])
    features, locations = merge_regions(detected, annotated, most)
    results.check(f"{case}.out.feat", rows(features))
    results.check(f"{case}.out.loc", rows(locations))
    results.check(f"{case}.out.mask", (torch.arange(ROWS) < len(features)).long())


def ranks(golden: GoldenSet, results: Results) -> None:
    right = golden.tensors["rank.in.target_image"].numpy()
    ours = ranks_among(golden.tensors["rank.in.scores"].numpy(), right)
    results.check("rank.out.rank0", torch.from_numpy(ours.optimistic))
    summary = rank_summary(ours)
    figures = [100 * summary[f"r{k}"] for k in (1, 5, 10)]
    figures += [summary["median_rank"], summary["mean_rank"]]
    results.check("rank.out.r1_r5_r10_medr_meanr", torch.tensor(figures, dtype=torch.float64))


def word_masks(golden: GoldenSet, results: Results, key: str, name: str) -> None:
    """One span, or each token for itself."""
    fields = ("tokens", "uniform_draws", "vocab_choice_indices", "integer_draws_lo_hi_value")
    recorded = {field: golden.values.get(f"{key}.{field}", []) for field in fields}
    integers = [draw[2] for draw in recorded["integer_draws_lo_hi_value"]]
    draws = Recorded(recorded["uniform_draws"], [*integers, *recorded["vocab_choice_indices"]])
    tokens, fate = numbered(golden, recorded["tokens"]), replacement(golden)
    if name == "span":
        text = replace_masked(tokens, one_span(len(tokens), draws), draws, fate)
    else:
        every = np.ones(len(tokens), dtype=np.bool_)
        numbers = laid_out(every, every, draws, Masking(), fate.vocab_size)
        lexicon = Lexicon(
            mask_id=fate.mask_id,
            size=fate.vocab_size,
            continues=np.zeros(fate.vocab_size, dtype=np.bool_),
            specials=frozenset(),
        )
        drawn = Recorded(numbers.ravel().tolist())
        (text,) = mask_texts(
            [tokens], [drawn], Masking(), lexicon, longest=len(tokens), specials=False
        )
    draws.finish()
    vocabulary = golden.values["text_cases:vocab"]
    results.check(f"{key}.masked_tokens", [vocabulary[i] for i in text.tokens])
    results.check(f"{key}.labels", labels_of(text, tokens, IGNORED).tolist())


def texts_of_choices(golden: GoldenSet, results: Results, key: str) -> None:
    """The released code's cut, which the choices share."""
    names, longest = golden.values[f"{key}.object_names"], golden.values[f"{key}.max_length"]
    first = name_objects(golden.values[f"{key}.question"], names)
    choices = [name_objects(answer, names) for answer in golden.values[f"{key}.answers"]]
    texts = choice_texts(first, choices, max_tokens=longest, shared_cut=True)
    for i, text in enumerate(texts):
        padding = [0] * (longest - len(text.tokens))
        results.check_all(
            {
                f"{key}.per_answer.{i}.tokens": text.tokens,
                f"{key}.per_answer.{i}.input_ids": numbered(golden, text.tokens).tolist() + padding,
                f"{key}.per_answer.{i}.input_mask": [1] * len(text.tokens) + padding,
                f"{key}.per_answer.{i}.segment_ids": text.segments + padding,
            }
        )
