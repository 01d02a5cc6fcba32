"""Training steps ask the device for nothing, and are one graph for batches of any lengths."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.gpu_check.tables import TableSizes
from benchmarks.gpu_check.training import CASES, TINY_MODEL, Work, prepared, recipe_of, table_sizes
from tests.behaviour.test_end_to_end import tiny as end_to_end
from tests.forked import run_script
from torch import nn

from vlmill.models import VARIANTS, preset
from vlmill.models.vlmo.config import text_stage
from vlmill.train.objectives.pretraining import PretrainingStep, label_counts
from vlmill.train.recipes import Recipe, change_recipe, recipe_named
from vlmill.train.run.pretraining import make_step

META = torch.device("meta")
SIZES = table_sizes(CASES["imagebert"], tiny=True)
TEXTS = dataclasses.replace(SIZES, texts=24)
MOST_GRAPHS = 2  # a size of 1, or that of a weight, by chance in the first batch costs a second one


def _tiny(name: str, model: Any, *changes: str) -> Recipe:
    recipe = dataclasses.replace(recipe_named(name), model=model)
    return change_recipe(recipe, ["sources=[]", "steps=10", "batch_size=6", *changes])


def _single_stream() -> Recipe:
    model = preset("vilbert-single-stream", **TINY_MODEL, num_layers=2)
    return _tiny("vilbert-single-stream", model)


def _with_texts_alone() -> Recipe:
    model = preset("vl-bert-small", **TINY_MODEL, num_layers=2, num_wavelengths=4, text_only=True)
    return _tiny("vl-bert", model, "feeding.text_rows=4", "feeding.text_row_tokens=30")


def _texts_alone() -> Recipe:
    model = preset("vlmo-small", **TINY_MODEL, num_layers=2, first_vl_layer=1, image_size=32)
    return _tiny("vlmo-texts-base", text_stage(model), "feeding.max_tokens=24")


def _end_to_end() -> Recipe:
    return end_to_end("sources=[]", "steps=10")


def _case(name: str) -> Callable[[], Recipe]:
    return lambda: recipe_of(CASES[name], tiny=True)


RECIPES: dict[str, tuple[Callable[[], Recipe], TableSizes]] = {
    **{name: (_case(name), table_sizes(case, tiny=True)) for name, case in CASES.items()},
    "vilbert-single-stream": (_single_stream, SIZES),
    "vl-bert-with-texts-alone": (_with_texts_alone, TEXTS),
    "vlmo-texts-alone": (_texts_alone, TEXTS),
    "vl-bert-end-to-end": (_end_to_end, dataclasses.replace(TEXTS, image_px=40)),
}
# Two that differ most, packed as they train. Tracing a step takes ten seconds: they are also traced
# unpacked with --nightly, and the others with --long.
TRACED = ("imagebert", "vlmo")
PACKS = (False, True)
LONGER = tuple(name for name in (*CASES, "vl-bert-end-to-end") if name not in TRACED)


@pytest.fixture(params=RECIPES)
def work(request: pytest.FixtureRequest, tmp_path: Path) -> Work:
    make, sizes = RECIPES[request.param]
    return prepared(make(), sizes, tmp_path)


def step_on(work: Work, *, pack: bool) -> PretrainingStep:
    model = VARIANTS[work.recipe.variant].model(work.recipe.model)
    return make_step(model, work.stage.objectives, pack=pack).train()


@pytest.mark.parametrize("pack", PACKS)
def test_a_step_asks_the_device_for_nothing(work: Work, pack: bool) -> None:
    """On the meta device there are no values to ask for: ``.item()``, ``nonzero`` and the truth of
    a tensor raise.
    """
    step = step_on(work, pack=pack).to(META)
    for number in range(2):
        stored = work.batches.assembled(number)
        assert not stored.tensors["token_mask"].all()  # so there is padding to leave out
        shares = torch.ones(len(label_counts(stored, work.stage.objectives)), device=META)
        drawn = torch.rand(2, len(stored.pair_ids), device=META)
        loss, _ = step(stored.to(META), shares, drawn)
        loss.backward()
    trained = [parameter for parameter in step.parameters() if parameter.requires_grad]
    assert any(parameter.grad is not None for parameter in trained)


class Asks(nn.Module):
    """Layers that wait for the device, each by another question."""

    def __init__(self, question: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.question = question

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.question(values)
        return values


@pytest.mark.parametrize(
    "question", [torch.Tensor.item, bool, torch.nonzero, torch.Tensor.tolist, torch.Tensor.cpu]
)
def test_a_layer_that_asks_fails_there(question: Callable[[torch.Tensor], object]) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        Asks(question)(torch.ones((), device=META))


COMPILED = """
import json, sys
from pathlib import Path
import torch
import torch.fx.experimental._config
from tests.train.objectives.test_no_waits import RECIPES, prepared, step_on
from vlmill.train.objectives.pretraining import label_counts

# As `vlmill.train.devices.setup.compile_step` has it.
torch.fx.experimental._config.use_duck_shape = False

graphs = []

def counting(graph, example_inputs):
    graphs.append(graph)
    return graph.forward

name, pack, folder = sys.argv[1], sys.argv[2] == "True", Path(sys.argv[3])
make, sizes = RECIPES[name]
work = prepared(make(), sizes, folder)
step = torch.compile(step_on(work, pack=pack), fullgraph=True, dynamic=True, backend=counting)
shapes = set()
for number in range(4):
    stored = work.batches.assembled(number)
    shapes.add(tuple(tensor.shape for tensor in stored.tensors.values()))
    shares = torch.rand(len(label_counts(stored, work.stage.objectives)))
    drawn = torch.rand(2, len(stored.pair_ids))
    loss, _ = step(stored.to("cpu"), shares, drawn)
    loss.backward()
print(json.dumps({"graphs": len(graphs), "shapes": len(shapes)}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("imagebert", True),
        *(
            pytest.param(name, pack, marks=pytest.mark.nightly)
            for name, pack in [("imagebert", False), ("vlmo", True), ("vlmo", False)]
        ),
        *(pytest.param(name, pack, marks=pytest.mark.long) for name in LONGER for pack in PACKS),
    ],
)
def test_a_step_is_one_graph_for_all_lengths(name: str, pack: bool, tmp_path: Path) -> None:
    """In another process: checking shapes while tests run is nothing that can be traced."""
    done = run_script(COMPILED, name, pack, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["shapes"] > 1
    assert 1 <= outcome["graphs"] <= MOST_GRAPHS
