"""VCR: texts and labels by hand, runs with both heads, and what evaluation writes."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.factories import Tables, write_images
from tests.train.tasks.choices import choice_row, rows_of, tiny, world, write_choices
from tests.train.tasks.expressions import write_boxes

from vlmill.models import MODELS
from vlmill.models.inputs import VLInputs
from vlmill.models.interbert.config import InterBertTasksConfig, interbert_small
from vlmill.runtime.console.log import read_log
from vlmill.runtime.readers.joined_regions import JoinedRegions
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.errors import InputError
from vlmill.train.cli import main
from vlmill.train.loading.batch import Batch
from vlmill.train.loading.collate import collate
from vlmill.train.loading.features import read_features
from vlmill.train.loading.joined_regions import joined_regions
from vlmill.train.loading.sample import Sample, take_regions
from vlmill.train.loading.vocabulary import SPECIAL, bert_tokenizer
from vlmill.train.run.saving import PREPARED
from vlmill.train.settings.parts import Feeding
from vlmill.train.tasks.batches import TaskBatches
from vlmill.train.tasks.finetuning.job import TaskInputs, finetune, open_task, prepare_examples
from vlmill.train.tasks.vcr.batch_tensors import choice_tensors, mean_of_choices, pooled_scores
from vlmill.train.tasks.vcr.examples import (
    COLUMNS,
    SEGMS,
    ChoiceSample,
    ChoiceText,
    Question,
    build_texts,
)
from vlmill.train.tasks.vcr.settings import VcrSettings
from vlmill.train.tasks.vcr.task import Vcr, list_mentioned_objects, question_about, sample_with
from vlmill.train.tasks.vcr.texts import WHOLE, find_category

PEOPLE = "casey riley jessie jackie avery jaime peyton kerry jody kendall frankie pat quinn"
THINGS = "what does do ? it barks purrs floats sings is a dog cat boat bird . and"
PIECES = dict.fromkeys([*SPECIAL, *THINGS.split(), *PEOPLE.split()])
WORDS = bert_tokenizer({piece: number for number, piece in enumerate(PIECES)})


def question(task: str, **columns: Any) -> Question:
    row = choice_row(0, task, **columns)
    names = (*COLUMNS, SEGMS)
    return Question(example_id=row["example_id"], **{name: row[name] for name in names})


def read(text: ChoiceText) -> str:
    return " ".join(str(WORDS.id_to_token(token)) for token in text.tokens.tolist())


def test_objects_are_said_as_each_paper_does() -> None:
    tags = [[-1], [-1], [0, 1], [-1], [-1]]
    asked = question("q2a", question="what does [0,1] do ?", question_tags=tags)
    named = build_texts(asked, VcrSettings(), WORDS)
    words = read(named[0]).split(" ")
    assert words[:3] == ["[CLS]", "what", "does"] and words[4:7] == ["dog", "do", "?"]
    assert words[3] in PEOPLE.split() and named[0].objects.tolist() == [0, 0, 0, 1, 2] + [0] * 7
    assert named[0].segments.tolist() == [0] * 8 + [1] * 4
    tagged = build_texts(asked, VcrSettings(texts="tags"), WORDS)
    words = read(tagged[0]).split(" ")
    assert words[4:7] == ["and", "dog", "do"]
    assert tagged[0].objects.tolist() == [0, 0, 0, 1, 0, 2] + [0] * 7
    again = build_texts(question("qa2r"), VcrSettings(), WORDS)
    assert read(again[1]).split(" ")[3] == read(named[0]).split(" ")[3]  # one person, one name


def test_an_answer_stands_behind_its_question() -> None:
    named, tagged = (
        build_texts(question("qa2r"), VcrSettings(texts=texts), WORDS)[1]
        for texts in ("names", "tags")
    )
    assert "? [SEP] it" in read(named) and "? it" in read(tagged)
    assert read(named).count("[SEP]") == 3 and read(tagged).count("[SEP]") == 2


def about_two() -> Question:
    """Of four objects the last is named first, in the question, and the second in a choice."""
    choices = [[[-1], [-1], [-1]] for _ in range(4)]
    choices[2] = [[1, 3], [-1], [-1]]
    return question(
        "q2a",
        question_tags=[[-1], [-1], [3], [-1], [-1]],
        choice_tags=choices,
        object_names=["person", "dog", "cat", "boat"],
        boxes=[float(10 * number + corner) for number in range(4) for corner in (0, 1, 8, 9)],
        segms=json.dumps([[], [[[1, 1], [2, 1], [1, 2]]], [], [[[3, 1], [4, 1], [3, 2]]]]),
    )


def test_named_objects_are_counted_as_they_are_named() -> None:
    asked = about_two()
    assert list_mentioned_objects(asked, 4) == [3, 1]
    assert list_mentioned_objects(asked, 2) == [1, 3]  # the boat has no region
    alone = question_about(asked, [3, 1])
    assert alone.object_names == ["boat", "dog"] and alone.label == asked.label
    assert alone.boxes == [30.0, 31, 38, 39, 10, 11, 18, 19]
    assert alone.question_tags[2] == [0] and alone.choice_tags[2][0] == [1, 0]
    assert alone.question_tags[0] == [-1] and alone.choice_tags[0] == [[-1]] * 3
    assert [points[0].tolist()[0] for points in alone.outlines()] == [[3, 1], [1, 1]]
    text = build_texts(alone, VcrSettings(texts="tags"), WORDS)[2]
    assert "does boat do" in read(text) and "dog and boat" in read(text)
    assert [number for number in text.objects.tolist() if number] == [1, 2, 1]
    assert question_about(asked, [0, 1, 2, 3]).boxes == asked.boxes


@pytest.mark.parametrize("boxes", ["annotated", "joined"])
@pytest.mark.parametrize("most", [9, 3])
def test_regions_follow_the_objects_that_are_named(tmp_path: Path, boxes: Any, most: int) -> None:
    """Also where not all regions are read or shown; the full image stays the mean of all."""
    table = Tables(tmp_path)
    table.write_regions(["a"], boxes=4)
    settings = VcrSettings(texts="tags", regions="all", objects="named")
    feeding = Feeding(boxes=boxes, max_regions=most, whole_image="mean", region_targets="class")
    reader: RegionReader
    if boxes == "joined":
        reader = JoinedRegions(table.regions, table.regions)
        whole = joined_regions(reader, 0, feeding, mirrored=True)
    else:
        reader = RegionReader(table.regions)
        whole = take_regions(*reader.locate_row(0), feeding, (), mirrored=True)
    first = whole.first_annotated
    named = list_mentioned_objects(about_two(), whole.num_shown - first)
    asked = question_about(about_two(), named)
    before = Sample(pair_id="x", regions=whole)
    after = sample_with(before, named)
    kept = [number for number in named if number < whole.num_shown - first]
    assert kept == ([3, 1] if most == 9 else [1]) and len(named) == 2
    regions = after.regions
    assert regions is not None and regions.num_shown == first + len(kept)
    rows = [*range(first), *(first + number for number in kept)]
    assert regions.boxes[: regions.num_shown].tolist() == whole.boxes[rows].tolist()
    assert regions.stored_boxes[: len(rows)].tolist() == whole.stored_boxes[rows].tolist()
    old, new = (
        read_features(collate([sample], feeding), reader).to("cpu").inputs.region_features[0]
        for sample in (before, after)
    )
    torch.testing.assert_close(new[0], old[0])
    assert torch.equal(new[1:], old[[1 + row for row in rows]])
    texts = build_texts(asked, settings, WORDS)
    choice = ChoiceSample(**(vars(after) | {"texts": texts, "question": asked}))
    labels = choice_tensors([choice], feeding, settings)
    place = {name: 1 + first + at for at, name in enumerate(["boat", "dog"][-len(kept) :])}
    dog, boat = place["dog"], place.get("boat", 0)  # without a region: the full image's
    assert [n for n in labels["text_regions"][0, 2].tolist() if n] == [
        n for n in (boat, dog, boat) if n
    ]
    found = dict(zip(labels["region_rows"].tolist(), labels["categories"].tolist(), strict=True))
    wanted = {place[name]: find_category(name) for name in place}
    assert found == {0: WHOLE} | wanted


def test_each_choice_by_itself_by_hand() -> None:
    logits, right = torch.zeros(3, 4), torch.tensor([2, 0, -100])
    logits[2] = 9.0  # of a question whose label is not public
    assert mean_of_choices(logits, right).item() == pytest.approx(math.log(2))
    logits[0, 2] = 40.0
    assert mean_of_choices(logits, right).item() == pytest.approx(7 / 8 * math.log(2))


NAMES = ("vilbert", "vl-bert", "interbert")


def evaluate(inputs: TaskInputs, run: Path, output: Path, *more: str) -> int:
    assert inputs.regions is not None and inputs.annotated_regions is not None
    words = ["evaluate", "vcr", "--checkpoint", str(run), "--examples", inputs.examples]
    tables = ["--regions", inputs.regions, "--annotated-regions", inputs.annotated_regions]
    return main([*words, *tables, "--output", str(output), *more])


@pytest.fixture(scope="module", params=NAMES)
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TaskInputs, Path]:
    """A run of a few steps; VL-BERT's with all of its losses."""
    folder = tmp_path_factory.mktemp(request.param)
    inputs = world(folder)
    changes = ["steps=3", "validate_every=3"]
    if request.param == "vl-bert":
        changes += ["settings.words=true", "model.masked_words=true"]
    finetune(tiny(f"vcr-{request.param}-small", *changes), inputs, folder / "run")
    return inputs, folder / "run"


