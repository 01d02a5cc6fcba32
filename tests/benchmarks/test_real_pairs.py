"""Real photographs: which images are tested, what a run is known by, and what is listed."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import real_pairs
import torch
from published.page import OMITTED, omitted_section
from real.alignment import (
    Alignment,
    Examples,
    parameter_groups,
    passes,
    pool_read,
    read_below,
    run_steps,
    score_passes,
)
from real.command import all_runs
from real.photographs import ALL, FIRST, SMALL, baseline_images, find_images, read_rows
from real.recipes import CONFIGS, MODELS, make_feeding
from real.regions import fixed_boxes, grid_boxes, network_sides
from real.runs import RECALLS, agrees, make_key, with_seed
from real.tables import Tables

from vlmill.models import VARIANTS
from vlmill.schemas.errors import InputError
from vlmill.train.settings.spec import Recipe

pytestmark = pytest.mark.nightly


def write_folder(folder: Path, train: int = 6, test: int = 4) -> Path:
    """A folder of the photographs' form: two captions an image, and images without content."""
    lines = ["image\tcaption\tsplit"]
    for split, count in (("train", train), ("test", test)):
        for number in range(count):
            name = f"flickr8k/{split}-{number}.jpg"
            lines += [f"{name}\tcaption {k} of {split} {number}\t{split}" for k in range(2)]
            (folder / "images" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "images" / name).touch()
    (folder / "captions.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_the_baselines_sample_is_that_of_its_seed(tmp_path: Path) -> None:
    train, test = baseline_images(write_folder(tmp_path))
    random.seed(0)
    keys = sorted(("train", f"flickr8k/train-{number}.jpg") for number in range(6))
    assert train == [image for _, image in random.sample(keys, 6)]
    keys = sorted(("test", f"flickr8k/test-{number}.jpg") for number in range(4))
    assert test == [image for _, image in random.sample(keys, 4)]


def test_a_table_of_another_form_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"captions.tsv does not exist"):
        read_rows(tmp_path / "captions.tsv")
    (tmp_path / "captions.tsv").write_text("image\tcaption\na.jpg\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"line 2: 1 fields, expected 2"):
        read_rows(tmp_path / "captions.tsv")
    with pytest.raises(InputError, match=r"no images below images/"):
        find_images(tmp_path)


def test_the_fixed_boxes_cover_the_image() -> None:
    boxes = np.concatenate([fixed_boxes(), grid_boxes()])
    assert boxes.min() == 0 and boxes.max() == 1 and (boxes[:, 2:] > boxes[:, :2]).all()
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    assert areas[0] == 1 and areas[6:].sum() == pytest.approx(1)  # the full image, and the grid
    for size in ((224, 224), (256, 170), (400, 100)):
        width, height = network_sides(*size)
        assert width % 32 == height % 32 == 0
        assert 0.8 < width * height / 320**2 < 1.25
        assert (width / height) / (size[0] / size[1]) == pytest.approx(1, abs=0.2)


def test_runs_differ_in_what_they_are_known_by(tmp_path: Path) -> None:
    tables = Tables(data=write_folder(tmp_path), output=tmp_path / "out")
    runs = all_runs(tables)
    assert [run.name for run in runs[: len(MODELS)]] == [f"{model}/base" for model in MODELS]
    labels = [run.label for run in runs]
    settings = {json.dumps(run.settings(), sort_keys=True) for run in runs}
    assert len(set(labels)) == len(settings) == len(runs)
    base = runs[MODELS.index("interbert")]
    assert base.folder(1) != base.folder(2) and base.checkpoint == base.folder(len(base.parts))
    pretrained, grouped = (
        next(run for run in runs if run.name == f"vilbert/short-{name}")
        for name in ("pretrained", "groups")
    )
    assert pretrained.folder(1) != grouped.folder(1)
    other = with_seed(base, 1)
    assert all(part.recipe.seed == 1 for part in other.parts)
    assert other.folder(1) != base.folder(1)
    for run in runs:
        kinds = [isinstance(part.recipe, Recipe | Alignment) for part in run.parts]
        assert kinds == sorted(kinds, reverse=True)  # pretraining or alignment comes first


def test_what_is_missing_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, results = write_folder(tmp_path / "data"), tmp_path / "results.jsonl"
    tables = Tables(data=data, output=tmp_path / "out", test=data)
    flags = ["--data", str(data), "--output", str(tmp_path / "out"), "--results", str(results)]
    assert real_pairs.main([*flags, "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"missing   baseline {SMALL}" in lines and f"missing   vlmo/base/seed-0 {FIRST}" in lines
    assert not any(line.endswith(ALL) for line in lines)
    run, test = all_runs(tables)[0], tables.tests()[0]
    metrics = dict.fromkeys(RECALLS, 0.5)
    results.write_text(json.dumps(make_key(run, test) | {"metrics": metrics}) + "\n")
    asked = ["--runs", run.name, "--tests", SMALL]
    assert real_pairs.main([*flags, *asked, "--list"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"finished  {run.label} {SMALL}"]
    assert real_pairs.main([*flags, "--test", str(data), "--runs", run.name, "--list"]) == 0
    assert f"missing   {run.label} other-{FIRST}" in capsys.readouterr().out
    assert real_pairs.main([*flags, "--runs", "nothing"]) == 2
    assert "--runs nothing: there are baseline" in capsys.readouterr().err


def test_task_sets_are_runs_where_they_are_there(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    tables = Tables(data=data, output=tmp_path / "out")
    assert not any(run.parts[-1].examples for run in all_runs(tables))
    (data / "tasks" / "nlvr").mkdir(parents=True)
    (data / "tasks" / "nlvr" / "nlvr.tsv").write_text("image\tsentence\tlabel\tsplit\n")
    runs = [run for run in all_runs(tables) if run.parts[-1].examples]
    assert [run.name for run in runs] == ["nlvr/vilbert", "nlvr/blind"]
    assert [run.parts[-1].recipe.blind for run in runs] == [False, True]  # type: ignore[union-attr]
    pretrained = next(run for run in all_runs(tables) if run.name == "vilbert/short-pretrained")
    assert runs[0].folder(1) == pretrained.folder(1)


def small_examples(count: int, width: int) -> Examples:
    """Pairs whose image has one feature per pair, and whose caption has one word per pair."""
    features = torch.zeros(count, 2, width)
    features[torch.arange(count), :, torch.arange(count)] = 1.0
    return Examples(
        tokens=tuple(np.array([1, 10 + number, 2]) for number in range(count)),
        owners=np.arange(count),
        features=features.half(),
        locations=torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0]).expand(count, 2, 5),
        masks=torch.ones(count, 2, dtype=torch.bool),
    )


@pytest.mark.parametrize("model", ["interbert", "imagebert", "vl-bert"])
def test_alignment_finds_the_image_of_a_caption(model: str) -> None:
    torch.manual_seed(0)
    config = CONFIGS[model](
        vocab_size=40,
        width=24,
        num_heads=6,
        intermediate_width=48,
        region_width=16,
        init_std=0.2,
        dropout=0.0,
    )
    settings = Alignment(
        model=model,
        config=config,
        feeding=make_feeding(),
        steps=200,
        batch_size=8,
        lr=2e-3,
        trained=("layers.0", "interaction_layers", "text_layers", "text_embedding"),
        old_rate=1.0,
    )
    network = VARIANTS[model].model(config)
    examples = small_examples(8, 16)
    run_steps(network, settings, examples)
    with torch.inference_mode():
        inputs = passes(network, examples, np.arange(8))
        scores = score_passes(network, *map(network, inputs))
    assert (scores.argmax(1) == torch.arange(8)).float().mean() >= 0.75
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_captions_that_were_read_below_pool_alike() -> None:
    config = CONFIGS["interbert"](
        vocab_size=40, width=24, num_heads=6, intermediate_width=48, region_width=16
    )
    network = VARIANTS["interbert"].model(config).eval()
    examples = small_examples(8, 16)
    texts = [*examples.tokens[:7], np.array([1, 5, 6, 7, 2])]  # one is longer
    examples = replace(examples, tokens=tuple(texts))
    with torch.inference_mode():
        whole = network(passes(network, examples, np.arange(8))[0]).pooled
        read = pool_read(network, read_below(network, examples.tokens))
    assert torch.allclose(whole, read, atol=2e-3) and whole.std() > 0.01


def test_alignment_keeps_what_it_does_not_train() -> None:
    config = CONFIGS["imagebert"](
        vocab_size=40, width=24, num_heads=6, intermediate_width=48, region_width=16
    )
    settings = Alignment(
        model="imagebert", config=config, feeding=make_feeding(), steps=3, trained=("layers.2",)
    )
    network = VARIANTS["imagebert"].model(config)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    run_steps(network, settings, small_examples(8, 16))
    changed = {n for n, value in network.state_dict().items() if not value.equal(before[n])}
    assert any(name.startswith("layers.2") for name in changed)
    assert any(name.startswith("region_embedding") for name in changed)
    assert not any(name.startswith(("layers.0", "layers.1", "text_embedding")) for name in changed)
    rates = {group["lr"] for group in parameter_groups(network, settings)}
    assert rates == {settings.lr, settings.lr * settings.old_rate}


def test_a_record_outlives_new_fields() -> None:
    recorded = {"parts": [{"recipe": {"steps": 3}}], "data": "a"}
    assert agrees(recorded, {"parts": [{"recipe": {"steps": 3, "new": 0}}], "data": "a"})
    assert not agrees(recorded, {"parts": [{"recipe": {"steps": 4}}], "data": "a"})
    assert not agrees(recorded, {"parts": [{"recipe": {"steps": 3}}] * 2, "data": "a"})
    assert not agrees(recorded, {"data": "a"}) and not agrees(None, "a")


def test_columns_that_are_not_repeated_have_figures_and_a_reason() -> None:
    text = omitted_section()
    for one in OMITTED:
        assert one.title in text and one.reason in text
        assert all(len(figures) == len(one.columns) for _, figures in one.rows)


def test_the_committed_records_can_be_read() -> None:
    if not real_pairs.COMMITTED.exists():
        pytest.skip("no run has been recorded")
    for line in real_pairs.COMMITTED.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        assert {"name", "test", "settings", "metrics"} <= record.keys()
        assert all(0 <= value <= 1 for value in record["metrics"].values())
