"""ViLBERT, its baseline and InterBERT compile without a break, and once for several lengths."""

import pytest
from tests.forked import run_script

COMPILED = """
import torch
from tests.forked import run_script
from vlmill.models import VARIANTS, VLInputs, preset

def pairs(batch, tokens, regions):
    return VLInputs(
        tokens=torch.ones(batch, tokens, dtype=torch.int64),
        token_mask=torch.arange(tokens).expand(batch, -1) < tokens - 1,
        region_features=torch.randn(batch, regions, 16),
        region_locations=torch.rand(batch, regions, 5),
        region_mask=torch.arange(regions).expand(batch, -1) < regions - 1,
    )

# Not 5 regions: what is equal by chance, as to the location's numbers, counts as one size.
first, second = pairs(2, 7, 6), pairs(3, 9, 8)
vilbert = preset(
    "vilbert-small", region_width=16, num_layers=2, text_co_layers=(1,), frozen_text_layers=1,
    visual_num_layers=1, visual_co_layers=(0,),
)
baseline = preset(
    "vilbert-single-stream", region_width=16, width=24, num_heads=4, num_layers=1
)
interbert = preset("interbert-small", region_width=16, num_interaction_layers=1)
models = {"vilbert": vilbert, "vilbert-single-stream": baseline, "interbert": interbert}
for name, config in models.items():
    model = VARIANTS[name].model(config).eval()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
    compiled(first)
    with torch.compiler.set_stance("fail_on_recompile"):
        found = compiled(second)
    expected = model(second, pack=False)
    torch.testing.assert_close(found.pooled, expected.pooled, atol=1e-5, rtol=1e-4)
"""


@pytest.mark.nightly  # train/objectives/test_no_waits.py traces steps
def test_each_variant_is_one_graph() -> None:
    """In another process: checking shapes while tests run is nothing that can be traced."""
    done = run_script(COMPILED)
    assert done.returncode == 0, done.stderr[-2000:]
