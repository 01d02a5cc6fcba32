"""What answers at once loads nothing that takes seconds: help texts and a user's mistakes.

An import of torch costs two seconds of a CPU and 200 MB, one of Beam a second. Each program runs
its cases in a process of its own, which reports what it has loaded of a closed list after each.
"""

import json
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.tables import PAIRS

HEAVY = (
    "accelerate",
    "apache_beam",
    "faiss",
    "fastapi",
    "huggingface_hub",
    "jaxtyping",
    "matplotlib",
    "numpy",
    "PIL",
    "pyarrow",
    "safetensors",
    "scipy",
    "sklearn",
    "tensorboard",
    "tokenizers",
    "torch",
    "torchvision",
)
MODULES = (
    "vlmill",
    "vlmill.models",
    "vlmill.models.registry",
    "vlmill.extract.cli",
    "vlmill.train.cli",
    "vlmill.train.recipes",
    "vlmill.schemas",
    "vlmill.pipelines",
)
# What a process imports that makes batches, or decodes images: `train-vl` itself, once more, too.
WORKERS = ("vlmill.train.loading.loader", "vlmill.extract.run.workers")
NEEDED_BY_WORKERS = {"jaxtyping", "numpy", "PIL", "pyarrow", "tokenizers", "torch"}
# What runs, evaluates and converts any variant.
NO_IMAGES = (
    "vlmill.train.run.job",
    "vlmill.train.tasks.retrieval.evaluation",
    "vlmill.inference.convert.conversion",
)
TRAIN, EXTRACT = "vlmill.train.cli", "vlmill.extract.cli"
WEB, NEGATIVES = "vlmill.pipelines.web_pairs", "vlmill.pipelines.hard_negatives"
FILTER, SCORER = "vlmill.pipelines.fit_image_filter", "vlmill.pipelines.fit_scorer"
REGIONS, MANIFEST = "vlmill.pipelines.regions", "vlmill.pipelines.manifest"
NEAREST, TABLES = "vlmill.pipelines.nearest_images", "vlmill.pipelines.tables"
CRAWL = "vlmill.pipelines.crawl"
NO_MODELS = ("--safety-model", "none", "--realism-model", "none")
PRETRAIN = (TRAIN, "pretrain", "imagebert-small", "--pairs", "a", "--output", "b")
WHOLE = (EXTRACT, "run", "a", "--output", "b", "--global-cnn")
# Arguments and their exit status; nothing of the list above is loaded.
COMMANDS = {
    (TRAIN, "--help"): 0,
    (TRAIN, "--version"): 0,
    (TRAIN, "pretrain", "--help"): 0,
    (TRAIN, "finetune", "--help"): 0,
    (TRAIN, "finetune", "vqa-vilbart", "--examples", "a", "--output", "b"): 2,
    (TRAIN, "evaluate", "--help"): 0,
    (TRAIN, "convert", "--help"): 0,
    (TRAIN, "embed", "--help"): 0,
    (TRAIN, "embed", "--checkpoint", "none", "--output", "b"): 2,
    (TRAIN, "score", "--help"): 0,
    (TRAIN, "score", "--checkpoint", "none", "--pairs", "a", "--output", "b"): 2,
    (TRAIN, "search", "--help"): 0,
    (TRAIN, "search", "--vectors", "a"): 2,  # nothing to do
    (TRAIN, "serve", "--help"): 0,
    (TRAIN, "serve", "--checkpoint", "none"): 2,
    (TRAIN, "push", "--help"): 0,
    (TRAIN, "push", "--checkpoint", "none", "--to", "hf://a/b"): 2,
    (TRAIN, "push", "--checkpoint", "none", "--to", "a/b"): 2,
    (TRAIN, "recipes"): 0,
    (TRAIN, "recipes", "--help"): 0,
    (TRAIN, "show", "--help"): 0,
    (TRAIN, "recipes", "show", "vlmo-base"): 0,
    (TRAIN, "recipes", "show", "vlmo-bas"): 2,
    (TRAIN, "recipes", "shwo"): 2,
    (TRAIN, "pretrian"): 2,
    (TRAIN, "pretrain", "--nonsense"): 2,
    (TRAIN, "pretrain", "imagebert-smal", "--pairs", "a", "--output", "b"): 2,
    (*PRETRAIN, "stepz=1"): 2,
    (*PRETRAIN, "steps=many"): 2,
    (*PRETRAIN, "--missing", "whatever"): 2,
    PRETRAIN: 2,  # --regions is missing
    (*PRETRAIN, "--regions", "c", "--init", "none"): 2,
    (TRAIN, "pretrain", "--config", "none.yaml", "--pairs", "a", "--output", "b"): 2,
    (TRAIN, "evaluate", "retrieval", "--nonsense"): 2,
    (TRAIN, "evaluate", "retrieval", "--checkpoint", "none", "--pairs", "a", "--output", "b"): 2,
    (TRAIN, "convert", "--family", "brt", "--checkpoint", "a"): 2,
    (TRAIN, "convert", "--family", "bert", "--checkpoint", "none", "--output", "b"): 2,
    (TRAIN, "convert", "--family", "bert", "--checkpoint", "a", "--as", "x", "--output", "b"): 2,
    (EXTRACT, "--help"): 0,
    (EXTRACT, "--version"): 0,
    (EXTRACT, "run", "--help"): 0,
    (EXTRACT, "verify", "--help"): 0,
    (EXTRACT, "import", "--help"): 0,
    (EXTRACT, "export", "--help"): 0,
    (EXTRACT, "show", "--help"): 0,
    (EXTRACT, "compare", "--help"): 0,
    (EXTRACT, "run", "--nonsense"): 2,
    (EXTRACT, "run", "a", "--output", "b", "--class-probs", "some"): 2,
    (EXTRACT, "run", "a", "--output", "b", "--batch-size", "0"): 2,
    (EXTRACT, "run", "a", "--output", "b", "--min-boxes", "7", "--max-boxes", "3"): 2,
    (EXTRACT, "run", "a", "--output", "b", "--weights", "none.pth"): 2,
    (EXTRACT, "run", "a", "--output", "b", "--config", "none.yaml"): 2,
    (EXTRACT, "run", "a", "--output", "b", "--backend", "detectron2"): 2,
    (*WHOLE, "resnet1"): 2,
    (*WHOLE, "resnet152", "--global-weights", "none.pth"): 2,
    (EXTRACT, "serve", "--help"): 0,
    (EXTRACT, "serve", "--queue", "0"): 2,
    (EXTRACT, "serve", "--weights", "none.pth"): 2,
    (EXTRACT, "compare", "a.jpg", "--weights", "none.pth", "--config", "none.yaml"): 2,
    (WEB, "--help"): 0,
    (WEB, "--version"): 0,
    (WEB, "--output", "b"): 2,
    (WEB, "--warc", "a", "--output", "b"): 2,  # the models of filters are missing
    (WEB, "--warc", "none*", "--output", "b", *NO_MODELS): 2,
    (WEB, "--warc", "a", "--output", "b", "--shardz", "3"): 2,
    (WEB, "--warc", "a", "--output", "b", "--shards", "0"): 2,
    (WEB, "--warc", "a", "--output", "b", "--min-score", "7"): 2,
    (WEB, "--output", "b", "--classes", "c"): 2,  # neither --warc nor --regions
    (FILTER, "--help"): 0,
    (FILTER, "--images", "a", "--labels", "b", "--output", "c", "--threshold", "2"): 2,
    (SCORER, "--help"): 0,
    (CRAWL, "--help"): 0,
    (CRAWL, "--urls", "a", "--output", "b"): 2,  # nobody to write to
    (CRAWL, "--urls", "a", "--output", "b", "--contact", "nobody"): 2,
    (CRAWL, "--urls", "a", "--output", "b", "--contact", "a@b.org", "--delay", "-1"): 2,
    (NEGATIVES, "--help"): 0,
    (NEGATIVES, "--pairs", "a", "--output", "b", "--nonsense"): 2,
    (NEGATIVES, "--pairs", "a", "--output", "b", "--below", "much"): 2,
    (NEAREST, "--help"): 0,
    (NEAREST, "--regions", "a", "--output", "b", "--top", "0"): 2,
    (NEAREST, "--regions", "a", "--import", "a", "--output", "b"): 2,
    (MANIFEST, "--help"): 0,
    (MANIFEST, "--version"): 0,
    (MANIFEST,): 2,
    (REGIONS, "--help"): 0,
    (REGIONS, "--images", "a", "--output", "b", "--nonsense"): 2,
    (REGIONS, "--images", "a", "--output", "b", "--dtype", "float8"): 2,
    (REGIONS, "--images", "a", "--output", "b", "--weights", "none.pth"): 2,
}
# The list of formats and the split of a table are those of the code that reads it, with pyarrow.
# What looks for tables or images has pyarrow, which takes a fifth of a second.
READERS = {
    (MANIFEST, "own", "--help"): 0,
    (MANIFEST, "own", "--input", "none.csv"): 2,
    (MANIFEST, "vg", "--help"): 0,
    (MANIFEST, "vg", "--input", "none", "--output", "b"): 2,
    (TABLES, "--help"): 0,
    (TABLES, "concat", "none", "--output", "b"): 2,
    (*PRETRAIN, "--regions", "none"): 2,
    (EXTRACT, "run", "none", "--output", "b"): 2,
    (EXTRACT, "verify", "none"): 2,
    (EXTRACT, "import", "none", "--output", "b"): 2,
    (EXTRACT, "export", "none", "--format", "tsv", "--output", "b"): 2,
    (EXTRACT, "show", "none", "--images", "a", "--output", "b"): 2,
    (NEGATIVES, "--pairs", "none", "--output", "b"): 2,
    (NEAREST, "--regions", "none", "--output", "b"): 2,
    (REGIONS, "--images", "none", "--output", "b"): 2,
}
PROGRAM = """
import json, runpy, sys
report, heavy, cases = sys.argv[1], sys.argv[2].split(), json.loads(sys.argv[3])
def run(words):
    sys.argv = words
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code or 0
    return 0
def load(words):
    import importlib
    for name in words:
        importlib.import_module(name)
    return 0
answers = []
for words in cases:
    status = {TRIED}(words)
    answers.append((sorted(n for n in heavy if n in sys.modules), status))
    with open(report, "w") as file:
        json.dump(answers, file)
"""
IMPORT, RUN = (PROGRAM.replace("{TRIED}", name) for name in ("load", "run"))
Words = Sequence[str]


