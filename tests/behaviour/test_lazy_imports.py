"""What answers at once loads nothing that takes seconds: help texts and a user's mistakes.

An import of torch costs two seconds of a CPU and 200 MB, one of Beam a second. Each case runs in a
process of its own, which prints what it has loaded of a closed list.
"""

import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

HEAVY = (
    "accelerate",
    "apache_beam",
    "faiss",
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
    "vlmill.models",
    "vlmill.models.registry",
    "vlmill.extract.cli",
    "vlmill.train.cli",
    "vlmill.train.recipes",
    "vlmill.schemas",
    "vlmill.pipelines",
)
# What a process imports that makes batches, or decodes pictures: `train-vl` itself, once more, too.
WORKERS = ("vlmill.train.loading.loader", "vlmill.extract.run.workers")
NEEDED_BY_WORKERS = {"jaxtyping", "numpy", "PIL", "pyarrow", "tokenizers", "torch"}
# What runs, evaluates and converts any variant.
NO_PICTURES = (
    "vlmill.train.run.job",
    "vlmill.train.tasks.retrieval.evaluation",
    "vlmill.train.convert.conversion",
)
TRAIN, EXTRACT = "vlmill.train.cli", "vlmill.extract.cli"
COMMANDS = {
    (TRAIN, "--help"): 0,
    (TRAIN, "pretrain", "--help"): 0,
    (TRAIN, "evaluate", "--help"): 0,
    (TRAIN, "convert", "--help"): 0,
    (TRAIN, "recipes"): 0,
    (TRAIN, "recipes", "--help"): 0,
    (TRAIN, "show", "--help"): 0,
    (TRAIN, "recipes", "show", "vlmo-base"): 0,
    (TRAIN, "pretrain", "--nonsense"): 2,
    (TRAIN, "pretrain", "imagebert-smal", "--pairs", "a", "--output", "b"): 2,
    (TRAIN, "pretrain", "imagebert-small", "--pairs", "a", "--output", "b", "stepz=1"): 2,
    (EXTRACT, "--help"): 0,
    (EXTRACT, "run", "--help"): 0,
    (EXTRACT, "import", "--help"): 0,
    (EXTRACT, "show", "--help"): 0,
    (EXTRACT, "compare", "--help"): 0,
    (EXTRACT, "run", "--nonsense"): 2,
    ("vlmill.pipelines.web_pairs", "--help"): 0,
    ("vlmill.pipelines.hard_negatives", "--help"): 0,
    ("vlmill.pipelines.regions", "--help"): 0,
    ("vlmill.pipelines.web_pairs", "--output", "b"): 2,
}
# The list of formats and the split of a table are those of the code that reads it, with pyarrow.
READS_TABLES = ("vlmill.pipelines.manifest", "own", "--help")
PROGRAM = """
import atexit, runpy, sys
report, heavy = sys.argv[1], sys.argv[2].split()
loaded = lambda: open(report, "w").write(" ".join(n for n in heavy if n in sys.modules))
atexit.register(loaded)
sys.argv = sys.argv[3:]
"""
IMPORT = PROGRAM + "import importlib; importlib.import_module(sys.argv[0])"
RUN = PROGRAM + "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"


def loaded_by(program: str, words: Sequence[str], folder: Path) -> tuple[set[str], int]:
    """What a new process has loaded of the list when it ends, and its exit status."""
    report = folder / "loaded"
    arguments = [sys.executable, "-c", program, str(report), " ".join(HEAVY), *words]
    status = subprocess.run(arguments, capture_output=True, check=False).returncode
    return set(report.read_text().split()), status


@pytest.mark.parametrize("module", MODULES)
def test_importing_a_face_loads_nothing_heavy(module: str, tmp_path: Path) -> None:
    assert loaded_by(IMPORT, [module], tmp_path) == (set(), 0)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_what_answers_at_once_loads_nothing_heavy(words: Sequence[str], tmp_path: Path) -> None:
    assert loaded_by(RUN, words, tmp_path) == (set(), COMMANDS[tuple(words)])


def test_a_reader_of_tables_loads_neither_torch_nor_beam(tmp_path: Path) -> None:
    loaded, status = loaded_by(RUN, READS_TABLES, tmp_path)
    assert status == 0 and loaded <= {"numpy", "PIL", "pyarrow"}


def test_showing_a_folder_loads_no_torch(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.json").write_text('{"variant": "vilbert", "inputs": []}')
    header = b'{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    words = (TRAIN, "show", str(tmp_path), "--lineage")
    loaded, status = loaded_by(RUN, words, tmp_path)
    assert status == 0 and loaded <= {"numpy", "pyarrow"}


@pytest.mark.parametrize("module", WORKERS)
def test_workers_load_what_they_need(module: str, tmp_path: Path) -> None:
    loaded, status = loaded_by(IMPORT, [module], tmp_path)
    assert status == 0 and "torch" in loaded and loaded <= NEEDED_BY_WORKERS


@pytest.mark.parametrize("module", NO_PICTURES)
def test_what_reads_no_pictures_loads_no_operators_on_them(module: str, tmp_path: Path) -> None:
    """VL-BERT end to end loads torchvision when it pools its first regions."""
    loaded, status = loaded_by(IMPORT, [module], tmp_path)
    assert status == 0 and "torch" in loaded and "torchvision" not in loaded


def test_the_measure_sees_what_is_loaded(tmp_path: Path) -> None:
    loaded, status = loaded_by(IMPORT, ["vlmill.models.inputs"], tmp_path)
    assert status == 0 and {"torch", "jaxtyping"} <= loaded
