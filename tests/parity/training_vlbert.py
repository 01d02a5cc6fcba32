"""VL-BERT's samples of pretraining, made as a run makes them, fed the recorded draws."""

import io
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from tests.parity.draws import Recorded, labels_of, laid_out
from tests.parity.golden import GoldenSet, naming
from tests.parity.results import Results
from tokenizers import Tokenizer

from vlmill.models.vlbert.end_to_end import without_pixels
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.regions import RegionReader, RegionRow, encode_regions, region_arrays
from vlmill.schemas.tables import REGIONS
from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.boxes import Size, scales
from vlmill.train.loading.collate import collate
from vlmill.train.loading.features import read_features
from vlmill.train.loading.images.boxed import boxed_image
from vlmill.train.loading.images.crop import decode
from vlmill.train.loading.masking.words import Lexicon, MaskedTokens, joined_texts, mask_texts
from vlmill.train.loading.pairing import choose_pairing
from vlmill.train.loading.sample import Sample, fit_together, list_columns, sample_regions
from vlmill.train.loading.vocabulary import read_vocabulary
from vlmill.train.recipes.vlbert import vlbert_feeding, vlbert_masking

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
MASKING = vlbert_masking()


def pretraining_samples(golden: GoldenSet, results: Results) -> None:
    """Of ``vlbert/data_pipeline`` what is pretraining: captions with images, and text alone."""
    tokenizer = read_vocabulary(golden.folder / "vocab.txt")
    results.given("cases:conceptual_captions_samples.*", "tensors:cc.sample*", "cases:meta.*")
    results.given("cases:text_corpus_lines", "cases:*.draws")
    for prefix, names in (
        ("conceptual_captions", SETTINGS),
        ("text_corpus", ("index", "seq_len", "min_seq_len")),
    ):
        results.given(*(f"cases:{prefix}.*.{name}" for name in names))
    with TemporaryDirectory() as folder:
        regions = region_table(golden, folder)
        for case in entries(golden, "conceptual_captions"):
            with naming(case):
                caption(golden, results, tokenizer, regions, case)
    for case in entries(golden, "text_corpus"):
        with naming(case):
            text_alone(golden, results, tokenizer, case)


def entries(golden: GoldenSet, prefix: str) -> list[str]:
    keys = [key for key in golden.values if key.startswith(f"cases:{prefix}.")]
    return list(dict.fromkeys(".".join(key.split(".")[:2]) for key in keys))


def region_table(golden: GoldenSet, folder: str) -> RegionReader:
    """The recorded images' regions, in the recorded order."""
    rows = []
    for sample in range(len(entries(golden, "conceptual_captions_samples"))):
        boxes, probs, features = (
            golden.tensors[f"tensors:cc.sample{sample}.{name}"].numpy()
            for name in ("boxes", "class_scores", "features")
        )
        recorded = f"cases:conceptual_captions_samples.{sample}.image"
        width, height = golden.values[f"{recorded}_w"], golden.values[f"{recorded}_h"]
        rows.append(
            RegionRow(
                image_id=str(sample),
                width=width,
                height=height,
                boxes=boxes,
                features=features,
                class_probs=probs,
            )
        )
    arrays = region_arrays(
        dtype="float32", feature_dim=features.shape[1], class_probs_dim=probs.shape[1]
    )
    write_shard(folder, REGIONS, encode_regions(rows, dtype="float32"), arrays=arrays)
    return RegionReader(folder)


def recorded_draws(golden: GoldenSet, tokenizer: Any, case: str) -> Recorded:
    """Choices of the vocabulary are recorded as tokens."""
    drawn = golden.values[f"{case}.draws"]
    uniforms = [value for kind, value in drawn if kind == "random"]
    others = [(kind, value) for kind, value in drawn if kind != "random"]
    return Recorded(
        uniforms,
        [tokenizer.token_to_id(value) if kind == "choice" else value for kind, value in others],
    )


def words_begin(tokenizer: Tokenizer, text: str) -> tuple[Ids, Any]:
    """[CLS] text [SEP], and which pieces begin a word of the text."""
    encoded = tokenizer.encode(text)
    words = [-1 if word is None else word for word in encoded.word_ids]
    begins = np.diff([-1, *words], prepend=-1)[1:] != 0
    return np.array(encoded.ids, dtype=np.int64), begins & (np.array(words) >= 0)


def masked(tokenizer: Tokenizer, ids: Ids, numbers: Any, *, specials: bool = True) -> MaskedTokens:
    """Whole words of a text, masked by ``numbers`` of each piece."""
    (text,) = mask_texts(
        [ids],
        [Recorded(numbers.ravel().tolist())],
        MASKING,
        Lexicon.from_tokenizer(tokenizer),
        longest=len(ids),
        specials=specials,
    )
    return text


class Captions:
    """A table in which every image has one caption, its row's."""

    def matches(self, text_row: int, image_row: int) -> bool:
        return text_row == image_row

    def hard_negatives(self, row: int) -> Ids:
        return np.empty(0, dtype=np.int64)


def paired(draws: Recorded, row: int, rows: int, *, relation: bool) -> tuple[int, bool]:
    """Whose caption an image gets; the published code draws without the task of relations too.

    It keeps the own caption below one half and has no other negatives; a run asks two numbers more
    for these.
    """
    asked = Recorded([1 - draws.random(), *[0.5] * relation * 2], draws.whole)
    text_row, image_row, matching = choose_pairing(
        row,
        np.arange(rows),
        Captions(),
        asked,
        negative_share=0.5 if relation else 0.0,
        hard_share=0.0,
        text_share=1.0,
    )
    assert image_row == row  # no sample of ours changes the image
    draws.whole = asked.whole
    return text_row, matching