def answers_of(program: str, cases: Sequence[Words], folder: Path) -> list[tuple[set[str], int]]:
    """What a new process has loaded of the list after each case, and the case's exit status."""
    report = folder / "answers.json"
    arguments = [sys.executable, "-c", program, str(report), " ".join(HEAVY), json.dumps(cases)]
    done = subprocess.run(arguments, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    return [(set(loaded), status) for loaded, status in json.loads(report.read_text())]


def loaded_by(program: str, words: Words, folder: Path) -> tuple[set[str], int]:
    """The same of one case in a process of its own."""
    (answer,) = answers_of(program, [words], folder)
    return answer


def by_program(cases: Mapping[tuple[str, ...], int]) -> dict[str, list[tuple[str, ...]]]:
    """The cases of each program. None loads anything heavy, so that they can share a process."""
    programs: dict[str, list[tuple[str, ...]]] = {}
    for words in cases:
        programs.setdefault(words[0], []).append(words)
    return programs


@pytest.mark.parametrize("module", MODULES)
def test_importing_a_face_loads_nothing_heavy(module: str, tmp_path: Path) -> None:
    assert loaded_by(IMPORT, [module], tmp_path) == (set(), 0)


@pytest.mark.parametrize("program", by_program(COMMANDS))
def test_what_answers_at_once_loads_nothing_heavy(program: str, tmp_path: Path) -> None:
    cases = by_program(COMMANDS)[program]
    answers = answers_of(RUN, cases, tmp_path)
    for words, answer in zip(cases, answers, strict=True):
        assert answer == (set(), COMMANDS[words]), " ".join(words)


@pytest.mark.parametrize("program", by_program(READERS))
def test_a_reader_of_tables_loads_neither_torch_nor_beam(program: str, tmp_path: Path) -> None:
    cases = by_program(READERS)[program]
    for words, (loaded, status) in zip(cases, answers_of(RUN, cases, tmp_path), strict=True):
        assert status == READERS[words] and loaded <= {"numpy", "PIL", "pyarrow"}, " ".join(words)


def test_showing_a_folder_loads_no_torch(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.json").write_text('{"variant": "vilbert", "inputs": []}')
    header = b'{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    words = (TRAIN, "show", str(tmp_path), "--lineage")
    loaded, status = loaded_by(RUN, words, tmp_path)
    assert status == 0 and loaded <= {"numpy", "pyarrow"}


def test_hard_negatives_here_load_neither_beam_nor_a_drawing_library(tmp_path: Path) -> None:
    texts = [{"pair_id": str(k), "text": f"a red cat {k}"} for k in range(3)]
    write_shard(tmp_path / "pairs", PAIRS, texts)
    words = (NEGATIVES, "--pairs", str(tmp_path / "pairs"), "--output", str(tmp_path / "out"))
    loaded, status = loaded_by(RUN, words, tmp_path)
    assert status == 0 and loaded <= {"numpy", "pyarrow", "scipy"}  # numba brings the last


def test_workers_load_what_they_need(tmp_path: Path) -> None:
    loaded, status = loaded_by(IMPORT, WORKERS, tmp_path)
    assert status == 0 and "torch" in loaded and loaded <= NEEDED_BY_WORKERS


def test_what_reads_no_images_loads_no_operators_on_them(tmp_path: Path) -> None:
    """VL-BERT end to end loads torchvision when it pools its first regions."""
    loaded, status = loaded_by(IMPORT, NO_IMAGES, tmp_path)
    assert status == 0 and "torch" in loaded and "torchvision" not in loaded
