"""VL-BERT's samples of pretraining, fed the recorded draws."""

from typing import Any

import numpy as np
import torch
from PIL import Image
from tests.parity.draws import Recorded
from tests.parity.golden import GoldenSet, Results
from tokenizers import Tokenizer

from vlmill.train.loading import vlbert_sample as ours
from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.boxes import Size, resized_boxes, scales
from vlmill.train.loading.masking.words import NO_WORD, MaskedTokens, Replacement
from vlmill.train.loading.pairing import draw_other
from vlmill.train.loading.sample import kept_lengths, kept_tokens
from vlmill.train.loading.vocabulary import CLS, MASK, SEP, read_vocabulary

IGNORED = -1
SETTINGS = (
    "case",
    "sample",
    "precomputed",
    "with_rel_task",
    "seq_len",
    "min_size",
    "max_size",
    "flip_prob",
)
BGR_MEAN = (102.9801, 115.9465, 122.7717)


def pretraining_samples(golden: GoldenSet, results: Results) -> None:
    """Of ``vlbert/data_pipeline`` what is pretraining: captions with pictures, and text alone."""
    tokenizer = read_vocabulary(golden.folder / "vocab.txt")
    results.given("cases:conceptual_captions_samples.*", "tensors:cc.sample*", "cases:meta.*")
    results.given("cases:text_corpus_lines", "cases:*.draws")
    for prefix, names, compare in (
        ("conceptual_captions", SETTINGS, caption),
        ("text_corpus", ("index", "seq_len", "min_seq_len"), text_alone),
    ):
        results.given(*(f"cases:{prefix}.*.{name}" for name in names))
        for case in entries(golden, prefix):
            compare(golden, results, tokenizer, case)


def entries(golden: GoldenSet, prefix: str) -> list[str]:
    keys = [key for key in golden.values if key.startswith(f"cases:{prefix}.")]
    return list(dict.fromkeys(".".join(key.split(".")[:2]) for key in keys))


def recorded_draws(golden: GoldenSet, tokenizer: Any, case: str) -> Recorded:
    """Choices of the vocabulary are recorded as tokens."""
    drawn = golden.values[f"{case}.draws"]
    uniforms = [value for kind, value in drawn if kind == "random"]
    others = [(kind, value) for kind, value in drawn if kind != "random"]
    return Recorded(
        uniforms,
        [tokenizer.token_to_id(value) if kind == "choice" else value for kind, value in others],
    )


def masked(tokenizer: Tokenizer, words: list[str], draws: Recorded) -> tuple[Ids, MaskedTokens]:
    """[CLS] text [SEP], whole words masked."""
    encoded = tokenizer.encode(" ".join(words))
    numbers = np.array([NO_WORD if i is None else i for i in encoded.word_ids])
    ids = np.array(encoded.ids, dtype=np.int64)
    return ids, ours.mask_caption(ids, numbers, draws, replacement(tokenizer))


def replacement(tokenizer: Any) -> Replacement:
    return Replacement(mask_id=tokenizer.token_to_id(MASK), vocab_size=tokenizer.get_vocab_size())


