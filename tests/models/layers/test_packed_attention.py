"""What runs on a GPU alone: rows packed by places that the host sends, attention over such rows.

The kernels are not there on a CPU. Their part is played by plain loops, everything around them is
the models' own; on the meta device, which has no values, whatever asks for one fails.
"""

import itertools
from typing import Any

import pytest
import torch
from benchmarks.gpu_check.utilisation import without_attention
from tests.forked import run_script
from tests.models.pair_cases import READERS, changed, enlarge, padded_pairs
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from vlmill.models import VARIANTS, PixelInputs, VLInputs, preset
from vlmill.models.layers import attention, operators
from vlmill.models.layers import packing as compaction
from vlmill.models.layers import packing as layout
from vlmill.models.layers.attention import CoAttention, SelfAttention
from vlmill.models.layers.packing import Layout, make_layout
from vlmill.models.positions import Cells, find_positions, find_read_positions
from vlmill.train.devices.throughput import operations_counter
from vlmill.train.objectives.contrast import contrast_and_matching


def sequence_by_sequence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    longest_query: int,
    longest_key: int,
    dropout: float,
) -> Tensor:
    """What the kernel computes, without dropout."""
    assert dropout == 0 and query_starts.dtype == key_starts.dtype == torch.int32
    assert int(query_starts[-1]) == len(q) and int(key_starts[-1]) == len(k)
    parts = []
    for own, others in zip(bounds(query_starts), bounds(key_starts), strict=True):
        assert own.stop - own.start <= longest_query
        assert others.stop - others.start <= longest_key
        scores = torch.einsum("nhd,mhd->hnm", q[own], k[others]) / q.shape[-1] ** 0.5
        parts.append(torch.einsum("hnm,mhd->nhd", scores.softmax(-1), v[others]))
    return torch.cat(parts)


