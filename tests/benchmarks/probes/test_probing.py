"""Probes: what they ask, that they count what is known, and that wrong labels show in them."""

import dataclasses
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from probes import (
    ProbeInputs,
    Question,
    Score,
    ShownRegions,
    beside,
    other_of,
    probe,
    region_questions,
    scores,
    switch_off,
    word_questions,
)
from probes.rows import batches
from tests.train.tasks.retrieval.cases import CASES, CLASSES, tiny_model
from tests.train.tasks.retrieval.test_matching import (
    NAMES,
    TEXTS,
    TOKENIZER,
    VOCABULARY,
    write_images,
    write_regions,
)
from torch.nn.functional import one_hot
from worlds import Detector, World, word_groups, write_noisy_pairs, write_world

from vlmill.models import VLInputs
from vlmill.models.imagebert.config import ImageBertConfig
from vlmill.models.outputs import Encoded
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.regions import RegionReader, RegionRow, encode_regions, region_arrays
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import PAIRS, REGIONS
from vlmill.train.checkpoints.files import LoadedCheckpoint, TrainingRecord, load_checkpoint
from vlmill.train.loading.sample import IGNORED
from vlmill.train.loading.vocabulary import MASK, SPECIAL, bert_tokenizer
from vlmill.train.recipes import Feeding, Masking, Objectives, Optimizer, Recipe, Stage
from vlmill.train.run.inputs import Inputs
from vlmill.train.run.job import pretrain

pytestmark = pytest.mark.nightly

COLOURS, SHAPES = ("red", "green", "blue"), ("circle", "square", "ring")
LIST = (*SPECIAL, *COLOURS, *SHAPES, "a", "above")
WORDS = bert_tokenizer({word: number for number, word in enumerate(LIST)})
GROUPS = {"colour": frozenset(COLOURS), "shape": frozenset(SHAPES)}
MASK_ID = LIST.index(MASK)
# An image's things as (colour, shape); no two images share a thing in the same place.
IMAGES = [((0, 0), (1, 1)), ((1, 2), (2, 0)), ((2, 1), (0, 2)), ((0, 1), (2, 2))]
STUB = [f"stub-{number}" for number in range(len(IMAGES))]


def caption(number: int) -> str:
    one, other = (f"a {COLOURS[c]} {SHAPES[s]}" for c, s in IMAGES[number])
    return f"{one} above {other}"


def write_stub(folder: Path) -> RegionReader:
    """Two boxes of each thing; a feature says colour and shape outright."""
    rows = []
    for name, things in zip(STUB, IMAGES, strict=True):
        features = np.zeros((4, 6), np.float16)
        for at, (colour, shape) in enumerate(things):
            features[[at, at + 2], colour] = features[[at, at + 2], 3 + shape] = 1
        boxes = [(0, 0, 40, 40), (50, 50, 90, 90), (2, 0, 42, 40), (52, 50, 92, 90)]
        kinds = np.array([3 * colour + shape for colour, shape in things])
        rows.append(
            RegionRow(
                image_id=name,
                width=100,
                height=100,
                boxes=np.array(boxes, np.float32),
                features=features,
                class_ids=np.tile(kinds, 2),
            )
        )
    arrays = region_arrays(dtype="float16", feature_dim=6)
    write_shard(folder, REGIONS, encode_regions(rows, dtype="float16"), arrays=arrays)
    return RegionReader(folder)


