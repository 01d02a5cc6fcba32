"""VLMo's masks of words and patches, answers, and augmentation."""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tests.parity.draws import Python, collator_draws, collator_row, labels_of
from tests.parity.golden import GoldenSet, NotComparable, expect
from tests.parity.results import Results

from vlmill.schemas.answers import process_answer, soft_score
from vlmill.train.loading.images.crop import OPERATIONS
from vlmill.train.loading.masking.patches import BlockMasking
from vlmill.train.loading.masking.words import (
    MaskedTokens,
    Replacement,
    replace_masked,
    whole_words,
)

IGNORED = -100
WORD = re.compile(r"w\d+")
OPERATION = re.compile(r"out\.(\w+)\.(\w+)")


def rules(golden: GoldenSet, results: Results) -> None:
    """Masks and answers, or the operations of augmentation, whichever are recorded."""
    if any(OPERATION.fullmatch(key.rpartition(":")[2]) for key in golden.outputs()):
        randaugment(golden, results)
    results.given("rules:reference", "rules:*.seed", "rules:*.mlm_probability", "rules:*.max_len")
    results.given("rules:*.input_tokens", "rules:*.input_ids", "rules:*.tokens_incl_cls_sep")
    for key in ("grid", "num_masking_patches", "min_num_patches", "max_num_patches", "min_aspect"):
        results.given(f"rules:block_masks.*.{key}")
    results.given("rules:block_masks.*.stats.n")
    for i in count(golden.values, "rules:block_masks", "grid"):
        block_masks(golden, results, f"rules:block_masks.{i}")
    if several := count(golden.values, "rules:whole_word_masks", "seed"):
        vocabulary = Vocabulary.of(golden, [f"rules:whole_word_masks.{i}" for i in several])
        for i in several:
            whole_word_mask(golden, results, f"rules:whole_word_masks.{i}", vocabulary)
        for i in count(golden.values, "rules:whole_word_mask_statistics", "max_len"):
            prefix = f"rules:whole_word_mask_statistics.{i}"
            word_statistics(golden, results, prefix, vocabulary)
    for key in golden.values:
        kind, _, value = key.partition(".")
        if kind == "rules:vqa_answer_normalisation":
            results.check(key, process_answer(value))
        elif kind == "rules:vqa_score_by_count":
            results.check(key, soft_score(int(value)))


def count(values: Mapping[str, Any], prefix: str, name: str) -> range:
    """The entries of a recorded list, each of which has ``name``."""
    entries = [k for k in values if k.startswith(f"{prefix}.") and k.split(".")[2:] == [name]]
    return range(len(entries))


@dataclass(frozen=True)
class Vocabulary:
    """What the recorded rows tell of the vocabulary that they were made with."""

    ids: Mapping[str, int]
    replacement: Replacement

    @classmethod
    def of(cls, golden: GoldenSet, rows: Sequence[str]) -> "Vocabulary":
        """The ids of all recorded tokens, and of [MASK] the one that most masked tokens became.

        Nothing tells the vocabulary's size but ids that were drawn at random from it: it is the
        smallest with which PyTorch's generator draws all of them.
        """
        ids: dict[str, int] = {}
        for row in rows:
            names, numbers = (golden.values[f"{row}.input_{kind}"] for kind in ("tokens", "ids"))
            ids |= dict(zip(names, numbers, strict=True))
        became = [became for row in rows for _, _, became in replaced(golden, row)]
        if not became:
            raise NotComparable(
                f"{golden.folder}: whole_word_masks mask nothing, [MASK] is unknown"
            )
        mask_id = statistics.mode(became)
        smallest = max(*ids.values(), *became) + 1
        for size in range(smallest, 2 * smallest):
            replacement = Replacement(mask_id=mask_id, vocab_size=size)
            if all(is_drawn(golden, row, replacement) for row in rows):
                return cls(ids, replacement)
        raise NotComparable(
            f"{golden.folder}: whole_word_masks.*.masked_ids: no vocabulary of {smallest} to "
            f"{2 * smallest} tokens gives the ids that were drawn at random"
        )


def replaced(golden: GoldenSet, row: str) -> list[tuple[int, int, int]]:
    """Place, original and new id of every masked token that does not stay as it is."""
    labels, masked = (golden.values[f"{row}.{name}"] for name in ("labels", "masked_ids"))
    places = enumerate(zip(labels, masked, strict=True))
    return [(i, label, new) for i, (label, new) in places if label not in (IGNORED, new)]


def is_drawn(golden: GoldenSet, row: str, replacement: Replacement) -> bool:
    """Whether a vocabulary of this size gives a row's random ids."""
    generator = torch.Generator().manual_seed(golden.values[f"{row}.seed"])
    _, ids = collator_row(len(golden.values[f"{row}.masked_ids"]), replacement, generator)
    changed = replaced(golden, row)
    return all(ids[i] == new for i, _, new in changed if new != replacement.mask_id)


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
    draws = Python(values[f"{prefix}.examples.0.seed"])  # the statistics begin with it again
    number = values[f"{prefix}.stats.n"]
    masks = np.stack([masking.draw(draws) for _ in range(number)])
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
    replacement: Replacement,
) -> MaskedTokens:
    """A row after the collator of `transformers`, which draws from ``generator``."""
    masked = chosen & ~special
    draws = collator_draws(masked, replacement, generator)
    row = replace_masked(ids, masked, draws, replacement)
    draws.finish()
    return row


