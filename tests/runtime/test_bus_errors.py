"""A mapped file that shrinks ends its process with one line that names it, whatever reads it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file

from vlmill.runtime.bus_errors import find_mapped_file
from vlmill.runtime.readers.mapped import MappedShard
from vlmill.schemas.errors import InputError

ROOT = Path(__file__).parents[2]
SIZE = 1 << 20

# Each maps the file ``path``, cuts it by ``cut()`` and reads what is no longer there.
READERS = {
    "numpy": """
array = np.load(path, mmap_mode="r")
cut()
array.copy()
""",
    "mmap": """
import mmap
with open(path, "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
cut()
bytes(mapped)
""",
    "threads of torch": """
import torch
tensor = torch.from_numpy(np.load(path, mmap_mode="r").view(np.uint8)[4096:]).float
cut()
tensor()
""",
    "safetensors": """
from safetensors.torch import load_file
tensors = load_file(path)
cut()
tensors["a"].clone()
""",
    "arrow": """
import pyarrow as pa
table = pa.ipc.open_file(pa.memory_map(path)).read_all()
cut()
table.column("a").combine_chunks().to_numpy().sum()
""",
    "a worker": """
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from vlmill.runtime.processes import process_context
from tests.runtime.test_bus_errors import cut_and_read
with ProcessPoolExecutor(1, mp_context=process_context("numpy")) as pool:
    try:
        pool.submit(cut_and_read, path).result()
    except BrokenProcessPool:
        sys.exit(1)
""",
    "a worker of a loader": """
from torch.utils.data import DataLoader
from vlmill.runtime.processes import process_context
from vlmill.train.loading.loader import _prepare_worker
from tests.runtime.test_bus_errors import CutAndRead
loader = DataLoader(CutAndRead(path), num_workers=1, worker_init_fn=_prepare_worker,
                    multiprocessing_context=process_context("torch"))
try:
    next(iter(loader))
except RuntimeError:
    sys.exit(1)
""",
}
COMMAND = """
import os, sys, warnings
import numpy as np
from vlmill.runtime.console.command import run_command
warnings.simplefilter("ignore")
path = sys.argv[1]
def cut():
    os.truncate(path, 5000)
def command(argv):
{reader}
    return 0
if __name__ == "__main__":
    sys.exit(run_command(command))
"""


def cut_and_read(path: str) -> None:
    array = np.load(path, mmap_mode="r")
    os.truncate(path, 5000)
    array.copy()


class CutAndRead(torch.utils.data.Dataset[int]):
    def __init__(self, path: str) -> None:
        self.path = path

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        cut_and_read(self.path)
        return index


def write(kind: str, path: Path) -> None:
    if kind == "safetensors":
        save_file({"a": torch.ones(SIZE)}, path)
    elif kind == "arrow":
        table = pa.table({"a": np.ones(SIZE)})
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    else:
        np.save(path.with_suffix(".npy"), np.ones(SIZE))
        path.with_suffix(".npy").rename(path)


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-c", script, *arguments]
    if "tests." in script:  # workers that are spawned import the main module from a file
        path = Path(arguments[0]).with_name("command.py")
        path.write_text(script, encoding="utf-8")
        command = [sys.executable, str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)


@pytest.mark.skipif(sys.platform != "linux", reason="SIGBUS is named on Linux alone")
@pytest.mark.parametrize("kind", READERS)
def test_a_file_that_shrinks_is_named(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "mapped é"
    write(kind, path)
    reader = "\n".join(f"    {line}" for line in READERS[kind].strip().splitlines())
    done = run(COMMAND.format(reader=reader), str(path))
    expected = f"failed: {path} has shrunk while it was read: another process has cut or rewritten"
    assert done.stderr.startswith(expected), done.stderr
    assert done.stderr.count("\n") == 1
    assert done.returncode == 1


def test_a_signal_that_was_sent_ends_the_process_as_ever() -> None:
    script = (
        "import os, signal\n"
        "from vlmill.runtime.bus_errors import name_shrunken_files\n"
        "name_shrunken_files()\n"
        "os.kill(os.getpid(), signal.SIGBUS)\n"
    )
    done = run(script)
    assert (done.returncode, done.stderr) == (-signal.SIGBUS, "")


def test_a_page_is_found_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a b"
    path.write_bytes(bytes(3 * 4096))
    mapped = np.memmap(path, dtype=np.uint8, mode="r")
    assert find_mapped_file(mapped.ctypes.data + 5000) == (str(path), 5000)
    assert find_mapped_file(0) == (None, 0)


def test_a_shard_that_is_cut_within_its_last_page_is_named(tmp_path: Path) -> None:
    """The rest of the page reads as zeros, without a signal."""
    path = tmp_path / "a"
    path.write_bytes((4).to_bytes(4, "little") + bytes(96))
    shard = MappedShard(path)
    assert shard.holds(4, 4)
    os.truncate(path, 50)
    with pytest.raises(InputError, match=f"{path} has shrunk from 100 to 50 bytes"):
        shard.holds(4, 4)