class Knowing:
    """Answers from what it is shown: a masked word from the region that fits the word beside it, a
    hidden region from the thing of the caption that is not to be seen.
    """

    def __call__(self, inputs: VLInputs) -> Encoded:
        rows, length = inputs.tokens.shape
        regions = torch.zeros(*inputs.region_mask.shape, 9)
        text = torch.zeros(rows, length, WORDS.get_vocab_size())
        for row in range(rows):
            said = [LIST[i] for i in inputs.tokens[row].tolist()]
            seen = {self._kind(f) for f in inputs.region_features[row] if f.any()}
            for at in range(length):
                if said[at] == MASK:
                    text[row, at, self._word(said[at - 1], said[at + 1], seen)] = 1
            missing = self._told(said) - seen
            regions[row] = one_hot(torch.tensor(min(missing, default=0)), 9)
        return Encoded(text=text, regions=regions, pooled=torch.zeros(rows, 1))

    @staticmethod
    def _kind(feature: torch.Tensor) -> int:
        return 3 * int(feature[:3].argmax()) + int(feature[3:].argmax())

    @staticmethod
    def _word(before: str, after: str, seen: set[int]) -> int:
        if after in SHAPES:
            fitting = [COLOURS[k // 3] for k in seen if k % 3 == SHAPES.index(after)]
        else:
            fitting = [SHAPES[k % 3] for k in seen if k // 3 == COLOURS.index(before)]
        return LIST.index(fitting[0] if fitting else "a")

    @staticmethod
    def _told(said: list[str]) -> set[int]:
        pairs = pairwise(said)
        return {
            3 * COLOURS.index(c) + SHAPES.index(s) for c, s in pairs if c in COLOURS and s in SHAPES
        }

    def mlm_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    region_class_logits = mlm_logits


def stub_words() -> list[Question]:
    return [
        question
        for number, name in enumerate(STUB)
        for question in word_questions(WORDS, caption(number), name, GROUPS, 20)
    ]


def test_words_are_asked_one_at_a_time_with_all_their_pieces() -> None:
    pieces = bert_tokenizer({w: i for i, w in enumerate((*SPECIAL, "a", "re", "##d", "cat"))})
    asked = word_questions(pieces, "a Red cat", "x", {"colour": frozenset({"red"})}, 20)
    (question,) = asked
    assert question.masked.tolist() == [False, False, True, True, False, False]
    groups = {"colour": frozenset({"red"}), "noun": frozenset({"cat"})}
    assert [q.group for q in word_questions(pieces, "a red cat", "x", groups, 20)] == [
        "colour",
        "noun",
    ]
    # [CLS] a re [SEP]: half a word is not asked, nor what was cut.
    assert word_questions(pieces, "a red cat", "x", groups, 4) == []
    assert word_questions(pieces, "", "x", groups, 4) == []


def test_another_image_is_the_next_one() -> None:
    assert other_of(["a", "b", "b", "c"]) == {"a": "b", "b": "c", "c": "a"}
    with pytest.raises(ValueError, match="at least 2"):
        other_of(["a", "a"])


def test_a_knowing_model_answers_all_with_the_right_image_and_few_with_another(
    tmp_path: Path,
) -> None:
    shown, words = ShownRegions(write_stub(tmp_path), Feeding()), stub_words()
    own = scores(Knowing(), words, shown, WORDS, batch_size=3)
    assert own == {"colour": Score(right=8, asked=8), "shape": Score(right=8, asked=8)}
    other = scores(Knowing(), beside(words, other_of(STUB)), shown, WORDS)
    assert max(score.share for score in other.values()) < 0.4


@pytest.mark.parametrize("whole", ["none", "mean", "rest"])
def test_a_hidden_thing_is_seen_nowhere_and_told_by_its_caption(tmp_path: Path, whole: Any) -> None:
    regions = write_stub(tmp_path)
    feeding = Feeding(whole_image=whole, region_targets="class")
    shown = ShownRegions(regions, feeding)
    texts = [np.array(WORDS.encode(caption(n)).ids) for n in range(len(STUB))]
    asked = [
        question
        for name, text in zip(STUB, texts, strict=True)
        for question in region_questions(regions[name].class_ids, text, name)
    ]
    (stored,) = batches(asked, shown, MASK_ID, 64)
    batch = stored.to("cpu")
    first = int(whole != "none")
    hidden = ~batch.inputs.region_features[:, first:].any(-1)
    assert hidden.sum(1).tolist() == [2] * len(asked)  # both boxes of the thing, and no other
    assert batch.class_targets.tolist() == [
        int(kind) for name in STUB for kind in np.asarray(regions[name].class_ids)
    ]
    if not first:
        assert scores(Knowing(), asked, shown, WORDS)["class"].share == 1.0
        others = other_of(STUB)
        untold = [
            dataclasses.replace(q, tokens=texts[STUB.index(others[q.image_id])]) for q in asked
        ]
        assert scores(Knowing(), untold, shown, WORDS)["class"].share < 0.4


def test_what_is_not_there_is_not_asked(tmp_path: Path) -> None:
    shown = ShownRegions(write_stub(tmp_path), Feeding(max_regions=2))
    text = np.array(WORDS.encode(caption(0)).ids)
    ids = np.array([4, -1, 4, 4])
    asked = region_questions(ids, text, STUB[0])
    assert [question.region for question in asked] == [0, 2, 3]
    (stored,) = batches(asked, shown, MASK_ID, 8)
    batch = stored.to("cpu")
    assert (batch.class_targets != IGNORED).sum() == 1  # the others are not among the first two
    assert scores(Knowing(), asked, shown, WORDS)["class"].asked == 1
    assert region_questions(None, text, STUB[0]) == []


def loaded(name: str) -> LoadedCheckpoint:
    variant, _, feeding, *_ = CASES[name]
    model = tiny_model(name, VOCABULARY)
    return LoadedCheckpoint(
        path=Path(),
        variant=variant,
        model=model,
        config=model.config,
        tokenizer=TOKENIZER,
        detector_fingerprint=None,
        training=TrainingRecord(recipe="", stage="", step=1, num_pairs=0),
        feeding=feeding,
    )


def write_pairs(folder: Path) -> None:
    rows = [
        {"pair_id": f"p{i}", "image_id": name, "text": text, "split": "test"}
        for i, (name, text) in enumerate(zip([*NAMES, "lost", None], TEXTS, strict=True))
    ]
    write_shard(folder, PAIRS, [{**dict.fromkeys(PAIRS.schema.names), **row} for row in rows])


@pytest.mark.parametrize("name", CASES)
def test_every_variant_is_probed(name: str, tmp_path: Path) -> None:
    write_regions(str(tmp_path))
    write_images(tmp_path)
    write_pairs(tmp_path)
    table = str(tmp_path)
    groups = {"noun": frozenset({"dog", "cat", "tree"}), "colour": frozenset({"red"})}
    inputs = ProbeInputs(pairs=table, regions=table, images=table, groups=groups, batch_size=3)
    checkpoint = loaded(name)
    found = probe(checkpoint, inputs)
    cut = CASES[name].feeding.max_elements is not None  # the text of an image of seven regions
    assert found["words/noun/asked"] == (3 if cut else 4) and found["words/colour/asked"] == 1
    assert all(-1 <= value <= 1 for key, value in found.items() if not key.endswith("asked"))
    assert found == probe(checkpoint, dataclasses.replace(inputs, batch_size=64))
    if name == "vlmo":
        assert not any(key.startswith("regions/") for key in found)
    else:
        assert found["regions/class/asked"] > 10 > CLASSES
    missing = dataclasses.replace(inputs, regions=None, images=None)
    with pytest.raises(InputError, match="is missing"):
        probe(checkpoint, missing)


def test_an_expert_that_is_switched_off_adds_nothing() -> None:
    model = tiny_model("vlmo", VOCABULARY)
    tokens, mask = torch.tensor([[2, 6, 7, 3]]), torch.ones(1, 4, dtype=torch.bool)
    pixels = torch.rand(1, 3, model.config.image_size, model.config.image_size)
    texts, images = model.text_vectors(tokens, mask), model.image_vectors(pixels)
    switch_off(model, "image")
    torch.testing.assert_close(model.text_vectors(tokens, mask), texts)
    assert not torch.allclose(model.image_vectors(pixels), images)
    layer = model.encoder.layers[0]
    assert not layer.experts["image"](torch.randn(3, model.config.width)).any()
    with pytest.raises(ValueError, match="none of that name"):
        switch_off(model, "sound")


TINY = World(num_things=(2,), num_colours=4, num_shapes=2, num_textures=1, side=96)


def test_shuffled_captions_teach_nothing_of_images(tmp_path: Path) -> None:
    """Ten seconds: the same training on a world, and on one whose captions went astray."""
    world = tmp_path / "world"
    detector = Detector(feature_dim=32, noise=0.02, class_error=0.0, extra_boxes=0)
    write_world(world, TINY, pairs=400, held_out=60, detector=detector)
    write_noisy_pairs(tmp_path / "shuffled", world, share=1.0)
    right, wrong = (taught(tmp_path, name) for name in ("world", "shuffled"))
    told, other = "regions/class/own_caption", "regions/class/other_caption"
    assert right[told] - right[other] > 0.3
    assert right["words/colour/seen"] > 0.15
    # 120 questions each: 0.15 are three standard errors of a difference by chance.
    assert abs(wrong[told] - wrong[other]) < 0.15
    assert abs(wrong["words/colour/seen"]) < 0.15


def taught(folder: Path, pairs: str) -> dict[str, float]:
    """What a small model learns in 200 steps from these pairs."""
    model = ImageBertConfig(
        width=64,
        num_layers=2,
        num_heads=4,
        intermediate_width=128,
        num_positions=40,
        max_text_tokens=24,
        visual_position_id=30,
        dropout=0.0,
        attention_dropout=0.0,
        init_std=0.1,
    )
    stage = Stage(
        name="pairs",
        steps=200,
        batch_size=32,
        negative_share=0.0,
        optimizer=Optimizer(lr=2e-3),
        masking=Masking(words=0.25),
        objectives=Objectives(mrfr=0.0, itm=0.0),
    )
    recipe = Recipe(
        name="tiny",
        variant="imagebert",
        model=model,
        stages=(stage,),
        vocabulary_size=90,
        standardise_features=True,
        log_every=100,
    )
    tables = str(folder / "world")
    pretrain(recipe, Inputs(pairs=str(folder / pairs), regions=tables), folder / f"run-{pairs}")
    inputs = ProbeInputs(pairs=tables, regions=tables, groups=word_groups(TINY), split="test")
    return probe(load_checkpoint(folder / f"run-{pairs}"), inputs)