def whole_word_mask(
    golden: GoldenSet, results: Results, prefix: str, vocabulary: Vocabulary
) -> None:
    tokens, ids, seed, share = (
        golden.values[f"{prefix}.{name}"]
        for name in ("input_tokens", "input_ids", "seed", "mlm_probability")
    )
    continues = [token.startswith("##") for token in tokens]
    blocked = [token in ("[CLS]", "[SEP]") for token in tokens]
    chosen = whole_words(continues, blocked, Python(seed), share=share)
    special = np.array([token.startswith("[") for token in tokens])
    generator = torch.Generator().manual_seed(seed)
    row = masked_row(np.array(ids), chosen, special, generator, vocabulary.replacement)
    results.check(f"{prefix}.word_mask_before_special_removal", chosen.astype(int).tolist())
    results.check(f"{prefix}.masked_ids", row.tokens.tolist())
    results.check(f"{prefix}.labels", labels_of(row, IGNORED).tolist())


def word_statistics(
    golden: GoldenSet, results: Results, prefix: str, vocabulary: Vocabulary
) -> None:
    """Captions of random words, padded, drawn from the seed and share of the first example."""
    length, width = (golden.values[f"{prefix}.{n}"] for n in ("tokens_incl_cls_sep", "max_len"))
    first = "rules:whole_word_masks.0"
    seed, share = (golden.values[f"{first}.{name}"] for name in ("seed", "mlm_probability"))
    num_draws, num_words = map(int, golden.words(r"\((\d+) draws, (\d+) candidate words\)"))
    fate, (cls, sep, pad) = vocabulary.replacement, special_ids(golden, vocabulary)
    begin = first_word(golden, vocabulary)
    draws, generator = Python(seed), torch.Generator().manual_seed(seed)
    blocked = np.isin(np.arange(width), [0, length - 1])
    special = (np.arange(width) >= length - 1) | blocked
    masked, to_mask, unchanged, empty = 0, 0, 0, 0
    for _ in range(num_draws):
        words = [begin + draws.source.choice(range(num_words)) for _ in range(length - 2)]
        ids = np.array([cls, *words, sep] + [pad] * (width - length))
        chosen = whole_words([False] * width, blocked.tolist(), draws, share=share)
        row = masked_row(ids, chosen, special, generator, fate)
        number = int(row.masked.sum())
        masked, empty = masked + number, empty + (not number)
        to_mask += int((row.tokens[row.masked] == fate.mask_id).sum())
        unchanged += int((row.tokens == ids)[row.masked].sum())
    statistics = {
        "mean_masked": masked / num_draws,
        "share_of_word_tokens": masked / num_draws / (length - 2),
        "share_mask_token": to_mask / masked,
        "share_unchanged": unchanged / masked,
        "samples_without_target": empty / num_draws,
    }
    results.check_all({f"{prefix}.{name}": value for name, value in statistics.items()})


def special_ids(golden: GoldenSet, vocabulary: Vocabulary) -> list[int]:
    """The ids of [CLS], [SEP] and [PAD]."""
    names = ("[CLS]", "[SEP]", "[PAD]")
    without = [name for name in names if name not in vocabulary.ids]
    expect(not without, f"{golden.folder}: whole_word_masks have no {', '.join(without)}")
    return [vocabulary.ids[name] for name in names]


def first_word(golden: GoldenSet, vocabulary: Vocabulary) -> int:
    """The id of the word ``w0``, from whichever words are recorded; they are numbered."""
    begins = {i - int(word[1:]) for word, i in vocabulary.ids.items() if WORD.fullmatch(word)}
    expect(len(begins) == 1, f"{golden.folder}: whole_word_masks: words w0, w1, ... not in order")
    return begins.pop()


# Which way the recorded "a" of an operation goes; "b" goes the other.
FIRST_WAY = {"Rotate": -1}
LEVEL_7 = "7"  # VLMo's, which our operations have


def randaugment(golden: GoldenSet, results: Results) -> None:
    """The operations of augmentation; their integers have a tolerance of grey levels."""
    for key in golden.outputs():
        stem, _, recorded = key.rpartition(":")
        found = OPERATION.fullmatch(recorded)
        if found is None:
            continue
        name, variant = found.groups()
        level = stem.rpartition("level")[2]
        expect(
            level == LEVEL_7 and name in OPERATIONS,
            f"{golden.folder}/{stem}.safetensors: {recorded}: our operations are of level "
            f"{LEVEL_7}: {', '.join(OPERATIONS)}",
        )
        image = "in.image_min0" if variant == "min0" else "in.image"
        operate, _ = OPERATIONS[name]
        sign = FIRST_WAY.get(name, 1) * (-1 if variant == "b" else 1)
        ours = operate(golden.tensors[f"{stem}:{image}"].numpy(), sign)
        results.check(key, torch.from_numpy(ours))
