"""Blocks that are compiled separately share graphs, once for all lengths, and change no loss."""

import json
from pathlib import Path

import pytest
from tests.forked import run_script

BATCHES = 8
# In a process of its own: shapes that are checked while tests run cannot be traced. Tracing alone,
# as code for a CPU takes minutes to generate.
SCRIPT = """
import json, sys
from pathlib import Path
import torch
from torch._dynamo.utils import counters
from tests.forked import run_script
from tests.train.run.test_graphs import as_double, shares_of
from tests.train.objectives.test_no_waits import prepared
from benchmarks.gpu_check.training import CASES, recipe_of, table_sizes
from vlmill.models import VARIANTS
from vlmill.train.devices.setup import compile_blocks
from vlmill.train.run.pretraining import make_step
from vlmill.train.recipes import change_recipe

name, folder, batches = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
changes = json.loads(sys.argv[4])
recipe = change_recipe(recipe_of(CASES[name], tiny=True), changes)
work = prepared(recipe, table_sizes(CASES[name], tiny=True), folder)
torch.manual_seed(0)
model = VARIANTS[name].model(work.recipe.model).double().train()
step = make_step(model, work.stage.objectives)
losses, shapes, graphs = {}, set(), []
for form in ("eager", "blocks"):
    if form == "blocks":
        compile_blocks(model, backend="aot_eager")
    for number in range(batches):
        batch = work.batches.assembled(number)
        shapes.add(tuple(tensor.shape for tensor in batch.tensors.values()))
        torch.manual_seed(number)
        drawn = torch.rand(2, len(batch.pair_ids))
        loss, _ = step(as_double(batch.to("cpu")), shares_of(work, batch), drawn)
        loss.backward()
        losses.setdefault(form, []).append(loss.item())
        if form == "blocks":
            graphs.append(counters["stats"]["unique_graphs"])
blocks = sum(part._compiled_call_impl is not None for part in model.modules())
print(json.dumps({"losses": losses, "graphs": graphs, "shapes": len(shapes), "blocks": blocks,
                  "breaks": sum(counters["graph_break"].values())}))
"""
STILL = ["model.dropout=0", "model.attention_dropout=0"]


@pytest.mark.parametrize(
    ("name", "blocks", "most_graphs", "changes"),
    [
        pytest.param(
            "vilbert",
            24,
            5,
            [
                *STILL,
                "model.num_layers=12",
                "model.visual_num_layers=6",
                "model.text_co_layers=[6,7,8,9,10,11]",
                "model.visual_co_layers=[0,1,2,3,4,5]",
                "model.visual_dropout=0",
                "model.visual_attention_dropout=0",
            ],
            marks=pytest.mark.nightly,  # the blocks of two streams; ImageBERT's are every graph's
        ),
        pytest.param("imagebert", 4, 2, [*STILL, "model.num_layers=4"]),
        pytest.param(
            "vlmo",
            12,
            14,
            ["model.num_layers=12", "model.first_vl_layer=10"],
            marks=pytest.mark.long,
        ),
    ],
)
def test_blocks_share_graphs(
    name: str, blocks: int, most_graphs: int, changes: list[str], tmp_path: Path
) -> None:
    done = run_script(SCRIPT, name, tmp_path, BATCHES, json.dumps(changes))
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["blocks"] == blocks and outcome["breaks"] == 0
    assert outcome["shapes"] > 2  # so that something could be compiled again
    assert outcome["graphs"][0] <= most_graphs
    assert outcome["graphs"][-1] == outcome["graphs"][0]
    assert outcome["losses"]["blocks"] == pytest.approx(outcome["losses"]["eager"], rel=1e-12)
