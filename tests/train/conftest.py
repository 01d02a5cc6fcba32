"""Tiny tables of pairs, regions and negatives, and a recipe that trains on them in a second."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from accelerate.state import AcceleratorState
from tests.factories import Tables

from vlmill.models.imagebert.config import ImageBertConfig
from vlmill.train.recipes import Optimizer, Recipe, Stage


@pytest.fixture(autouse=True)
def fresh_accelerator() -> Iterator[None]:
    """accelerate keeps a process's precision for good; here every test may have its own."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path)


@pytest.fixture
def stage() -> Stage:
    return tiny_stage()


@pytest.fixture
def recipe(stage: Stage) -> Recipe:
    return tiny_recipe(stage)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of the recipe on the tables as they are written; not to be changed."""
    from vlmill.train.run.job import pretrain

    folder = tmp_path_factory.mktemp("undisturbed")
    pretrain(tiny_recipe(tiny_stage()), Tables(folder).write(), folder / "out")
    AcceleratorState._reset_state(reset_partial_state=True)
    return folder / "out"


def tiny_stage() -> Stage:
    return Stage(name="pairs", steps=6, batch_size=4, optimizer=Optimizer(lr=1e-3))


def tiny_recipe(stage: Stage) -> Recipe:
    """Two small layers with dropout, so that random numbers matter."""
    return Recipe(
        name="tiny",
        variant="imagebert",
        model=ImageBertConfig(
            width=16, num_layers=2, num_heads=2, intermediate_width=32, num_region_classes=7
        ),
        stages=(stage,),
        vocabulary_size=90,
        save_every=2,
        keep_checkpoints=3,
        log_every=1,
    )
