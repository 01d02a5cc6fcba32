"""Measures a step of VQA and of VCR at base size on this CPU, compared with the published code.

For each model two lines of JSON: forward and backward of what `train-vl finetune` computes in a
step (training mode, dropout on, no optimiser; VQA with the loss of 3,129 answers, VCR of answers
alone) on texts and regions of the lengths that the task has, and what memory a step takes. The four
texts of a question of VCR are packed without padding, and an image's regions embedded once for
them; beyond that each choice is encoded with the regions, as both models let text and regions read
each other from the first layer, or the first co-attention, on. VL-BERT's VCR reads stored features
here, and so does its peer. ``peer`` is the official code on the same
batch, in a process of its own, where a checkout of it is given (benchmarks/peers/official_models.py
says which; ViLBERT's has PyTorch's norm in the place of apex's, which is absent). The bar is 1.5
times its samples per CPU second. ``left_out`` says which side does not compute what.

Memory: weights, gradients and two moments in float32, and what the forward pass keeps for the
backward one, counted on this batch; ``value`` is their sum at the published batch, of which the
latter part is divided by ``accumulation=N``.

    python benchmarks/finetuning.py
    python benchmarks/finetuning.py --tasks vcr --models vl-bert --questions 1
    python benchmarks/finetuning.py --full --official vilbert=../vilbert_beta vl-bert=../VL-BERT
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from peers.choices import vcr_work, write_choices
from peers.official_models import Step, add_official, step_of
from peers.official_tasks import CHOICE_PEERS, TASK_PEERS
from peers.own_process import Apart, Timing, measure, timed
from peers.questions import PreparedStep, prepared_step, write_questions
from shell import add_choices, add_counts, new_parser, parse_form, result_line
from torch import Tensor, nn

from vlmill.runtime.memory import keep_freed_memory
from vlmill.train.recipes import change_recipe
from vlmill.train.tasks.registry import task_recipe_named

SHORT, FULL = {"rounds": 1, "questions": 4}, {"rounds": 3, "questions": 8}
BAR = 1.5  # times the official code's samples per CPU second
FLOATS = 4  # of each parameter: itself, its gradient and AdamW's moments
FLOAT_BYTES = 4
# Questions of VQA 2.0 have 6 words in the mean; with [CLS] and [SEP]. Regions: 10 to 100 by how
# sure the detector was, and the image.
TEXTS = (7, 8, 8, 9, 9, 10, 11, 14)
REGIONS = (11, 16, 22, 31, 47, 68, 93, 100)
MODELS = ("vilbert", "vl-bert")
RECIPES = {
    "vqa": {"vilbert": "vqa-vilbert", "vl-bert": "vqa-vl-bert"},
    "vcr": {"vilbert": "vcr-vilbert", "vl-bert": "vcr-vl-bert-q2a"},
}
PEERS: dict[str, dict[str, Callable[..., tuple[nn.Module, Step]]]] = {
    "vqa": TASK_PEERS,
    "vcr": CHOICE_PEERS,
}
WORKS: dict[str, Callable[[PreparedStep], object]] = {"vqa": PreparedStep.work, "vcr": vcr_work}
# VL-BERT mirrors boxes, which costs nothing; ViLBERT learns both sub-tasks.
CHANGES: dict[str, tuple[str, ...]] = {
    "vqa": (),
    "vcr": ("accumulation=1", "settings.subtasks=[q2a]", "feeding.flip=0"),
}
LEFT_OUT = {
    "ours": "the last layer's rows that no head reads",
    "vqa/vilbert": "nothing; heads of all tasks and of pretraining, padding to 16 tokens and 100 "
    "rows",
    "vqa/vl-bert": "nothing; padding to the longest of the batch",
    "vcr/vilbert": "nothing; heads of all tasks and of pretraining, padding to 60 tokens and 100 "
    "rows, the regions embedded for each choice",
    "vcr/vl-bert": "the network of regions, as ours here; padding to the longest of the batch",
}


def run_model(task: str, name: str, official: Path | None, questions: int, rounds: int) -> None:
    """Prints a model's lines of a task."""
    changes = (f"batch_size={questions}", "steps=1", "epochs=null", "workers=0", "trackers=[]")
    usual = task_recipe_named(RECIPES[task][name])
    recipe = change_recipe(usual, [*CHANGES[task], *changes])
    published = usual.stages[0].batch_size
    every = len(TEXTS) // questions
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="vlmill-finetuning-") as scratch:
        if task == "vcr":
            inputs = write_choices(Path(scratch), questions)
        else:
            inputs = write_questions(Path(scratch), TEXTS[::every], REGIONS[::every])
        prepared = prepared_step(recipe, inputs, Path(scratch) / "run")
        ours = step_of(prepared.module, prepared.loss)
        works: dict[str, Callable[[], Timing]] = {"ours": partial(timed, partial(ours, True))}
        left_out = {"ours": LEFT_OUT["ours"]}
        if official is None:
            timings = measure(works, rounds)
        else:
            peer = Apart(partial(PEERS[task][name], official, WORKS[task](prepared)))
            works["peer"] = partial(peer.step, True)
            left_out["peer"] = LEFT_OUT[f"{task}/{name}"]
            timings = measure(works, rounds)
            peer.close()
        line = speed_line(f"{task}/{name}", questions, timings)
        print(json.dumps(line | {"left_out": left_out}), flush=True)
        memory = memory_line(f"{task}/{name}", prepared, questions, published)
        print(json.dumps(memory), flush=True)