def bounds(starts: Tensor) -> list[slice]:
    numbers = starts.tolist()
    return [slice(a, b) for a, b in itertools.pairwise(numbers)]


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Nobody looks at values, and rows stay packed in attention; counts how often."""
    calls: list[int] = []

    def packed(rows: Tensor, queries: Layout, keys: Layout) -> bool:
        together = attention._lies_together(queries) and attention._lies_together(keys)
        return together and (queries.real is not None or keys.real is not None)

    def counted(q: Tensor, *others: Any) -> Tensor:
        calls.append(len(q))
        return sequence_by_sequence(q, *others)

    monkeypatch.setattr(attention, "reads_packed", packed)
    monkeypatch.setattr(attention, "_flash", counted)
    for module in (layout, compaction):
        monkeypatch.setattr(module, "readable", lambda tensor: False)
    return calls


def with_places(inputs: VLInputs) -> VLInputs:
    places = {
        "real_tokens": find_positions(inputs.token_mask),
        "real_regions": find_positions(inputs.region_mask),
    }
    return VLInputs(**(vars(inputs) | places))


def doubled(inputs: VLInputs) -> VLInputs:
    """In double precision: how many rows are computed changes the rounding."""
    return inputs.map(lambda x: x.double() if x.is_floating_point() else x)


def gradients_of_read(model: Any, inputs: VLInputs, where: Cells, **options: Any) -> list[Tensor]:
    """What is read, and the gradients of a loss over it."""
    model.zero_grad()
    encoded = model(inputs, **options)
    text, regions = encoded.text.flatten(0, 1), encoded.regions.flatten(0, 1)
    parts = [text[where.text], regions[where.regions], encoded.pooled]
    torch.stack([part.sin().sum() for part in parts]).sum().backward()  # type: ignore[no-untyped-call]
    return [*parts, *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("name", READERS)
def test_models_compute_the_same_over_packed_rows(name: str, as_on_a_gpu: list[int]) -> None:
    config = preset(name, **READERS[name])
    variant = next(v for v in VARIANTS.values() if isinstance(config, v.config))
    model = enlarge(variant.model(config)).double()
    inputs = doubled(padded_pairs([7, 4, 6], [5, 6, 3]))
    words = inputs.token_mask & (inputs.tokens % 3 == 0)
    shown = inputs.region_mask & (inputs.region_locations[..., 0] > 0.3)
    where, read = (
        Cells(find_positions(words), find_positions(shown)),
        find_read_positions(words, shown),
    )
    options = {"task": torch.arange(3)} if "num_tasks" in READERS[name] else {}
    expected = gradients_of_read(model, inputs, where, pack=False, **options)
    assert not as_on_a_gpu
    placed = with_places(inputs)
    torch.testing.assert_close(gradients_of_read(model, placed, where, **options), expected)
    assert as_on_a_gpu
    marked = changed(placed, read_tokens=read.text, read_regions=read.regions)
    results = gradients_of_read(model, marked, where, **options)
    torch.testing.assert_close(results, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("name", READERS)
def test_no_layer_asks_the_device(name: str, pack: bool, dtype: torch.dtype) -> None:
    config = preset(name, **READERS[name])
    variant = next(v for v in VARIANTS.values() if isinstance(config, v.config))
    model = variant.model(config).to("meta", dtype)
    there = padded_pairs([7, 4, 6], [5, 6, 3]).to("meta")
    assert there.real is not None and there.real.text.shape == (17,)
    inputs = there.map(lambda x: x.to(dtype) if x.is_floating_point() else x)
    options: dict[str, Any] = {"pack": pack}
    if "num_tasks" in READERS[name]:
        options["task"] = torch.zeros(3, dtype=torch.int64, device="meta")
    places = torch.zeros(5, dtype=torch.int64, device="meta")
    encoded = model(changed(inputs, read_tokens=places, read_regions=places), **options)
    encoded.pooled.float().sum().backward()
    assert encoded.text.shape[:2] == (3, 7) and encoded.text.dtype == dtype


def with_columns_of_padding(inputs: VLInputs, factor: int) -> VLInputs:
    """The same pairs in ``factor`` times as many columns, and where their first ones are read."""
    wide, where = {}, find_read_positions(inputs.token_mask, inputs.region_mask)
    for name, value in vars(inputs).items():
        if value is not None and value.ndim > 1:
            wide[name] = torch.cat([value] + [torch.zeros_like(value)] * (factor - 1), 1)
    text, regions = (
        cells // width * width * factor + cells % width
        for cells, width in zip(
            where, (inputs.tokens.shape[1], inputs.region_mask.shape[1]), strict=True
        )
    )
    return VLInputs(**wide, read_tokens=text, read_regions=regions)


@pytest.mark.parametrize("name", READERS)
def test_padding_is_multiplied_by_no_weight(name: str) -> None:
    """The embedding of regions included: twice as many columns need the same products when packed,
    and more of them in a grid. Attention is left out, which is computed in a grid here.
    """
    config = preset(name, **READERS[name])
    variant = next(v for v in VARIANTS.values() if isinstance(config, v.config))
    model = variant.model(config).to("meta")
    task = torch.zeros(3, dtype=torch.int64, device="meta")
    options = {"task": task} if "num_tasks" in READERS[name] else {}
    counts = []
    for factor, pack in itertools.product((1, 2), (True, False)):
        inputs = with_columns_of_padding(padded_pairs([7, 4, 6], [5, 6, 3]), factor).to("meta")
        assert inputs.tokens.shape[1] == 7 * factor and inputs.real is not None
        counter = operations_counter()
        with counter:
            model(inputs, pack=pack, **options)
        counts.append(without_attention(counter.get_flop_counts()["Global"]))
    packed, grid, wide_packed, wide_grid = counts
    assert packed == wide_packed < grid < wide_grid


@pytest.mark.parametrize("known", [True, False])
def test_vlmo_asks_no_device(known: bool) -> None:
    config = preset("vlmo-small", vocab_size=50, image_size=32)
    model = VARIANTS["vlmo"].model(config).to("meta")
    mask = torch.arange(7) < torch.tensor([7, 4, 5])[:, None]
    pixels = torch.zeros(3, 3, 32, 32)
    inputs = PixelInputs(tokens=mask.long(), token_mask=mask, pixels=pixels).to("meta")
    assert inputs.real_tokens is not None
    if not known:
        values = {"tokens": inputs.tokens, "token_mask": inputs.token_mask}
        inputs = PixelInputs(**values, pixels=inputs.pixels)
    out = contrast_and_matching(model, inputs, inputs.tokens)
    torch.stack(
        [t.sum() for t in (out.match_logits, out.masked_text, out.text.unimodal)]
    ).sum().backward()  # type: ignore[no-untyped-call]
    text = model.encode_text(inputs.tokens, inputs.token_mask, real=inputs.real_tokens)
    assert text.shape == (3, 7, config.width)


def test_the_kernel_is_asked_for_what_it_takes() -> None:
    """Half precision off the CPU, a packed side at least, and no masked grid."""
    real = torch.ones(2, 8, dtype=torch.bool, device="meta")
    packed = make_layout(real, torch.zeros(9, dtype=torch.int64, device="meta"))
    full, masked = Layout((2, 8)), Layout((2, 8), real)
    rows = torch.zeros(9, 4, 16, dtype=torch.bfloat16, device="meta")
    assert attention.reads_packed(rows, packed, packed)
    assert attention.reads_packed(rows, packed, full) and attention.reads_packed(rows, full, packed)
    assert not attention.reads_packed(rows, full, full)  # the ordinary kernels' matter
    assert not attention.reads_packed(rows, packed, masked)
    assert not attention.reads_packed(rows.float(), packed, packed)
    assert not attention.reads_packed(rows[..., :12], packed, packed)
    assert not attention.reads_packed(rows.new_zeros(9, 4, 16, device="cpu"), packed, packed)


def test_real_kernels_give_shapes_of_either_layout() -> None:
    self_attention = SelfAttention(32, 4, 0.1).to("meta", torch.bfloat16)
    co_attention = CoAttention(32, 32, 32, 4, (0.1, 0.1)).to("meta", torch.bfloat16)
    real = torch.ones(2, 8, dtype=torch.bool, device="meta")
    packed = make_layout(real, torch.zeros(9, dtype=torch.int64, device="meta"))
    rows = torch.zeros(9, 32, dtype=torch.bfloat16, device="meta", requires_grad=True)
    grid = torch.zeros(2, 5, 32, dtype=torch.bfloat16, device="meta")
    read = packed._replace(read=torch.zeros(3, dtype=torch.int64, device="meta")).read_rows()
    assert self_attention(rows, packed, read=read).shape == (3, 32)
    first, second = co_attention(rows, packed, grid, Layout((2, 5)))
    assert first.shape == (9, 32) and second.shape == (2, 5, 32)
    first.float().sum().backward()
    assert rows.grad is not None


@pytest.fixture
def any_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of a GPU is not there: PyTorch may take the one that it has."""
    every = [SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]
    monkeypatch.setattr(operators, "sdpa_kernel", lambda _: sdpa_kernel(every))


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.usefixtures("any_kernel")
def test_a_learned_bias_gets_its_gradient(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of lengths that are no whole steps of the kernel, too."""
    torch.manual_seed(0)
    leaves = [torch.randn(2, 6, 4, 16) for _ in range(3)] + [torch.randn(4, 6, 6)]
    mask = torch.tensor([[True] * 6, [True, True, False, False, True, True]]) if masked else None
    results = []
    for by_kernel in (True, False):
        monkeypatch.setattr(operators, "adds_bias", lambda q, answer=by_kernel: answer)
        q, k, v, bias = (x.clone().requires_grad_() for x in leaves)
        mixed = operators.attention(q, k, v, mask, 0.0, bias)
        mixed.sin().sum().backward()  # type: ignore[no-untyped-call]
        results.append([mixed, q.grad, k.grad, v.grad, bias.grad])
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=1e-5)


COMPILED = """
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.nn.attention import SDPBackend, sdpa_kernel
from vlmill.models.layers import attention, operators
from vlmill.models.layers.attention import SelfAttention
from vlmill.models.layers.packing import make_layout
from vlmill.train.devices.setup import compile_step

operators.sdpa_kernel = lambda _: sdpa_kernel(SDPBackend.MATH)  # a CPU has no other
graphs = []

def compiler(graph, inputs):
    graphs.append(graph)
    return make_boxed_func(graph.forward)

class Step(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = SelfAttention(32, 4)
        self.table = torch.nn.Parameter(torch.randn(4, 20, 20))

    def forward(self, hidden, mask):
        length = hidden.shape[1]
        layout = make_layout(mask, pack=False)
        mixed = self.attention(hidden, layout, self.table[:, :length, :length])
        return (mixed * mask[..., None]).sin().sum()

step, results = Step(), {}
torch.compile, plain = lambda module, **options: plain(
    module, backend=aot_autograd(fw_compiler=compiler, bw_compiler=compiler), **options
), torch.compile
for by_kernel in (True, False):
    operators.adds_bias = lambda q: by_kernel
    run = compile_step(step) if by_kernel else step
    for length in (8, 11, 13):
        step.zero_grad()
        torch.manual_seed(length)
        mask = torch.arange(length) < torch.tensor([length, length - 2, 3])[:, None]
        loss = run(torch.randn(3, length, 32), mask)
        loss.backward()
        results.setdefault(length, []).append((loss.detach(), step.table.grad.clone()))
for first, second in results.values():
    torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-5)
assert len(graphs) == 2, len(graphs)  # forward and backward
"""


@pytest.mark.nightly
def test_a_bias_is_traced_once_for_all_lengths() -> None:
    """In another process: checking shapes while tests run is nothing that can be traced."""
    done = run_script(COMPILED)
    assert done.returncode == 0, done.stderr[-2000:]
