"""``vlmill.load`` opens what ``convert`` made of published checkpoints, of every model."""

import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.factories import write_photographs
from tests.nightly import stand_for
from tests.train.tasks.expressions import tiny as refcoco
from tests.train.tasks.questions import tiny as vqa
from tests.train.tasks.retrieval.cases import RANKED, tiny_model
from tests.train.tasks.retrieval.test_matching import TOKENIZER, VOCABULARY

import vlmill
from vlmill.extract.config import ExtractConfig, InputLimits
from vlmill.models import MODELS
from vlmill.models.detector.config import ARCHITECTURES
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.random_weights import randomise
from vlmill.models.published import export_reference
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.settings.plain_fields import override, to_plain
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import CheckpointRecord, TrainingRecord, save_checkpoint
from vlmill.train.cli import main
from vlmill.train.loading.vocabulary import vocabulary_text

# The family, and a preset whose fields are changed to the tiny model's. ImageBERT is unpublished.
PUBLISHED = {
    "vilbert": ("vilbert", "vilbert-small"),
    "vilbert-single-stream": ("vilbert", "vilbert-single-stream"),
    "vl-bert": ("vl-bert", "vl-bert-small"),
    "interbert": ("interbert", "interbert-small"),
    "vlmo": ("vlmo", "vlmo-small"),
}
WIDTH = ARCHITECTURES["tiny"].res2_channels * 8  # of its features
TEXTS = ["a dog", "two cats"]


@pytest.fixture(autouse=True)
def small_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A detector's own size is that of photographs, which takes seconds an image."""
    limits = InputLimits(short_side=48, long_side=80)
    config = partial(ExtractConfig, limits=limits)
    monkeypatch.setattr("vlmill.inference.load.detector.ExtractConfig", config)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Two photographs' bytes."""
    folder = tmp_path_factory.mktemp("photographs")
    reader = ImageReader(write_photographs(folder / "images", 2))
    return [reader[name] for name in reader.image_ids]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector's file."""
    model = FasterRCNN(ARCHITECTURES["tiny"])
    randomise(model, 3)
    path = tmp_path_factory.mktemp("weights") / "detector.safetensors"
    save_file(model.state_dict(), path)
    return path


@pytest.mark.parametrize("name", stand_for(PUBLISHED, "vilbert", "vlmo"))
def test_a_published_model_scores(
    name: str, images: list[Any], weights: Path, tmp_path: Path
) -> None:
    family, preset = PUBLISHED[name]
    sizes = {} if name == "vlmo" else {"region_width": WIDTH}
    model = tiny_model(name, VOCABULARY, **sizes)
    state = {key: value.clone() for key, value in export_reference(family, model).items()}
    save_file(state, tmp_path / "published.safetensors")
    (tmp_path / "vocab.txt").write_text(vocabulary_text(TOKENIZER))
    fields = [f"{key}={json.dumps(value)}" for key, value in to_plain(model.config).items()]
    words = ["convert", "--family", family, "--checkpoint", str(tmp_path / "published.safetensors")]
    ours = tmp_path / "ours"
    assert main([*words, "--config", preset, *fields, "--output", str(ours)]) == 0
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loaded = vlmill.load(ours, detector=None if name == "vlmo" else weights)
        scores = loaded.score(images, TEXTS)
    assert np.isfinite(scores).all() and len(np.unique(scores)) == 4
    assert ("'s paper" in " ".join(str(one.message) for one in said)) == (name != "vlmo")
    for key, value in loaded._engine.loaded.model.state_dict().items():
        assert torch.equal(value, model.state_dict()[key])


def converted(folder: Path, variant: str, config: Any) -> Path:
    """A folder as ``convert`` writes it, which says of a checkpoint's making nothing."""
    torch.manual_seed(0)
    save_checkpoint(
        folder,
        MODELS[variant].model(config),
        CheckpointRecord(
            variant=variant,
            tokenizer=TOKENIZER,
            training=TrainingRecord(recipe="convert vilbert", stage="", step=0, num_pairs=0),
        ),
    )
    return folder


def sized(config: Any, *more: str) -> Any:
    """A task's configuration with the tests' vocabulary and the tiny detector's features."""
    body = next(name for name in ("trunk", "body", "encoder") if hasattr(config, name))
    fields = [f"{body}.vocab_size={VOCABULARY}", *more]
    if body != "encoder":
        fields += [f"{body}.region_width={WIDTH}"]
    return override(config, fields)


@pytest.mark.parametrize("name", ["vqa-vilbert-small", "vqa-vl-bert-small", "vqa-vlmo-small"])
def test_a_converted_model_answers_from_its_own_list(
    name: str, images: list[Any], weights: Path, tmp_path: Path
) -> None:
    recipe = vqa(name)
    config = sized(recipe.model, "num_answers=3")
    folder = converted(tmp_path / "ours", recipe.variant, config)
    (tmp_path / "answers.txt").write_text("yes\nno\ntwo\n")
    detector = None if "vlmo" in name else weights
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = vlmill.load(folder, detector=detector, labels=tmp_path / "answers.txt")
        assert model.answer(images[0], "is it a dog?") in ("yes", "no", "two")
    with pytest.raises(InputError, match="give labels=FILE"):
        vlmill.load(folder, detector=detector).answer(images[0], "is it a dog?")


@pytest.mark.parametrize("name", ["refcoco-vilbert-small", "refcoco-vl-bert-small"])
def test_a_converted_model_grounds(
    name: str, images: list[Any], weights: Path, tmp_path: Path
) -> None:
    recipe = refcoco(name)
    folder = converted(tmp_path / "ours", recipe.variant, sized(recipe.model))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = vlmill.load(folder, detector=weights).ground(images[0], "the dog")
    assert len(found.boxes) >= 10 and np.isfinite(found.scores).all()


def test_what_has_no_head_for_images_and_texts_says_so(images: list[Any], tmp_path: Path) -> None:
    model = tiny_model("vl-bert", VOCABULARY, region_width=WIDTH)
    folder = converted(tmp_path / "pretrained", RANKED["vl-bert"].variant, model.config)
    asked: tuple[tuple[Callable[[Any], object], str], ...] = (
        (lambda one: one.answer(images[0], "a dog?"), "not fine-tuned for vqa"),
        (lambda one: one.ground(images[0], "a dog"), "not fine-tuned for refcoco"),
        (lambda one: one.encode_texts(TEXTS), "reads a text and an image together"),
        (lambda one: one.score(images, TEXTS), r"detector=FILE"),
    )
    for ask, said in asked:
        with pytest.raises(InputError, match=said):
            ask(vlmill.load(folder))