def test_a_checkpoint_is_measured_on_every_split(
    trained: tuple[TaskInputs, Path], tmp_path: Path
) -> None:
    inputs, run = trained
    lines = [line for line in read_log(run / "log.jsonl") if "loss" in line]
    if "vl-bert" in str(run):
        assert {"choices", "regions", "words"} <= {key.rpartition("/")[2] for key in lines[0]}
    rows = rows_of(16)
    of_test = {"split": "test", "label": -1}
    rows.append(choice_row(90, "q2a", **of_test))
    given = [f"vcr/val-90/qa2r/{answer}" for answer in range(4)]
    rows += [choice_row(90, "qa2r", **of_test, example_id=example_id) for example_id in given]
    inputs = dataclasses.replace(inputs, examples=write_choices(tmp_path, rows))
    out = tmp_path / "out"
    images = write_images(tmp_path / "images", 8)
    assert evaluate(inputs, run, out, "--images", images) == 0
    metrics = json.loads((out / "metrics.json").read_text())
    scores = json.loads((out / "vcr_scores.json").read_text())
    labels = {row["example_id"]: row["label"] for row in rows}
    hits = {key: values.index(max(values)) == labels[key] for key, values in scores.items()}
    both = [hits[f"vcr/val-{n}/q2a"] and hits[f"vcr/val-{n}/qa2r"] for n in (3, 7, 11, 15)]
    assert metrics["vcr/val/q_ar"] == sum(both) / 4 and metrics["vcr/val/q_a_n"] == 4
    assert metrics["vcr/test/q_a"] is None and metrics["vcr/test/qa_r"] is None
    assert metrics["examples"] == 37
    page = (out / "report.html").read_text()
    assert "54.04" in page and "[1] dog" in page and "it floats ." in page
    assert "1 question; the leaderboard expects the 25263" in page


