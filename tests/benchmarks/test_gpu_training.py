"""The arithmetic of the GPU check's parts about training, and that they fail where they should."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.gpu_check import precision
from benchmarks.gpu_check.loading import Waited, idle_seconds, line_of, waited_for
from benchmarks.gpu_check.measuring import Setting
from benchmarks.gpu_check.precision import LossesDiffer, compare, smoothed
from benchmarks.gpu_check.resume import RunsDiffer, complaints, largest_difference, losses_of
from benchmarks.gpu_check.steps import Measured, Times, fitting, timed_rounds
from benchmarks.gpu_check.steps import line_of as line_of_steps
from benchmarks.gpu_check.tables import TableSizes, caption_length, vocabulary, write_tables
from benchmarks.gpu_check.training import CASES, recipe_of, work_of
from benchmarks.gpu_check.utilisation import (
    attention_operations,
    padding_share,
    utilisation,
    without_attention,
)
from torch.nn.attention import SDPBackend, sdpa_kernel

from vlmill.models import VARIANTS, VLInputs
from vlmill.train.devices.throughput import operations_counter
from vlmill.train.loading.batch import HostBatch
from vlmill.train.loading.vocabulary import read_vocabulary

pytestmark = pytest.mark.nightly

CPU = torch.device("cpu")
OF_REGIONS = ("vilbert", "vl-bert", "interbert", "imagebert")


@pytest.fixture
def tiny(tmp_path: Path) -> Setting:
    return Setting(device=CPU, tiny=True, folder=tmp_path)


def batch_of(masks: dict[str, torch.Tensor]) -> HostBatch:
    return HostBatch(tensors=masks, whole_image="none", pair_ids=())


@pytest.mark.parametrize("variant", OF_REGIONS)
def test_attention_is_counted_as_it_runs(variant: str) -> None:
    config = recipe_of(CASES[variant], tiny=True).model
    pairs, words, regions = 3, 7, 5
    inputs = VLInputs(
        tokens=torch.ones(pairs, words, dtype=torch.int64),
        token_mask=torch.ones(pairs, words, dtype=torch.bool),
        region_features=torch.randn(pairs, regions, config.region_width),
        region_locations=torch.rand(pairs, regions, 5),
        region_mask=torch.ones(pairs, regions, dtype=torch.bool),
    )
    model = VARIANTS[variant].model(config).eval()
    counter = operations_counter()
    with counter, sdpa_kernel(SDPBackend.MATH):
        out = model(inputs)
        total = torch.stack([part.sum() for part in (out.text, out.regions, out.pooled)]).sum()
        total.backward()  # type: ignore[no-untyped-call]
    counts = counter.get_flop_counts()["Global"]
    counted = sum(counts.values()) - without_attention(counts)
    # VL-BERT ends its sequences with a position of its own, after the regions.
    rows = regions + (variant == "vl-bert")
    lengths = (torch.full((pairs,), words), torch.full((pairs,), rows))
    assert counted == attention_operations(variant, config, *lengths)


def test_attention_of_a_variant_without_regions_is_refused() -> None:
    with pytest.raises(ValueError, match="vlmo: attention is known of models that read regions"):
        attention_operations("vlmo", None, torch.ones(1), torch.ones(1))


def test_attention_is_left_out_whatever_computes_it() -> None:
    counts = {
        "aten.addmm": 100,
        "aten.bmm": 1,
        "aten.baddbmm": 2,
        "aten._scaled_dot_product_flash_attention": 4,
        "torch_attn._varlen_attn": 8,
    }
    assert without_attention(counts) == 100


def test_utilisation_by_hand() -> None:
    assert utilisation(6e12, 0.02, 1e15) == pytest.approx(0.3)
    with pytest.raises(ValueError, match="expected both above 0"):
        utilisation(6e12, 0.0, 1e15)


def test_padding_of_texts_and_regions_together() -> None:
    texts = torch.tensor([[True, True, False, False]])
    regions = torch.tensor([[True, True, True, False]])
    first = batch_of({"token_mask": texts, "region_mask": regions})
    other = batch_of({"token_mask": torch.ones(1, 2, dtype=torch.bool)})
    assert padding_share([first, other]) == pytest.approx(3 / 10)


def out_of_memory_above(limit: int) -> Callable[[int], int]:
    def measured(pairs: int) -> int:
        if pairs > limit:
            raise torch.OutOfMemoryError("too many")
        return 10 * pairs

    return measured


def test_a_batch_that_does_not_fit_is_halved() -> None:
    assert fitting(64, out_of_memory_above(20)) == (16, 160)
    with pytest.raises(torch.OutOfMemoryError):
        fitting(64, out_of_memory_above(0))


def test_medians_of_rounds_and_of_steps() -> None:
    times = Times(rounds=((1.0, 3.0), (2.0, 4.0), (9.0, 9.0)))
    assert times.round_s == 6.0
    assert times.step_s == 3.5


def test_each_round_takes_every_batch() -> None:
    batches, taken = [batch_of({}), batch_of({})], list[HostBatch]()
    times = timed_rounds(taken.append, batches, 3, CPU)
    assert taken == batches * 3
    assert [len(steps) for steps in times.rounds] == [2, 2, 2]


def test_the_fastest_form_is_the_value() -> None:
    measured = Measured(
        forms={"grid": {"round_s": 4.0}, "packed": {"round_s": 2.0}},
        operations=8_000,
        samples=100,
        padding=0.5,
    )
    line: dict[str, Any] = line_of_steps(measured, 8_000.0, 25)
    assert (line["value"], line["peer"], line["ratio"], line["best"]) == (50.0, 25.0, 2.0, "packed")
    assert (line["limit"], line["fraction_of_limit"]) == (100.0, 0.5)
    assert line["reached"] == [0.45, 0.5]
    assert line["forms"]["grid"]["mfu"] == 0.25


def test_smoothed_losses_by_hand() -> None:
    assert smoothed([1, 3, 5, 7], over=2).tolist() == [2, 4, 6]
    with pytest.raises(ValueError, match="expected at least 10"):
        smoothed([1.0] * 9)


def test_differences_are_relative_to_the_smoothed_losses() -> None:
    exact, other = [2.0] * 11, [2.0] * 10 + [2.2]
    difference = compare(exact, other)
    assert difference.largest == pytest.approx(0.01)  # 0.2 of ten steps of 2
    assert difference.mean == pytest.approx(0.005)
    assert difference.of_tolerance == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("rounded", "reason"), [(2.5, "allowed"), (2.0, "nothing was in bfloat16")]
)
def test_losses_that_are_too_far_or_too_near_fail(
    tiny: Setting, monkeypatch: pytest.MonkeyPatch, rounded: float, reason: str
) -> None:
    losses = {"no": [2.0] * 12, "bf16": [rounded] * 12}
    monkeypatch.setattr(precision, "losses_in", lambda precision, work, setting: losses[precision])
    with pytest.raises(LossesDiffer, match=reason):
        precision.run(tiny)


class Event:
    """A moment on the device, in milliseconds."""

    def __init__(self, at: float) -> None:
        self.at = at

    def elapsed_time(self, other: "Event") -> float:
        return other.at - self.at


def test_the_device_is_idle_between_steps() -> None:
    events = [(Event(0), Event(10)), (Event(15), Event(20)), (Event(20), Event(30))]
    assert idle_seconds(events) == pytest.approx(0.005)
    assert idle_seconds([]) == 0


def test_shares_of_waiting_by_hand() -> None:
    assert Waited(total_s=8.0, host_s=2.0, device_s=1.0).shares() == {
        "host_share": 0.25,
        "device_share": 0.125,
    }
    assert Waited(total_s=8.0, host_s=2.0, device_s=None).shares()["device_share"] is None


def test_steps_are_taken_on_what_the_loader_makes() -> None:
    batches, taken = [batch_of({}) for _ in range(3)], list[HostBatch]()
    waited = waited_for(iter(batches), taken.append, 2, CPU)
    assert taken == batches[:2]
    assert 0 <= waited.host_s <= waited.total_s


def test_the_loader_is_compared_with_the_step_alone() -> None:
    slow = {"samples_per_second": 40.0, "host_share": 0.6, "device_share": 0.6}
    fast = {"samples_per_second": 90.0, "host_share": 0.1, "device_share": 0.02}
    line = line_of({"0_workers": slow, "4_workers": fast}, 100.0)
    assert (line["value"], line["peer"], line["ratio"]) == (90.0, 40.0, 2.25)
    assert line["fraction_of_limit"] == 0.9
    assert line["within_bar"] is False


LOG = '{"step": 1, "stage": "pairs", "loss": 2.0, "loss/mlm": 1.5, "lr": 0.1, "mfu": 0.3}\n'


def test_what_is_compared_of_a_log() -> None:
    assert losses_of(LOG) == [{"step": 1, "loss": 2.0, "loss/mlm": 1.5, "lr": 0.1}]


def test_runs_are_compared_loss_by_loss() -> None:
    undisturbed = losses_of(LOG)
    assert largest_difference(undisturbed, losses_of(LOG)) == 0
    assert largest_difference(undisturbed, losses_of(LOG.replace("1.5", "1.75"))) == 0.25
    for other in (LOG + LOG, LOG.replace('"step": 1', '"step": 2'), LOG.replace("mlm", "itm")):
        with pytest.raises(RunsDiffer):
            largest_difference(undisturbed, losses_of(other))


def test_each_complaint_is_told_once() -> None:
    warning = "UserWarning: cumsum_cuda does not have a deterministic implementation"
    assert complaints(f"step 1\n {warning}\nstep 2\n{warning}\n") == [warning]


def test_the_vocabulary_has_the_size_asked_for(tmp_path: Path) -> None:
    inputs = write_tables(tmp_path, TableSizes(pairs=2, vocabulary=100, feature_dim=4, classes=3))
    assert inputs.vocab is not None
    assert read_vocabulary(inputs.vocab).get_vocab_size() == 100
    with pytest.raises(ValueError, match="no room for words"):
        vocabulary(6)


def test_captions_are_as_long_as_those_of_conceptual_captions() -> None:
    rng = np.random.default_rng(0)
    lengths = [caption_length(rng, 36) for _ in range(2000)]
    assert 13.5 < np.mean(lengths) < 14.5
    assert max(lengths) <= 36


@pytest.mark.parametrize("variant", CASES)
def test_batches_are_real_and_of_several_lengths(variant: str, tiny: Setting) -> None:
    work = work_of(CASES[variant], tiny)
    batches = [work.batches.assembled(number) for number in range(4)]
    wanted = "pixels" if variant == "vlmo" else "region_mask"
    assert all(wanted in batch.tensors for batch in batches)
    assert len({batch.tensors["tokens"].shape[1] for batch in batches}) > 1
    assert len(work.with_batches_of(2).batches[0].pair_ids) == 2