def speed_line(name: str, questions: int, timings: dict[str, Timing]) -> dict[str, object]:
    """Samples per CPU second, which hold on a busy machine too, beside the official code's."""
    ours, peer = timings["ours"], timings.get("peer")
    ratio = peer and round(peer.cpu_s / ours.cpu_s, 3)
    return result_line(
        f"finetuning/{name}/step",
        round(questions / ours.cpu_s, 3),
        "samples/CPU s",
        peer=peer and round(questions / peer.cpu_s, 3),
        ratio=ratio,
        ratio_by_the_clock=peer and round(peer.wall_s / ours.wall_s, 3),
        bar=BAR,
        bar_passed=ratio and ratio >= BAR,
        batch_size=questions,
        threads=torch.get_num_threads(),
    )


def memory_line(
    name: str, prepared: PreparedStep, questions: int, published: int
) -> dict[str, object]:
    """What a step of the published batch takes, from the bytes that this one keeps."""
    of_model = FLOATS * FLOAT_BYTES * prepared.parameters
    of_question = kept_bytes(prepared) / questions
    return result_line(
        f"finetuning/{name}/memory",
        round((of_model + published * of_question) / 1e9, 2),
        "GB",
        of_model_gb=round(of_model / 1e9, 2),
        of_question_mb=round(of_question / 1e6, 1),
        published_batch=published,
        measured_batch=questions,
    )


def kept_bytes(prepared: PreparedStep) -> int:
    """Counts what the forward pass keeps for the backward one, but for the weights."""
    weights = {p.untyped_storage().data_ptr() for p in prepared.module.parameters()}
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    prepared.module.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        prepared.loss()
    return sum(storages.values())


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = new_parser(__doc__)
    add_choices(parser, "--models", MODELS)
    add_choices(parser, "--tasks", RECIPES)
    add_official(parser, TASK_PEERS)
    add_counts(parser, rounds="rounds to measure; the median counts")
    parser.add_argument(
        "--questions",
        type=int,
        choices=(1, 2, 4, 8),
        metavar="N",
        help="questions of a batch: 1, 2, 4 or 8",
    )
    options = parse_form(parser, argv, short=SHORT, full=FULL)
    keep_freed_memory()  # as train-vl does
    official = dict(options.official)
    for task in options.tasks:
        for name in options.models:
            run_model(task, name, official.get(name), options.questions, options.rounds)


if __name__ == "__main__":
    main()
