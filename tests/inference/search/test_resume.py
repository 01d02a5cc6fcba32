"""``train-vl embed`` goes on after a kill -9, and reads and writes stores as the others do."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.forked import run_script
from tests.inference.search.test_embed import Shop
from tests.object_stores import download_folder, upload_folder
from tests.train.tasks.retrieval.test_matching import TEXTS

from vlmill.runtime.files.manifest import verify_folder
from vlmill.runtime.files.reading import read_table
from vlmill.schemas.tables import VECTORS
from vlmill.train.cli import main

# Kills itself when a shard's rejects are there and its vectors are not.
KILLED = """
import os, signal, sys
from vlmill.train.cli import main
from vlmill.inference.search import embedding

write, calls = embedding.write_shard, []

def until(*words, **more):
    calls.append(words)
    if len(calls) == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    return write(*words, **more)

embedding.write_shard = until
main(sys.argv[1:])
"""


def parquet(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.parquet")}


@pytest.mark.nightly
def test_a_run_that_was_killed_ends_with_the_same_bytes(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    assert shop.embed("--vectors-per-shard", "2") == 0
    whole = parquet(shop.vectors)
    words = ["embed", "--checkpoint", str(tmp_path / "checkpoint"), "--vectors-per-shard", "2"]
    words += [x for name in ("pairs", "images") for x in (f"--{name}", str(tmp_path / name))]
    output = tmp_path / "killed"
    assert run_script(KILLED, *words, "--output", output).returncode == -signal.SIGKILL
    left = parquet(output)
    assert len(left) == 5 < len(whole) and not (output / "_manifest.json").exists()
    assert main([*words, "--output", str(output)]) == 0
    assert parquet(output) == whole and not verify_folder(output)


def test_vectors_and_indexes_lie_in_stores(
    bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path)
    assert shop.embed() == 0
    place = f"{bucket}/in"
    for name in ("checkpoint", "pairs", "images"):
        upload_folder(tmp_path / name, f"{place}/{name}")
    words = ["embed", "--checkpoint", f"{place}/checkpoint", "--output", f"{bucket}/vectors"]
    words += [x for name in ("pairs", "images") for x in (f"--{name}", f"{place}/{name}")]
    assert main(words) == 0 and main(words) == 0
    assert "finished before" in capsys.readouterr().out
    there = read_table(download_folder(f"{bucket}/vectors", tmp_path / "there"), VECTORS)
    assert there.equals(read_table(shop.vectors, VECTORS))

    def answers(*more: str) -> list[dict[str, Any]]:
        capsys.readouterr()
        assert main(["search", *more, "--text", TEXTS[0]]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    expected = answers("--vectors", str(shop.vectors))
    saved = ["--save-index", f"{bucket}/index"]
    assert answers("--vectors", f"{bucket}/vectors", *saved) == expected
    assert answers("--index", f"{bucket}/index") == expected
    image = tmp_path / "photo" / "query.png"
    image.parent.mkdir()
    Image.new("RGB", (40, 30), "red").save(image)
    upload_folder(image.parent, f"{bucket}/photo")
    names = (str(image), f"{bucket}/photo/query.png", f"{bucket}/photo/none.png")
    asked = [word for name in names for word in ("--image", name)]
    here, stored, missing = answers("--index", f"{bucket}/index", *asked)[1:]
    assert here["answers"] == stored["answers"] != [] and missing["error"] == "empty"