def caption(
    golden: GoldenSet, results: Results, tokenizer: Tokenizer, table: RegionReader, case: str
) -> None:
    """One sample: mirroring, relation, words, regions, and the cut to its length."""
    setting = {name: golden.values[f"{case}.{name}"] for name in SETTINGS}
    draws, sample = recorded_draws(golden, tokenizer, case), setting["sample"]
    mirror = draws.random()
    row, matching = paired(draws, sample, len(table), relation=setting["with_rel_task"])
    words = golden.values[f"cases:conceptual_captions_samples.{row}.caption"]
    ids, begins = words_begin(tokenizer, " ".join(words))
    inner = np.arange(len(ids)) % (len(ids) - 1) > 0  # neither [CLS] nor [SEP]
    numbers = laid_out(begins, inner, draws, MASKING, Lexicon.from_tokenizer(tokenizer).size)
    text = masked(tokenizer, ids, numbers)
    feeding = replace(
        vlbert_feeding(),
        flip=setting["flip_prob"],
        max_elements=setting["seq_len"],
        short_side=setting["min_size"],
        long_side=setting["max_size"],
    )
    group, within = table.locate_row(sample)
    # A run that never mirrors asks no number for it.
    of_regions = Recorded([mirror] * bool(feeding.flip) + draws.uniforms, draws.whole)
    regions = sample_regions(group, within, of_regions, feeding, MASKING, list_columns(feeding))
    of_regions.finish()
    if feeding.max_elements is not None:
        text, regions = fit_together(text, regions, feeding.max_elements, has_whole_image=True)
    shown_sample = Sample(
        pair_id=case,
        text=text,
        regions=regions,
        pixels=boxed_image(decode(image_of(golden, sample), case), regions, feeding),
        matching=matching,
    )
    planned = collate(
        [shown_sample],
        feeding,
        mismatched_words=MASKING.mismatched_words,
        mismatched_regions=MASKING.mismatched_regions,
    )
    batch = read_features(planned, table).to("cpu")
    inputs, images = batch.inputs, batch.image_regions
    assert inputs.masked_regions is not None and images is not None
    hidden = inputs.masked_regions
    name = f"tensors:cc.case{setting['case']}"
    if f"{name}.image" in golden.tensors:
        results.check(f"{name}.image", without_pixels(images.images, images.boxes, hidden)[0])
    # The features of hidden regions stay in the published sample; its model takes them out.
    features = inputs.region_features[0].clone()
    features[batch.masked_regions] = batch.feature_targets
    shown = [images.boxes[0], *([features] if setting["precomputed"] else [])]
    results.check(f"{name}.boxes", torch.cat(shown, dim=1))
    assert batch.class_distributions is not None
    labels = torch.zeros(len(features), batch.class_distributions.shape[1])
    labels[batch.masked_regions] = batch.class_distributions
    results.check(f"{name}.mvrc_labels", labels)
    words_asked = torch.full_like(inputs.tokens[0], IGNORED)
    words_asked[batch.masked_tokens] = batch.token_targets
    size = Size(width=regions.row.width, height=regions.row.height)
    seen = inputs.tokens[0].tolist()
    results.check_all(
        {
            f"{case}.text": seen,
            f"{case}.tokens": [tokenizer.id_to_token(token) for token in seen],
            f"{case}.mlm_labels": words_asked.tolist(),
            f"{case}.relationship_label": int(batch.matching[0]),
            f"{case}.mvrc_ops": hidden[0].int().tolist(),
            f"{case}.im_info": image_info(size, images.sizes[0].int().tolist(), sample),
        }
    )


def image_info(size: Size, new: list[int], row: int) -> list[float]:
    width, height = new
    factors = scales(size, Size(width=width, height=height))
    return [float(x) for x in (width, height, *factors, row)]


def image_of(golden: GoldenSet, sample: int) -> bytes:
    encoded = io.BytesIO()
    pixels = golden.tensors[f"tensors:cc.sample{sample}.image_uint8"].numpy()
    Image.fromarray(pixels).save(encoded, "PNG")
    return encoded.getvalue()


def text_alone(golden: GoldenSet, results: Results, tokenizer: Tokenizer, case: str) -> None:
    """Lines joined to the sample's length in pieces, masked.

    The published code masks all words of its lines, some behind the end: their draws are left.
    """
    lines = golden.values["cases:text_corpus_lines"]
    longest, first = (golden.values[f"{case}.{name}"] for name in ("seq_len", "index"))
    draws = recorded_draws(golden, tokenizer, case)
    round_the_end = [*lines[first:], *lines[:first]] * longest
    texts = [words_begin(tokenizer, line) for line in round_the_end]
    ids = joined_texts((text for text, _ in texts), longest)
    begins = np.concatenate([flags[1:-1] for _, flags in texts])
    several = begins[: np.flatnonzero(np.cumsum(begins) == len(draws.uniforms))[-1] + 1]
    numbers = laid_out(
        several, np.ones_like(several), draws, MASKING, Lexicon.from_tokenizer(tokenizer).size
    )
    draws.finish()
    text = masked(tokenizer, ids, numbers[:longest], specials=False)
    results.check(f"{case}.ids", text.tokens.tolist())
    results.check(f"{case}.mlm_labels", labels_of(text, IGNORED).tolist())