def test_two_checkpoints_are_measured_together(
    trained: tuple[TaskInputs, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, run = trained
    tables = {}
    for task in ("q2a", "qa2r"):
        rows = [choice_row(number, task) for number in range(8)]
        tables[task] = write_choices(tmp_path / task, rows)
    assert evaluate(dataclasses.replace(inputs, examples=tables["qa2r"]), run, tmp_path / "r") == 0
    whole = dataclasses.replace(inputs, examples=write_choices(tmp_path, rows_of(8)))
    answers = dataclasses.replace(inputs, examples=tables["q2a"])
    assert evaluate(answers, run, tmp_path / "a", "--scores", str(tmp_path / "r")) == 0
    alone = json.loads((tmp_path / "a" / "metrics.json").read_text())
    assert "vcr/val/q_ar" not in alone  # the table has no row of the other sub-task
    assert evaluate(whole, run, tmp_path / "w") == 0
    assert evaluate(whole, run, tmp_path / "x", "--scores", str(tmp_path / "r")) == 2
    assert "has scores in both evaluations" in capsys.readouterr().err


def test_wrong_rows_are_named_and_counted(
    trained: tuple[TaskInputs, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, run = trained
    three = choice_row(1)
    three["choices"] = three["choices"][:3]
    rows = [
        choice_row(0),
        three,
        choice_row(2, question_tags=[[-1], [-1], [7], [-1], [-1]]),
        choice_row(3, question_tags=[[-1]]),
        choice_row(4, boxes=[0.0, 0, 9, 9, 60, 20, 100, 80, 120, 0, 190, 99]),
        choice_row(5, label=4),
        choice_row(7, question_tags=[[-1], [-1], [], [-1], [-1]]),
        choice_row(6, boxes=[0.0, 10, 40, 60, 60, 20, 100, 80, 120, 0, 290, 99]),
    ]
    inputs = dataclasses.replace(inputs, examples=write_choices(tmp_path, rows))
    assert evaluate(inputs, run, tmp_path / "out") == 2
    said = capsys.readouterr().err
    counts = "bad_reference 3, bad_row 2, empty_box 1, label_unknown 1"
    assert f"7 of 8 cannot be answered ({counts}): vcr/val-1/q2a, vcr/val-2/q2a" in said
    assert evaluate(inputs, run, tmp_path / "out", "--missing", "skip", "--fresh") == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["examples"] == 1 and metrics["rejected"] == 7


def test_a_image_without_detected_boxes_is_named_where_they_are_read(
    trained: tuple[TaskInputs, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, run = trained
    given = dataclasses.replace(
        inputs,
        examples=write_choices(tmp_path, [choice_row(0), choice_row(1)]),
        regions=write_boxes(tmp_path / "few", shift=2.0, empty=(1,)),
    )
    reads_them = "vl-bert" not in str(run)
    assert evaluate(given, run, tmp_path / "out") == 2 * reads_them
    said = "1 of 2 cannot be answered (no_boxes 1): vcr/val-1/q2a"
    assert (said in capsys.readouterr().err) is reads_them


def test_what_a_model_cannot_learn_is_refused(tmp_path: Path) -> None:
    inputs, out = world(tmp_path, 8), tmp_path / "out"
    with pytest.raises(InputError, match="has no head for regions or words"):
        finetune(tiny("vcr-vilbert-small", "settings.regions=all"), inputs, out)
    with pytest.raises(InputError, match=r"add model\.masked_words=true"):
        finetune(tiny("vcr-vl-bert-small", "settings.words=true"), inputs, out)
    with pytest.raises(
        InputError,
        match=r"the named objects are not inputs; set feeding\.boxes to annotated or joined",
    ):
        finetune(
            tiny("vcr-vl-bert-small", "settings.objects=named", "feeding.boxes=detected"),
            dataclasses.replace(inputs, annotated_regions=None),
            out,
        )
    with pytest.raises(InputError, match="expected q2a, qa2r or both"):
        tiny("vcr-vilbert-small", "settings.subtasks=[q2r]")


NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize(
    "changes",
    [
        ("settings.regions=masked", "settings.loss=softmax", "model.body.masked_region=vector"),
        pytest.param(("blind=true", "settings.regions=masked", "feeding.flip=0.5"), marks=NIGHTLY),
        pytest.param(("settings.subtasks=[qa2r]", "feeding.boxes=joined"), marks=NIGHTLY),
        ("settings.objects=named", "settings.regions=masked", "feeding.flip=0.5"),
        pytest.param(("settings.objects=named", "feeding.boxes=joined"), marks=NIGHTLY),
        pytest.param(("settings.objects=named", "blind=true"), marks=NIGHTLY),
    ],
)
def test_vl_berts_switches_train(tmp_path: Path, changes: tuple[str, ...]) -> None:
    inputs = world(tmp_path, 8)
    finetune(tiny("vcr-vl-bert-small", "steps=2", *changes), inputs, tmp_path / "out")
    lines = [line for line in read_log(tmp_path / "out" / "log.jsonl") if "loss" in line]
    assert len(lines) == 2 and all(math.isfinite(line["loss"]) for line in lines)


def test_steps_take_turns_between_answers_and_rationales(tmp_path: Path) -> None:
    recipe = tiny("vcr-interbert-small", "batch_size=4", "accumulation=2")
    assert recipe.settings.in_turns
    task, sources = open_task(recipe, world(tmp_path, 16), speaks=False)
    prepare_examples(recipe, sources, task, tmp_path / "out", {}, fresh=False)
    (stage,) = recipe.stages

    def tasks(settings: VcrSettings) -> list[set[str]]:
        task = Vcr(settings=settings, variant=recipe.variant, feeding=stage.feeding)
        batches = TaskBatches(
            samples=tmp_path / "out" / PREPARED,
            stage=stage,
            stage_number=0,
            seed=0,
            task=task,
            training=True,
        )
        table = batches.table
        return [
            {table.value("task", visit.row) for visit in batches.order.batch(index)}
            for index in range(24)  # of two questions, two a step: both sub-tasks twice
        ]

    in_turns = tasks(recipe.settings)
    assert in_turns == [{("q2a", "qa2r")[index // 2 % 2]} for index in range(24)]
    mixed = tasks(dataclasses.replace(recipe.settings, in_turns=False))
    assert {"q2a", "qa2r"} in mixed


def test_interberts_segments_are_those_of_the_texts_parts() -> None:
    """Those that tell regions from captions are not added (the paper's model)."""
    trunk = interbert_small(width=16, num_heads=2, visual_num_heads=2, modality_segments=True)
    model = MODELS["interbert-tasks"].model(InterBertTasksConfig(trunk=trunk)).eval()
    draws = torch.Generator().manual_seed(0)
    inputs = VLInputs(
        tokens=torch.randint(5, 99, (8, 6), generator=draws),
        token_mask=torch.ones(8, 6, dtype=torch.bool),
        region_features=torch.rand(8, 3, trunk.region_width, generator=draws),
        region_locations=torch.rand(8, 3, 5, generator=draws),
        region_mask=torch.ones(8, 3, dtype=torch.bool),
        segments=torch.tensor([[0, 0, 0, 1, 1, 1]] * 8),
    )
    of_images = ("region_features", "region_locations", "region_mask")
    for name in of_images:  # four choices of two images
        getattr(inputs, name).copy_(getattr(inputs, name)[::4].repeat_interleave(4, dim=0))
    texts = {name: getattr(inputs, name) for name in ("tokens", "token_mask", "segments")}
    nothing = torch.zeros(0, dtype=torch.int64)
    batch = Batch(
        inputs=dataclasses.replace(
            inputs, **{name: getattr(inputs, name)[::4] for name in (*of_images, *texts)}
        ),
        labels={name: value.view(2, 4, 6) for name, value in texts.items()},
        pair_ids=("a", "b"),
        masked_tokens=nothing,
        token_targets=nothing,
        masked_regions=nothing,
        class_targets=nothing,
        feature_targets=torch.zeros(0, trunk.region_width),
        matching=torch.ones(2),
    )
    with torch.no_grad():
        expected = model.scores(model(inputs).pooled).view(2, 4)
        torch.testing.assert_close(
            pooled_scores(model, batch, MODELS["interbert-tasks"].choice_options), expected
        )


def test_vilbert_learns_what_an_object_is(tmp_path: Path) -> None:
    inputs = world(tmp_path, 32)
    inputs = dataclasses.replace(inputs, regions=write_boxes(tmp_path / "same"))
    steps = ("steps=40", "batch_size=12", "optimizer.lr=1e-2", "save_every=40")
    asked = ("settings.subtasks=[qa2r]", "trackers=[]")
    finetune(tiny("vcr-vilbert-small", *steps, *asked), inputs, tmp_path / "out")
    lines = [line for line in read_log(tmp_path / "out" / "log.jsonl") if "loss" in line]
    assert lines[-1]["loss"] < 0.65 * lines[0]["loss"]  # the answer tells the rationale
