"""``vlmill.load``: raw images and strings get the numbers of the commands."""

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image
from safetensors.torch import save_file
from tests.factories import write_photographs
from tests.train.tasks.questions import ANSWERS, question, tiny, world, write_questions
from tests.train.tasks.retrieval.cases import RANKED, tiny_model
from tests.train.tasks.retrieval.test_matching import TEXTS, TOKENIZER, VOCABULARY

import vlmill
from vlmill.extract.cli import command as extract_rois
from vlmill.inference.service.computing import open_model
from vlmill.inference.service.questions import ModelOptions
from vlmill.models.detector.config import ARCHITECTURES
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.random_weights import randomise
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import PAIRS
from vlmill.train.checkpoints.files import CheckpointRecord, TrainingRecord, save_checkpoint
from vlmill.train.run.lineage import detector_record
from vlmill.train.tasks.finetuning.job import finetune
from vlmill.train.tasks.retrieval.job import (
    RetrievalOptions,
    open_inputs,
    prepare_images,
    rank,
    select,
)

EXTRACT = ("--arch", "tiny", "--short-side", "48", "--long-side", "80", "--max-boxes", "7")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of four images, the same as files, and its regions by a random detector."""
    folder = tmp_path_factory.mktemp("photographs")
    write_photographs(folder / "images", 4)
    reader = ImageReader(folder / "images")
    for name in reader.image_ids:
        (folder / f"{name}.jpg").write_bytes(reader[name] or b"")
    words = ["run", str(folder / "images"), "--output", str(folder / "regions")]
    assert extract_rois([*words, *EXTRACT, "--seed", "3"]) == 0
    rows = [
        {**dict.fromkeys(PAIRS.schema.names), "pair_id": f"p{at}", "text": text}
        | {"image_id": f"image-{at % 4}"}
        for at, text in enumerate(TEXTS)
    ]
    write_shard(folder / "pairs", PAIRS, rows)
    return folder


def save(
    folder: Path, name: str, photographs: Path, *, converted: bool = False, **record: Any
) -> Path:
    """A tiny checkpoint of a model that reads the detector's features; ``record`` changes what it
    says of the detector, of which a ``converted`` one says nothing.
    """
    regions = RegionReader(photographs / "regions")
    case = RANKED[name]
    sizes = {"region_width": regions.feature_dim} if case.feeding.kind == "regions" else {}
    said = {k: v for k, v in (detector_record(regions) | record).items() if v is not None}
    stage, step = ("", 0) if converted else ("pairs", 1)
    knows = sizes and not converted
    save_checkpoint(
        folder,
        tiny_model(name, VOCABULARY, **sizes),
        CheckpointRecord(
            variant=case.variant,
            tokenizer=TOKENIZER,
            training=TrainingRecord(recipe="tiny", stage=stage, step=step, num_pairs=0),
            feeding=case.feeding,
            detector_fingerprint=regions.detector_fingerprint if knows else None,
            detector=said if knows else None,
        ),
    )
    return folder


def ranked(checkpoint: Path, photographs: Path) -> Any:
    """Scores [I, T] of the evaluation of the tables, in their order."""
    options = RetrievalOptions(
        checkpoint=checkpoint,
        pairs=str(photographs / "pairs"),
        regions=str(photographs / "regions"),
        images=str(photographs / "images"),
        output=checkpoint / "results",
    )
    opened = open_inputs(options)
    candidates, _ = select(opened, {})
    assert list(candidates.image_ids) == [f"image-{at}" for at in range(4)]
    return rank(opened, candidates, prepare_images(opened, candidates, {})).by_text


def as_users_have_them(photographs: Path) -> list[Any]:
    """A path, its text, an image of PIL, and an array."""
    files = [photographs / f"image-{at}.jpg" for at in range(4)]
    return [files[0], str(files[1]), Image.open(files[2]), np.asarray(Image.open(files[3]))]


@pytest.mark.parametrize("name", ["imagebert", "vilbert", "vl-bert", "vlmo"])
def test_scores_are_those_of_the_evaluation(name: str, photographs: Path, tmp_path: Path) -> None:
    checkpoint = save(tmp_path / name, name, photographs)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="texts are cut")
        scores = vlmill.load(checkpoint).score(as_users_have_them(photographs), TEXTS)
    assert scores.dtype == np.float32
    np.testing.assert_array_equal(scores, ranked(checkpoint, photographs))


def test_an_explained_image_is_turned_once(photographs: Path, tmp_path: Path) -> None:
    model, content = vlmill.load(save(tmp_path / "c", "vlmo", photographs)), io.BytesIO()
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.open(photographs / "image-0.jpg").save(content, "JPEG", exif=exif)
    score = model.score([content.getvalue()], TEXTS[:1])[0, 0]
    explained = model.explain(content.getvalue(), TEXTS[0]).score
    np.testing.assert_allclose(explained, score, rtol=1e-5)


def test_a_bad_image_and_an_empty_text_leave_the_others(photographs: Path, tmp_path: Path) -> None:
    model = vlmill.load(save(tmp_path / "c", "imagebert", photographs))
    images = [*as_users_have_them(photographs)[:2], b"no picture", tmp_path / "nowhere.jpg"]
    with pytest.warns(UserWarning) as said:
        scores = model.score(images, [TEXTS[0], " ", TEXTS[1]])
    words = [str(one.message) for one in said]
    assert {one.filename for one in said} == {__file__}  # where a user can do something
    assert "1 text without a result (1 no_text), NaN instead: 1" in words
    assert f"image {tmp_path / 'nowhere.jpg'}: No such file or directory" in words
    assert any(
        word.startswith("2 images without a result (1 ") and word.endswith(": 2, 3")
        for word in words
    )
    assert np.isnan(scores).tolist() == [[False, True, False]] * 2 + [[True] * 3] * 2
    np.testing.assert_allclose(
        scores[:2, [0, 2]], model.score(images[:2], TEXTS[:2]), rtol=1e-5, atol=1e-5
    )


def test_a_dual_encoder_gives_unit_vectors(photographs: Path, tmp_path: Path) -> None:
    model = vlmill.load(save(tmp_path / "c", "vlmo", photographs))
    images = as_users_have_them(photographs)
    image_vectors, texts = model.encode_images(images), model.encode_texts(TEXTS[:3])
    for vectors in (image_vectors, texts):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(image_vectors @ texts.T, model.score(images, TEXTS[:3]), atol=1e-6)
    with pytest.warns(UserWarning, match="1 image without a result"):
        broken = model.encode_images([images[0], b"no picture"])
    np.testing.assert_allclose(broken[0], image_vectors[0], atol=1e-5)
    assert np.isnan(broken[1]).all()


def test_long_texts_are_cut_and_that_is_said_once(photographs: Path, tmp_path: Path) -> None:
    model = vlmill.load(save(tmp_path / "c", "vlmo", photographs))
    with pytest.warns(UserWarning, match="texts are cut at"):
        vectors = model.encode_texts(["a dog " * 40, "a dog " * 50])
    np.testing.assert_array_equal(vectors[0], vectors[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.encode_texts(["a dog " * 40])


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a file is needed": ({"weights": "detector.pth"}, r"detector.pth.*detector=FILE"),
    "no selection": ({"selection": None}, "it lacks selection"),
    "given boxes": ({"given": "abc"}, "given boxes"),
    "another seed": ({"weights": "random weights, seed 4"}, "was trained on"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_detector_that_cannot_be_found_is_refused(
    name: str, photographs: Path, tmp_path: Path
) -> None:
    record, said = REFUSED[name]
    model = vlmill.load(save(tmp_path / "c", "imagebert", photographs, **record))
    with pytest.raises(InputError, match=said):
        model.score(as_users_have_them(photographs), TEXTS)
    with pytest.raises(InputError, match=said):
        open_model(ModelOptions(checkpoint=tmp_path / "c"), "cpu")  # no first request fails


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same detector's weights as a file."""
    model = FasterRCNN(ARCHITECTURES["tiny"])
    randomise(model, 3)
    path = tmp_path_factory.mktemp("weights") / "detector.safetensors"
    save_file(model.state_dict(), path)
    return path


