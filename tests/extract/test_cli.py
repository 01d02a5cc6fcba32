"""``extract-rois`` from its arguments to its exit status."""

import io
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from tests.object_stores import upload_folder

from vlmill.extract.cli import command, parser
from vlmill.extract.config import CUDA_BATCH_SIZE
from vlmill.extract.detect.detector import open_detector
from vlmill.extract.from_flags import make_config
from vlmill.models.detector.config import ARCHITECTURES
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.random_weights import randomise
from vlmill.runtime.console.command import run_command
from vlmill.runtime.console.drawing import find_free_box
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.tables import PAIRS

SMALL = ["--arch", "tiny", "--short-side", "48", "--long-side", "64", "--max-boxes", "6"]
SMALL += ["--min-boxes", "6"]


def extract_rois(*arguments: object) -> int:
    return run_command(command, [str(a) for a in arguments])


def test_run_verify_show(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, page = tmp_path / "regions", tmp_path / "page.html"
    names = tmp_path / "names.txt"
    names.write_text("".join(f"thing{i},synonym\n" for i in range(1600)))
    some = images / "[0-4]*.jpg"
    assert extract_rois("run", some, "--output", output, *SMALL) == 0
    said = capsys.readouterr()
    assert "RANDOM weights" in said.err
    assert "7 images, 5 rows of regions, 2 rejects" in said.out.splitlines()[-1]
    assert extract_rois("verify", output) == 0
    assert extract_rois("show", output, "--images", images, "--output", page) == 0
    html = page.read_text()
    assert html.count("data:image/jpeg;base64,") == 5
    assert "random weights, seed 0: boxes and names are meaningless" in html
    folder = tmp_path / "drawn"
    arguments = ("--output", folder, "--classes", names, "--max-images", "2")
    assert extract_rois("show", output, "--images", images, *arguments) == 0
    sizes = {Image.open(io.BytesIO(p.read_bytes())).size for p in folder.iterdir()}
    assert len(list(folder.iterdir())) == 2
    assert sizes == {(96, 72)}


def test_show_from_a_store_to_a_store(images: Path, tmp_path: Path, bucket: str) -> None:
    output = tmp_path / "regions"
    assert extract_rois("run", images / "[0-4]*.jpg", "--output", output, *SMALL) == 0
    (output / "names.txt").write_text("".join(f"thing{i}\n" for i in range(1600)))
    upload_folder(output, f"{bucket}/regions")
    upload_folder(images, f"{bucket}/pictures")
    names = {}
    for place in (str(tmp_path), bucket):
        source = images if place != bucket else f"{bucket}/pictures"
        classes = f"{place}/regions/names.txt"
        shown = ("show", f"{place}/regions", "--images", source, "--classes", classes)
        assert extract_rois(*shown, "--output", f"{place}/page.html") == 0
        assert extract_rois(*shown, "--output", f"{place}/drawn", "--max-images", "2") == 0
        page, drawn = to_path(f"{place}/page.html"), to_path(f"{place}/drawn")
        names[place] = {path.name: path.read_bytes() for path in [page, *drawn.iterdir()]}
    assert names[bucket] == names[str(tmp_path)] and len(names[bucket]) == 3


def test_show_finds_images_that_are_called_otherwise(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, rows = tmp_path / "regions", ["own/1.jpg", "2.jpg", "6"]
    pairs = [{"pair_id": n, "image_id": n, "text": "a dog"} for n in rows]
    write_shard(tmp_path / "pairs", PAIRS, pairs)
    flags = ("--ids", "name", "--pairs", tmp_path / "pairs", "--output", output, *SMALL)
    assert extract_rois("run", images, *flags) == 0
    assert sorted(RegionReader(output).image_ids) == sorted(rows)
    page = tmp_path / "page.html"
    assert extract_rois("show", output, "--images", images, "--output", page) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == f"{page}: 3 of 3 images drawn, 7 images of --images without a row"
    assert page.read_text().count("data:image/jpeg;base64,") == 3


def test_show_of_other_images_fails_with_ids_of_both_sides(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "regions"
    assert extract_rois("run", images / "1.jpg", "--ids", "name", "--output", output, *SMALL) == 0
    arguments = ("--images", images / "2.jpg", "--output", tmp_path / "page.html")
    assert extract_rois("show", output, *arguments) == 1
    said = capsys.readouterr().out.splitlines()[-1]
    assert "0 of 1 image drawn, 1 image of --images without a row" in said
    assert said.endswith("--images has 2.jpg, REGIONS has 1")


@pytest.mark.parametrize(("flag", "number"), [("--classes", 1600), ("--attributes", 400)])
def test_another_number_of_names_is_refused(
    flag: str, number: int, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, names = tmp_path / "regions", tmp_path / "names.txt"
    assert extract_rois("run", images / "1.jpg", "--output", output, *SMALL) == 0
    arguments = ("--images", images, "--output", tmp_path / "page.html", flag, names)
    names.write_text("thing\n" * 123)
    assert extract_rois("show", output, *arguments) == 2
    assert f"{flag} has 123 names, the detector of REGIONS {number}" in capsys.readouterr().err
    names.write_text("thing\n" * number + "\n")
    assert extract_rois("show", output, *arguments) == 0


def test_a_run_of_rejects_alone_fails_and_says_why(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "regions"
    for _ in range(2):  # also of what is finished already
        assert extract_rois("run", images / "4-cut.jpg", "--output", output, *SMALL) == 1
        said = capsys.readouterr().out.splitlines()[-1]
        assert "0 rows of regions, 1 reject (1 unreadable_image)" in said


def test_verify_fails_on_damage(images: Path, tmp_path: Path) -> None:
    output = tmp_path / "regions"
    assert extract_rois("run", images / "1.jpg", "--output", output, *SMALL) == 0
    shard = output / "regions-00000-of-00001.parquet"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert extract_rois("verify", output) == 1


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_weights_from_a_file(images: Path, tmp_path: Path, suffix: str) -> None:
    model = FasterRCNN(ARCHITECTURES["tiny"])
    randomise(model, 5)
    path = tmp_path / f"weights{suffix}"
    state = model.state_dict()
    counters = {"backbone.res4.0.conv1.norm.num_batches_tracked": torch.tensor(3)}
    if suffix == ".pth":
        torch.save({"model": {**state, **counters}, "iteration": 7}, path)
    else:
        save_file({**state, **counters}, path)
    output = tmp_path / "regions"
    arguments = ("--output", output, "--weights", path, *SMALL)
    assert extract_rois("run", images / "1.jpg", *arguments) == 0
    reader = RegionReader(output)
    assert (
        reader.detector_fingerprint
        == open_detector(ARCHITECTURES["tiny"], None, seed=5).fingerprint
    )
    assert (
        reader.detector_fingerprint
        != open_detector(ARCHITECTURES["tiny"], None, seed=6).fingerprint
    )
    assert reader.producer["weights"] == path.name


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("this pickle ran",))


def bad_weights(tmp_path: Path) -> dict[str, Path]:
    paths = {kind: tmp_path / f"{kind}.pth" for kind in ("wrong", "evil", "text", "numbers")}
    torch.save({"backbone.fpn.weight": torch.zeros(2)}, paths["wrong"])
    torch.save({"model": Evil()}, paths["evil"])
    paths["text"].write_text("no weights at all")
    torch.save({"model": {"a": 1}}, paths["numbers"])
    return {**paths, "missing": tmp_path / "missing.pth"}


@pytest.mark.parametrize("kind", ["wrong", "evil", "text", "numbers", "missing"])
def test_bad_weights_are_a_mistake(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = bad_weights(tmp_path)[kind]
    arguments = ("--output", tmp_path / "o", "--weights", path, *SMALL)
    assert extract_rois("run", images, *arguments) == 2
    said = capsys.readouterr()
    assert f"--weights {path}" in said.err and "give " in said.err
    assert "this pickle ran" not in said.out + said.err
    if kind == "wrong":
        assert "unexpected backbone.fpn.weight" in said.err
        assert "missing backbone.stem.conv1.weight" in said.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nowhere/"], "INPUT nowhere/"),
        (["IMAGES", "--min-boxes", "9", "--max-boxes", "3"], "--min-boxes"),
        (["IMAGES", "--threshold", "2"], "--threshold"),
        (["IMAGES", "--short-side", "900", "--long-side", "800"], "--short-side"),
        (["IMAGES", "--arch", "tiny", "--device", "warp:1"], "--device warp:1"),
        (["IMAGES", "--backend", "detectron2", "--batch-size", "2"], "--batch-size 2"),
    ],
)
def test_mistakes_end_with_status_2_and_one_line(
    images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    named: str,
) -> None:
    arguments = [str(images) if a == "IMAGES" else a for a in arguments]
    assert extract_rois("run", *arguments, "--output", tmp_path / "o") == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert named in last


@pytest.mark.parametrize(
    ("flags", "size"),
    [
        ([], 1),
        (["--device", "cuda:1,cuda:2"], CUDA_BATCH_SIZE),
        (["--device", "cuda", "--batch-size", "3"], 3),
        (["--batch-size", "2"], 2),
        (["--device", "cuda", "--backend", "detectron2"], 1),
    ],
)
def test_the_batch_size_follows_the_device(flags: list[str], size: int) -> None:
    arguments = parser().parse_args(["run", "x", "--output", "y", *flags])
    config = make_config(arguments)
    assert config.batch_size == config.settings()["batch_size"] == size
    assert config.window == (1 if size == 1 else 8 * size)


@pytest.mark.parametrize("name", ["run", "verify", "show", "import", "export"])
def test_help_teaches_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        extract_rois(name, "--help")
    assert stopped.value.code == 0
    assert f"extract-rois {name} " in capsys.readouterr().out.split("example", 1)[1]


def test_show_finds_images_by_their_names(images: Path, tmp_path: Path) -> None:
    output, drawn = tmp_path / "regions", tmp_path / "drawn"
    plain = ("--ids", "name", "--output", output, *SMALL)
    assert extract_rois("run", images / "[01].jpg", *plain) == 0
    tsv, regions = tmp_path / "file.tsv", tmp_path / "imported"
    assert extract_rois("export", output, "--format", "tsv", "--output", tsv) == 0
    assert extract_rois("import", tsv, "--output", regions, "--id-prefix", "set/") == 0
    Image.open(images / "0.jpg").resize((48, 36)).save(images / "0.png")  # a smaller copy
    (images / "0.jpg").unlink()
    assert extract_rois("show", regions, "--images", images, "--output", drawn) == 0
    sizes = {path.name: Image.open(path).size for path in drawn.iterdir()}
    assert sizes == {"set%2F0.png": (48, 36), "set%2F1.png": (96, 72)}


def test_labels_do_not_cover_each_other() -> None:
    taken: list[tuple[float, float, float, float]] = []
    for _ in range(3):
        taken.append(find_free_box((90, -5, 120, 5), taken, (100, 50)))
    assert taken == [(70, 0, 100, 10), (70, 11, 100, 21), (70, 22, 100, 32)]
    full = [(0.0, 0.0, 100.0, 50.0)]
    assert find_free_box((10, 10, 20, 20), full, (100, 50)) == (10, 10, 20, 20)


def test_detectron2_is_refused_as_fast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--backend", "detectron2", "--config", "c.yaml", "--weights", "w.pth"]
    arguments = ["run", tmp_path, "--output", tmp_path / "o", *files, "--precision", "fast"]
    (tmp_path / "a.jpg").write_bytes(b"")
    assert extract_rois(*arguments) == 2
    assert "--precision fast: --backend detectron2" in capsys.readouterr().err
