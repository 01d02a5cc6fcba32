"""VQA's labels, losses and inputs by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.train.tasks.questions import question

from vlmill.schemas.tables import QUESTIONS
from vlmill.train.loading.masking.words import MaskedTokens
from vlmill.train.loading.vocabulary import SPECIAL, bert_tokenizer, train_vocabulary
from vlmill.train.tasks.vlbert_texts import mirrored_text
from vlmill.train.tasks.vqa.settings import VqaSettings
from vlmill.train.tasks.vqa.task import Vqa, make_targets, select_answers, swap_sides

ANSWERS = ("red", "left", "right", "2")


class Labelled:
    """What a loss reads of a batch."""

    def __init__(self, *scores: dict[int, float]) -> None:
        numbers = [(row, place, s) for row, of in enumerate(scores) for place, s in of.items()]
        rows, places, values = zip(*numbers, strict=True)
        self.labels = {
            "rows": torch.tensor(rows),
            "ids": torch.tensor(places),
            "scores": torch.tensor(values),
            "counts": torch.tensor([len(of) for of in scores]),
        }


def vqa(**settings: object) -> Vqa:
    return Vqa(settings=VqaSettings(**settings), variant="vl-bert-vqa", names=ANSWERS)  # type: ignore[arg-type]


def test_labels_are_the_annotators_answers_in_the_list() -> None:
    rows = [question(0, answers=["red"] * 3 + ["2"] + ["Red"] * 6), question(1, answers=None)]
    batch = pa.RecordBatch.from_pylist(rows, schema=QUESTIONS.schema)
    pairs = vqa().examples("nowhere").as_pairs(batch).to_pylist()
    assert pairs[0]["pair_id"] == "vqa2/0" and pairs[0]["text"] == "what is left of number 0?"
    assert pairs[0]["label_ids"] == [0, 3]
    assert pairs[0]["label_scores"] == pytest.approx([0.9, 0.3])
    assert pairs[1]["label_ids"] == []


def test_losses_by_hand() -> None:
    logits = torch.zeros(2, 4)
    batch = Labelled({0: 0.9, 3: 0.3}, {})
    targets = make_targets(batch.labels, logits)
    assert targets.tolist() == [[pytest.approx(0.9), 0, 0, pytest.approx(0.3)], [0] * 4]
    # Each of the answers costs log 2 at a logit of 0, whatever its score.
    both = vqa().compute(logits, batch)  # type: ignore[arg-type]
    assert both["answers"].item() == pytest.approx(4 * math.log(2))
    logits = torch.tensor([[0.0] * 4, [50.0] * 4])
    one = vqa(unlabelled=False).compute(logits, batch)  # type: ignore[arg-type]
    assert one["answers"].item() == pytest.approx(4 * math.log(2))
    softmax = vqa(loss="softmax").compute(logits, batch)  # type: ignore[arg-type]
    assert softmax["answers"].item() == pytest.approx(math.log(4))


def test_mirrored_questions_change_sides() -> None:
    pieces = (*SPECIAL, "left", "of", "the", "right", "dog")
    words = bert_tokenizer({piece: number for number, piece in enumerate(pieces)})
    task = vqa(mirror_words=True).with_vocabulary(words)
    ids = np.array(words.encode("left of the right dog").ids)
    text = MaskedTokens(original=ids, tokens=ids, masked=np.zeros(len(ids), dtype=np.bool_))
    mirrored = mirrored_text(text, task.mirrored)
    assert words.decode(mirrored.tokens.tolist()) == "[CLS] right of the left dog [SEP]"
    assert swap_sides("left of it") == "right of it" and swap_sides("upright") == "upright"


def test_vl_bert_asks_a_mask_behind_the_question() -> None:
    words = train_vocabulary(["what is it"], 60)
    task = vqa().with_vocabulary(words)
    asked = task.form.apply(words.encode("what is it").ids)
    special = [words.token_to_id(token) for token in ("[SEP]", "[MASK]", "[SEP]")]
    assert asked[-3:] == special and task.form.adds == 2


def test_a_given_list_leaves_min_questions_nothing_to_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "labels.json").write_text('["red", "green"]')
    examples = str(tmp_path)
    assert select_answers(examples, None, None, min_questions=9) == ["red", "green"]
    assert capsys.readouterr().err == ""
    assert select_answers(examples, None, None, min_questions=1) == ["red", "green"]
    assert capsys.readouterr().err == ""
    assert select_answers(examples, None, None, min_questions=3) == ["red", "green"]
    told = capsys.readouterr().err
    assert f"min_questions=3 has no effect: the answers come from {tmp_path}/labels.json" in told
    given = tmp_path / "given.txt"
    given.write_text("blue\n")
    assert select_answers(examples, given, None, min_questions=2) == ["blue"]
    assert f"come from --labels {given}" in capsys.readouterr().err
