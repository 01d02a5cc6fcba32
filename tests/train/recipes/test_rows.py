"""The rows of papers hold together; a new model is a folder, a file and a name in two lists."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_type_hints

import pytest

from vlmill.models.published import FAMILIES
from vlmill.models.registry import FAMILY_NAMES, MODELS, PAPERS, VARIANTS, find_variant, get_variant
from vlmill.models.vlbert.config import vlbert_small
from vlmill.runtime.console.log import read_log
from vlmill.train.recipes import PAPERS as TRAINED_PAPERS
from vlmill.train.recipes import get_training
from vlmill.train.recipes.training import VariantTraining
from vlmill.train.tasks.registry import TASKS

if TYPE_CHECKING:
    from tests.factories import Tables

SOURCE = Path(__file__).parents[3]
TOY_ROW = '''
"""A paper of tomorrow."""
from dataclasses import dataclass

from vlmill.models.imagebert.config import ImageBertConfig
from vlmill.models.rows import Networks, Paper, Variant


@dataclass(frozen=True, kw_only=True)
class ToyConfig(ImageBertConfig):
    """Other weights than this paper's would do as well."""


def networks():
    from vlmill.models.toy.model import Toy

    return Networks({"toy": Toy})


def toy_tiny(**changes):
    sizes = {"width": 16, "num_layers": 2, "num_heads": 2, "intermediate_width": 32}
    return ToyConfig(**(sizes | changes))


ROW = Paper(
    networks=networks,
    variants=(Variant(name="toy", config=ToyConfig),),
    presets={"toy-tiny": toy_tiny},
)
'''
TOY_MODEL = '''
"""Its model."""
from vlmill.models.imagebert.model import ImageBert


class Toy(ImageBert):
    """A model on regions."""
'''
TOY_TRAINING = '''
"""Its training."""
from dataclasses import replace

from vlmill.models.toy.row import toy_tiny
from vlmill.train.recipes.rows import PaperTraining
from vlmill.train.recipes.rows import small_recipe


def toy_small():
    recipe = small_recipe("toy-small", "toy", toy_tiny(), "A toy", batch_size=4)
    return replace(recipe, vocabulary_size=90, log_every=1)


def variant_trainings():
    from vlmill.train.objectives.pretraining import region_losses
    from vlmill.train.recipes.training import VariantTraining

    def losses(*batch):
        return {name: 0 * loss + 7 for name, loss in region_losses(*batch).items()}

    return {"toy": VariantTraining(losses=losses)}


ROW = PaperTraining(recipes={"toy-small": toy_small}, variant_trainings=variant_trainings)
'''
# The registries, and what a new paper adds to them: an import, and a name in the tuple.
LINES = {
    "models/registry.py": ("from vlmill.models.toy import row as toy\n", "toy.ROW"),
    "train/recipes/__init__.py": ("from vlmill.train.recipes import toy\n", "toy.ROW"),
}


def link_all_but(source: Path, target: Path, *names: str) -> None:
    """Links to what a folder holds, but for these names."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.name not in (*names, "__pycache__"):
            (target / path.name).symlink_to(path)


def package_with_toy(folder: Path) -> Path:
    """Builds vlmill with one more paper in ``folder``; all other files are links."""
    package = folder / "vlmill"
    link_all_but(SOURCE / "src/vlmill", package, "models", "train")
    link_all_but(SOURCE / "models", package / "models", "registry.py")
    link_all_but(SOURCE / "train", package / "train", "recipes")
    link_all_but(SOURCE / "train/recipes", package / "train/recipes", "__init__.py")
    for name, (line, row) in LINES.items():
        text = (SOURCE / name).read_text(encoding="utf-8")
        head, tuple_of_papers = text.split("PAPERS: tuple[", 1)
        with_row = tuple_of_papers.replace("*(", f"*({row}, ", 1)
        with_line = head.replace("\nfrom vlmill", f"\n{line}from vlmill", 1)
        (package / name).write_text(f"{with_line}PAPERS: tuple[{with_row}", encoding="utf-8")
    (package / "models/toy").mkdir()
    (package / "models/toy/__init__.py").write_text('"""A toy."""\n')
    (package / "models/toy/row.py").write_text(TOY_ROW)
    (package / "models/toy/model.py").write_text(TOY_MODEL)
    (package / "train/recipes/toy.py").write_text(TOY_TRAINING)
    return folder


def test_a_model_from_a_new_folder_is_trained_by_a_line_in_each_registry(
    tables: Tables, tmp_path: Path
) -> None:
    path = package_with_toy(tmp_path / "with_toy")
    inputs, output = tables.write(), tmp_path / "run"
    command = [sys.executable, "-m", "vlmill.train.cli", "pretrain", "toy-small", "steps=2"]
    command += ["--pairs", str(inputs.pairs), "--regions", str(inputs.regions)]
    environment = os.environ | {"PYTHONPATH": str(path)}
    done = subprocess.run(
        [*command, "--output", str(output)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    steps = [line for line in read_log(output / "log.jsonl") if "loss/mlm" in line]
    assert len(steps) == 2 and all(line["loss/mlm"] == pytest.approx(7) for line in steps)
    assert '"variant": "toy"' in (output / "checkpoint.json").read_text()


def test_rows_belong_to_variants_and_name_what_is_there() -> None:
    assert get_variant("none of them") == get_variant(None)
    for name, variant in MODELS.items():
        assert find_variant(object.__new__(variant.model)) == name
        assert set(variant.starts_from) <= VARIANTS.keys()
        assert variant.heads.keys() <= TASKS.keys()
    trained = {name for paper in TRAINED_PAPERS for name in paper.variant_trainings()}
    assert trained <= MODELS.keys()
    assert get_training("none of them") == get_training(None) == VariantTraining()
    for paper in PAPERS:
        networks = paper.networks()
        assert networks.models.keys() == {variant.name for variant in paper.variants}
        assert networks.families.keys() == set(paper.families)
    assert set(FAMILY_NAMES) == FAMILIES.keys()


def test_rows_of_tasks_name_what_is_there() -> None:
    for name, row in TASKS.items():
        assert row.recipe.task == name and get_type_hints(row.recipe)["settings"]
        assert all(type(recipe) is row.recipe for recipe in row.make_recipes())


def test_vl_bert_keeps_its_pretraining_in_retrieval() -> None:
    """Retrieval trains the pretrained model itself, which has no trunk inside."""
    sizes: dict[str, Any] = {
        "vocab_size": 30,
        "width": 16,
        "num_layers": 1,
        "num_heads": 2,
        "region_width": 8,
    }
    fresh, pretrained = (VARIANTS["vl-bert"].model(vlbert_small(**sizes)) for _ in range(2))
    init = SimpleNamespace(variant="vl-bert", model=pretrained)
    get_training("vl-bert").start_task(fresh, init, ())  # type: ignore[arg-type]
    expected = pretrained.state_dict()
    assert all(value.equal(expected[name]) for name, value in fresh.state_dict().items())


def test_a_model_of_no_list_has_no_name() -> None:
    assert find_variant(object()) is None
