"""From labelled images to a filter that the mining job applies."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.pipelines.filters.generated import Pixels, chart, dressed, encoded, photograph, skin
from torchvision.models.resnet import BasicBlock, ResNet

from vlmill.pipelines.filters.image import ImageFilter, ImageFilters
from vlmill.pipelines.fit_image_filter.__main__ import main
from vlmill.pipelines.web.pages.images import ImageFacts, examine_images
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import IMAGES

Draw = Callable[[np.random.Generator], Pixels]
COUNT = 90


def write_set(folder: Path, positive: Draw, negative: Draw, count: int = COUNT) -> Path:
    """A folder of images, every other one with label 1; returns the file of labels."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    lines = []
    for number in range(count):
        label = number % 2
        pixels = (negative, positive)[label](rng)
        (folder / f"{number}.jpg").write_bytes(encoded(pixels))
        lines.append(f"{number}.jpg\t{label}")
    labels = folder.parent / f"{folder.name}.tsv"
    labels.write_text("\n".join(lines) + "\n")
    return labels


def fit(folder: Path, labels: Path, output: Path, *flags: str) -> int:
    words = ["--images", str(folder), "--labels", str(labels), "--output", str(output), *flags]
    return main(words)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with realism.model and safety.model."""
    folder = tmp_path_factory.mktemp("models")
    for kind, positive, negative in (("realism", photograph, chart), ("safety", skin, dressed)):
        labels = write_set(folder / kind, positive, negative)
        assert fit(folder / kind, labels, folder / f"{kind}.model", "--kind", kind) == 0
    return folder


def area(filter_path: Path, positive: Draw, negative: Draw) -> float:
    """Held-out AUC over images that were not among the labelled ones."""
    rng = np.random.default_rng(99)
    judge = ImageFilter.load(filter_path).judge
    ones = np.array([judge(positive(rng)) for _ in range(60)])
    zeros = np.array([judge(negative(rng)) for _ in range(60)])
    return float(np.mean((ones[:, None] > zeros) + 0.5 * (ones[:, None] == zeros)))


def test_filters_hold_on_images_that_they_have_not_seen(models: Path) -> None:
    assert area(models / "realism.model", photograph, chart) > 0.97
    assert area(models / "safety.model", skin, dressed) > 0.9


def test_the_mining_job_is_told_what_to_drop(models: Path) -> None:
    rng = np.random.default_rng(5)
    safety, realism = str(models / "safety.model"), str(models / "realism.model")
    filters = ImageFilters.load(safety, realism)
    names = {"photograph": photograph, "chart": chart, "skin": skin}
    images = [encoded(draw(rng)) for draw in names.values()]
    outcomes = examine_images(images, min_side_px=0, max_pixels=10**6, judge=filters)
    facts = dict(zip(names, outcomes, strict=True))
    kept = facts.pop("photograph")
    assert isinstance(kept, ImageFacts)
    assert kept.nsfw_score is not None and kept.nsfw_score < 0.5
    assert kept.realism_score is not None and kept.realism_score >= 0.5
    assert {name: one.reason for name, one in facts.items() if isinstance(one, Drop)} == {
        "chart": Reason.UNREALISTIC_IMAGE,
        "skin": Reason.RACY_IMAGE,
    }
    settings = filters.settings()
    assert settings["safety_threshold"] == settings["realism_threshold"] == 0.5
    assert settings["safety_filter"].startswith("safety model ")
    lenient = ImageFilters.load("none", realism, realism_threshold=0.0)
    assert not isinstance(
        examine_images(images[1:2], min_side_px=0, max_pixels=10**6, judge=lenient)[0], Drop
    )
    off = ImageFilters.load("none", "none")
    assert not off and off.settings()["safety_filter"] == "off"


def test_a_table_gives_the_same_model_as_a_folder(models: Path, tmp_path: Path) -> None:
    rows = [
        dict.fromkeys(IMAGES.schema.names) | {"image_id": p.name, "bytes": p.read_bytes()}
        for p in sorted((models / "realism").iterdir())
    ]
    write_shard(tmp_path / "table", IMAGES, rows)
    output = tmp_path / "m"
    assert fit(tmp_path / "table", models / "realism.tsv", output, "--kind", "realism") == 0
    assert output.read_bytes() == (models / "realism.model").read_bytes()


def test_the_report_names_what_matters(models: Path) -> None:
    page = (models / "realism.model.html").read_text()
    assert "Cross-validation" in page and "palette" in page and "<script" not in page


@pytest.mark.nightly
def test_a_backbone_becomes_part_of_the_filter(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=7)
    torch.save(network.state_dict(), tmp_path / "tiny.pth")
    labels = write_set(tmp_path / "p", photograph, chart, 40)
    backbone = ("--backbone", str(tmp_path / "tiny.pth"))
    assert fit(tmp_path / "p", labels, tmp_path / "m", *backbone) == 0
    (tmp_path / "tiny.pth").unlink()
    image_filter = ImageFilter.load(tmp_path / "m")
    assert len(image_filter.model.features) == 69 + 512
    rng = np.random.default_rng(3)
    assert image_filter.judge(photograph(rng)) > 0.5 > image_filter.judge(chart(rng))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--images", "p", "--labels", "one.tsv"], "0 of 20 ids have the label 0"),
        (["--images", "p", "--labels", "absent.tsv"], "20 of 20 ids have no row in --images p"),
        (["--images", "p", "--labels", "broken.tsv"], "broken.jpg cannot be read"),
        (["--images", "p", "--labels", "outside.tsv"], "leads out of --images p"),
        (["--images", "none", "--labels", "absent.tsv"], "--images none"),
        (["--images", "p", "--labels", "none.tsv"], "--labels none.tsv"),
        (["--images", "p", "--labels", "one.tsv", "--threshold", "2"], "--threshold 2"),
        (["--images", "p", "--labels", "absent.tsv", "--backbone", "one.tsv"], "--backbone"),
    ],
)
def test_mistakes_are_told_in_one_line(
    flags: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p").mkdir()
    Path("p/broken.jpg").write_bytes(b"\xff\xd8 broken")
    lines = [f"{n}.jpg\t{n % 2}" for n in range(20)]
    Path("absent.tsv").write_text("\n".join(lines))
    Path("one.tsv").write_text("\n".join(line[:-1] + "1" for line in lines))
    Path("broken.tsv").write_text("\n".join([*lines, "broken.jpg\t1"]))
    Path("outside.tsv").write_text("\n".join([*lines, "../outside.jpg\t1"]))
    assert main([*flags, "--output", "m"]) == 2
    assert said in capsys.readouterr().err.splitlines()[-1] and not Path("m").exists()