def caption(golden: GoldenSet, results: Results, tokenizer: Tokenizer, case: str) -> None:
    """One sample: mirroring, relation, words, regions, and the cut to its length."""
    setting = {name: golden.values[f"{case}.{name}"] for name in SETTINGS}
    draws = recorded_draws(golden, tokenizer, case)
    mirrored = ours.is_mirrored(draws, setting["flip_prob"])
    row, samples = setting["sample"], len(entries(golden, "conceptual_captions_samples"))
    own = ours.own_caption(draws, relation=setting["with_rel_task"])
    text_row = row if own else draw_other(draws, samples, lambda i: i != row)
    words = golden.values[f"cases:conceptual_captions_samples.{text_row}.caption"]
    ids, text = masked(tokenizer, words, draws)
    size = Size(
        **{
            name: golden.values[f"cases:conceptual_captions_samples.{row}.image_{name[0]}"]
            for name in ("width", "height")
        }
    )
    new = size.resized(setting["min_size"], setting["max_size"])
    regions = ours.with_picture(source_regions(golden, row, setting["precomputed"]), size)
    regions = ours.Regions(
        boxes=resized_boxes(regions.boxes, size, new, mirrored=mirrored),
        distributions=regions.distributions,
        features=regions.features,
    )
    regions, masks = ours.mask_picture_regions(regions, draws)
    draws.finish()
    kept, number = kept_lengths(len(ids), len(regions.boxes), setting["seq_len"])
    places = kept_tokens(len(ids), kept)
    name = f"tensors:cc.case{setting['case']}"
    if f"{name}.image" in golden.tensors:
        picture = pixels(golden, row, new, mirrored)
        hidden = ours.hide_pixels(picture, regions.boxes, masks.zeroed)
        results.check(f"{name}.image", torch.from_numpy(hidden))
    regions = regions.first(number)
    table = [regions.boxes, *([] if regions.features is None else [regions.features])]
    results.check(f"{name}.boxes", torch.from_numpy(np.concatenate(table, axis=1)))
    results.check(f"{name}.mvrc_labels", torch.from_numpy(regions.distributions))
    seen = text.tokens[places]
    results.check_all(
        {
            f"{case}.text": seen.tolist(),
            f"{case}.tokens": [tokenizer.id_to_token(int(token)) for token in seen],
            f"{case}.mlm_labels": text.labels(ids, IGNORED)[places].tolist(),
            f"{case}.relationship_label": int(own),
            f"{case}.mvrc_ops": masks.zeroed[:number].astype(int).tolist(),
            f"{case}.im_info": image_info(size, new, row),
        }
    )


def source_regions(golden: GoldenSet, row: int, precomputed: bool) -> ours.Regions:
    boxes, distributions, features = (
        golden.tensors[f"tensors:cc.sample{row}.{name}"].numpy()
        for name in ("boxes", "class_scores", "features")
    )
    return ours.Regions(
        boxes=boxes, distributions=distributions, features=features if precomputed else None
    )


def image_info(size: Size, new: Size, row: int) -> list[float]:
    return [float(x) for x in (new.width, new.height, *scales(size, new), row)]


def pixels(golden: GoldenSet, row: int, new: Size, mirrored: bool) -> Any:
    """The picture as the detector takes it [3, H, W]."""
    source = Image.fromarray(golden.tensors[f"tensors:cc.sample{row}.image_uint8"].numpy())
    resized = np.asarray(source.resize((new.width, new.height), Image.Resampling.BILINEAR))
    values = resized[:, ::-1] if mirrored else resized
    centred = values[..., ::-1].astype(np.float32) - np.array(BGR_MEAN, dtype=np.float32)
    return np.ascontiguousarray(centred.transpose(2, 0, 1))


def text_alone(golden: GoldenSet, results: Results, tokenizer: Tokenizer, case: str) -> None:
    """Lines joined to at least the sample's length in words, masked, cut in pieces."""
    lines = golden.values["cases:text_corpus_lines"]
    longest, fewest = (golden.values[f"{case}.{name}"] for name in ("seq_len", "min_seq_len"))
    numbers = [set(tokenizer.encode(line).word_ids) - {None} for line in lines]
    counts = [len(words) for words in numbers]
    chosen = ours.joined_lines(counts, golden.values[f"{case}.index"], fewest)
    draws = recorded_draws(golden, tokenizer, case)
    ids, text = masked(tokenizer, [lines[i] for i in chosen], draws)
    draws.finish()
    inner = slice(1, -1)
    assert [tokenizer.id_to_token(int(i)) for i in ids[[0, -1]]] == [CLS, SEP]
    results.check(f"{case}.ids", text.tokens[inner][:longest].tolist())
    results.check(f"{case}.mlm_labels", text.labels(ids, IGNORED)[inner][:longest].tolist())