def test_a_detector_comes_from_its_file(photographs: Path, weights: Path, tmp_path: Path) -> None:
    named = save(tmp_path / "named", "imagebert", photographs, weights=weights.name)
    drawn = save(tmp_path / "drawn", "imagebert", photographs)
    images = as_users_have_them(photographs)[:1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = vlmill.load(named, detector=weights).score(images, ["dog", "tree"])
    with pytest.warns(UserWarning, match="random weights"):
        expected = vlmill.load(drawn).score(images, ["dog", "tree"])
    np.testing.assert_array_equal(scores, expected)
    with pytest.raises(InputError, match=r"none\.pth"):  # when it is opened, not with an image
        vlmill.load(named, detector=tmp_path / "none.pth")
    pixels = save(tmp_path / "pixels", "vlmo", photographs)
    with pytest.raises(InputError, match="reads no regions; remove detector"):
        vlmill.load(pixels, detector=weights)
    assert repr(vlmill.load(pixels)) == f"<vlmo of {pixels} on cpu>"


def test_a_converted_checkpoint_takes_its_papers_regions(
    photographs: Path, weights: Path, tmp_path: Path
) -> None:
    checkpoint = save(tmp_path / "c", "vilbert", photographs, converted=True)
    images = as_users_have_them(photographs)[:1]
    with pytest.warns(UserWarning) as said:
        model = vlmill.load(checkpoint, detector=weights)
        assert np.isfinite(model.score(images, ["dog"])).all()
    words = " ".join(str(one.message) for one in said)
    assert "regions are selected as in vilbert's paper" in words
    assert "it is not checked that this is detector.safetensors" in words
    with pytest.raises(InputError, match="detector=FILE"):
        vlmill.load(checkpoint).score(images, ["dog"])


def test_arguments_of_another_kind_are_refused(photographs: Path, tmp_path: Path) -> None:
    model = vlmill.load(save(tmp_path / "c", "imagebert", photographs))
    one = photographs / "image-0.jpg"
    for images, texts, said in (
        (one, ["a"], "images: expected a list"),
        ([one], "a", "texts: expected a list"),
        ([7], ["a"], "an image is a int"),
        ([one], ["a", None], "a text is a NoneType; give a string"),
        ([np.zeros((4, 4, 3))], ["a"], "float64"),
    ):
        with pytest.raises(InputError, match=said):
            model.score(images, texts)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="reads a text and an image together"):
        model.encode_images([one])
    with pytest.raises(InputError, match="holds no checkpoint"):
        vlmill.load(tmp_path / "none")
    with pytest.raises(InputError, match="not fine-tuned for vqa"):
        model.answer(one, "a dog")


