"""VLMo's masks of words and patches, answers, and augmentation."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tests.parity.draws import Python, collator_draws, labels_of
from tests.parity.golden import GoldenSet, Results

from vlmill.schemas.answers import process_answer, soft_score
from vlmill.train.loading.masking.patches import BlockMasking
from vlmill.train.loading.masking.words import (
    MaskedTokens,
    Replacement,
    replace_masked,
    whole_words,
)
from vlmill.train.loading.pictures.augment import OPERATIONS

SEED, DRAWS = 1234, 2000  # of the recorded statistics
WORDS, SPECIAL = 40, 5  # words of the recorded vocabulary, and the special tokens before them
REPLACEMENT = Replacement(mask_id=4, vocab_size=65)
SHARE = 0.15


def rules(golden: GoldenSet, results: Results) -> None:
    """The set ``vlmo/rules``; its seeds are Python's and PyTorch's."""
    values = golden.values
    results.given("rules:reference", "rules:*.seed", "rules:*.mlm_probability", "rules:*.max_len")
    results.given("rules:*.input_tokens", "rules:*.input_ids", "rules:*.tokens_incl_cls_sep")
    for key in ("grid", "num_masking_patches", "min_num_patches", "max_num_patches", "min_aspect"):
        results.given(f"rules:block_masks.*.{key}")
    results.given("rules:block_masks.*.stats.n")
    for i in count(values, "rules:block_masks", "grid"):
        block_masks(golden, results, f"rules:block_masks.{i}")
    for i in count(values, "rules:whole_word_masks", "seed"):
        whole_word_mask(golden, results, f"rules:whole_word_masks.{i}")
    for i in count(values, "rules:whole_word_mask_statistics", "max_len"):
        word_statistics(golden, results, f"rules:whole_word_mask_statistics.{i}")
    for key in values:
        kind, _, value = key.partition(".")
        if kind == "rules:vqa_answer_normalisation":
            results.check(key, process_answer(value))
        elif kind == "rules:vqa_score_by_count":
            results.check(key, soft_score(int(value)))


def count(values: dict[str, Any], prefix: str, name: str) -> range:
    """The entries of a recorded list, each of which has ``name``."""
    entries = [k for k in values if k.startswith(f"{prefix}.") and k.split(".")[2:] == [name]]
    return range(len(entries))


def block_masks(golden: GoldenSet, results: Results, prefix: str) -> None:
    values = golden.values
    masking = BlockMasking(
        grid=values[f"{prefix}.grid"],
        patches=values[f"{prefix}.num_masking_patches"],
        smallest=values[f"{prefix}.min_num_patches"],
        largest=values[f"{prefix}.max_num_patches"],
        aspect=values[f"{prefix}.min_aspect"],
    )
    for key in [k for k in values if k.startswith(f"{prefix}.examples") and k.endswith(".rows")]:
        mask = masking.draw(Python(values[key.replace(".rows", ".seed")]))
        results.check(key, ["".join(str(int(masked)) for masked in row) for row in mask])
    draws = Python(SEED)
    masks = np.stack([masking.draw(draws) for _ in range(DRAWS)])
    counts, rate, middle = masks.sum(axis=(1, 2)), masks.mean(axis=0), masking.grid // 2
    centre = rate[middle - 1 : middle + 1, middle - 1 : middle + 1]
    edge = [rate[0], rate[-1], rate[:, 0], rate[:, -1]]
    statistics = {
        "mean_count": counts.mean(),
        "min_count": int(counts.min()),
        "max_count": int(counts.max()),
        "fraction_exact": (counts == masking.patches).mean(),
        "centre_rate": centre.mean(),
        "corner_rate": rate[[0, 0, -1, -1], [0, -1, 0, -1]].mean(),
        "edge_rate": np.mean(edge),
    }
    results.check_all({f"{prefix}.stats.{name}": value for name, value in statistics.items()})


def masked_row(
    ids: npt.NDArray[np.int64],
    chosen: npt.NDArray[np.bool_],
    special: npt.NDArray[np.bool_],
    generator: torch.Generator,
) -> MaskedTokens:
    masked = chosen & ~special
    draws = collator_draws(masked, REPLACEMENT, generator)
    row = replace_masked(ids, masked, draws, REPLACEMENT)
    draws.finish()
    return row


def whole_word_mask(golden: GoldenSet, results: Results, prefix: str) -> None:
    tokens, ids, seed, share = (
        golden.values[f"{prefix}.{name}"]
        for name in ("input_tokens", "input_ids", "seed", "mlm_probability")
    )
    continues = [token.startswith("##") for token in tokens]
    blocked = [token in ("[CLS]", "[SEP]") for token in tokens]
    chosen = whole_words(continues, blocked, Python(seed), share=share)
    special = np.array([token.startswith("[") for token in tokens])
    row = masked_row(np.array(ids), chosen, special, torch.Generator().manual_seed(seed))
    results.check(f"{prefix}.word_mask_before_special_removal", chosen.astype(int).tolist())
    results.check(f"{prefix}.masked_ids", row.tokens.tolist())
    results.check(f"{prefix}.labels", labels_of(row, np.array(ids), -100).tolist())


def word_statistics(golden: GoldenSet, results: Results, prefix: str) -> None:
    """Captions of random words, padded, from one seed."""
    length, width = (golden.values[f"{prefix}.{n}"] for n in ("tokens_incl_cls_sep", "max_len"))
    draws, generator = Python(SEED), torch.Generator().manual_seed(SEED)
    blocked = np.isin(np.arange(width), [0, length - 1])
    special = (np.arange(width) >= length - 1) | blocked
    masked, to_mask, unchanged, empty = 0, 0, 0, 0
    for _ in range(DRAWS):
        words = [SPECIAL + draws.source.choice(range(WORDS)) for _ in range(length - 2)]
        ids = np.array([2, *words, 3] + [0] * (width - length))
        chosen = whole_words([False] * width, blocked.tolist(), draws, share=SHARE)
        row = masked_row(ids, chosen, special, generator)
        number = int(row.masked.sum())
        masked, empty = masked + number, empty + (not number)
        to_mask += int((row.tokens[row.masked] == REPLACEMENT.mask_id).sum())
        unchanged += int((row.tokens == ids)[row.masked].sum())
    statistics = {
        "mean_masked": masked / DRAWS,
        "share_of_word_tokens": masked / DRAWS / (length - 2),
        "share_mask_token": to_mask / masked,
        "share_unchanged": unchanged / masked,
        "samples_without_target": empty / DRAWS,
    }
    results.check_all({f"{prefix}.{name}": value for name, value in statistics.items()})


# Which way the recorded "a" of an operation goes; "b" goes the other.
FIRST_WAY = {"Rotate": -1}


def randaugment(golden: GoldenSet, results: Results) -> None:
    """The set ``vlmo/randaugment``; its integers have a tolerance of two grey levels."""
    spared = golden.entry["except"]
    for key in golden.outputs():
        _, name, variant = key.rpartition(":")[2].split(".")
        assert f"out.{name}.{variant}" not in spared
        picture = "in.image_min0" if variant == "min0" else "in.image"
        operate, _ = OPERATIONS[name]
        sign = FIRST_WAY.get(name, 1) * (-1 if variant == "b" else 1)
        ours = operate(golden.tensors[f"ops_level7:{picture}"].numpy(), sign)
        results.check(key, torch.from_numpy(ours))