def test_a_question_is_answered_as_the_evaluation_does(tmp_path: Path) -> None:
    inputs = world(tmp_path)
    run = tmp_path / "run"
    finetune(tiny("vqa-vlmo-small"), inputs, run)
    assert inputs.images is not None
    reader = ImageReader(inputs.images)
    model = vlmill.load(run)
    image = Image.open(io.BytesIO(reader["image-3"] or b""))
    said = model.answer(image, "what is left of number 1?")
    assert said in ANSWERS
    with pytest.raises(InputError, match="the image has no result"):
        model.answer(b"no picture", "what is left of number 1?")
    with pytest.raises(InputError, match="has no word"):
        model.answer(image, " ")
    asked = write_questions(tmp_path / "asked", [question(1, image_id="image-3")])
    assert said == predicted(run, asked, inputs.images)


def predicted(run: Path, examples: str, images: str) -> str:
    """The answer of ``train-vl evaluate vqa`` to the only question."""
    from vlmill.runtime.files.shards import ShardWriter
    from vlmill.schemas.tables import REJECTS
    from vlmill.train.tasks.evaluating.inputs import EvaluationOptions, open_evaluation
    from vlmill.train.tasks.evaluating.job import predict_all, prepare_batches

    out = run.parent / "evaluated"
    options = EvaluationOptions(
        task="vqa", checkpoint=run, examples=examples, output=out, images=images
    )
    opened = open_evaluation(options)
    with ShardWriter(out, REJECTS, 0, 1) as rejects:
        batches = prepare_batches(opened, out / "work", rejects)
    (one,), _ = predict_all(opened, batches)
    answers: tuple[str, ...] = opened.task.names  # type: ignore[attr-defined]
    answer: str = answers[one.value.index]
    return answer


def test_a_table_is_a_dataset(photographs: Path) -> None:
    table = vlmill.open_table(photographs / "regions", "regions")
    assert table.count_rows() == 4 and "features" in table.schema.names
    with pytest.raises(InputError, match="is not one of images"):
        vlmill.open_table(photographs / "regions", "region")
