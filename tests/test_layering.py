"""Which folder may import which, and which heavy libraries each may load."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"schemas", "models", "extract", "pipelines", "train"}
HEAVY = {"torch", "torchvision", "apache_beam", "accelerate", "tokenizers", "faiss", "sklearn"}
MAY_IMPORT: dict[str, set[str]] = {
    "schemas": set(),
    "models": {"torch", "torchvision"},
    "extract": {"schemas", "models", "torch", "torchvision"},
    "pipelines": {"schemas", "apache_beam", "sklearn"},
    "train": {"schemas", "models", "torch", "accelerate", "tokenizers", "faiss"},
}
# The one job that runs a network: it brings the engine of extraction to Beam.
EXCEPTIONS: dict[str, set[str]] = {"pipelines/regions.py": {"extract"}}


def imports(source: str, name: str) -> Iterator[tuple[int, str]]:
    """(line, first part) of every import of a file, ``vlmill.`` stripped."""
    for node in ast.walk(ast.parse(source, name)):
        match node:
            case ast.Import(names=aliases) | ast.ImportFrom(module="vlmill", names=aliases):
                names = [alias.name for alias in aliases]
            case ast.ImportFrom(module=str(module), level=0):
                names = [module]
            case ast.ImportFrom(level=level) if level:
                names = ["a relative import"]
            case _:
                continue
        for found in names:
            yield node.lineno, found.removeprefix("vlmill.").split(".")[0]


def violations(folder: str, source: str, name: str) -> list[str]:
    """What a file of ``folder`` imports that it may not."""
    allowed = MAY_IMPORT[folder] | EXCEPTIONS.get(name, set()) | {folder}
    banned = (OURS | HEAVY | {"a relative import"}) - allowed
    return [f"{name}:{line} imports {n}" for line, n in imports(source, name) if n in banned]


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_follow_the_layers(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert len(files) > 1
    broken = [v for f in files for v in violations(folder, f.read_text(), str(f.relative_to(ROOT)))]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("folder", "source"),
    [
        ("schemas", "import torch"),
        ("models", "from vlmill.train import cli"),
        ("models", "from vlmill import train"),
        ("models", "import vlmill.schemas.ids"),
        ("extract", "def f():\n    import apache_beam.io"),
        ("train", "from vlmill.extract.run import run"),
        ("pipelines", "from ..schemas import ids"),
    ],
)
def test_the_check_finds_what_it_must(folder: str, source: str) -> None:
    assert violations(folder, source, "x.py")


def test_no_circles_between_folders() -> None:
    ours = {folder: allowed & OURS for folder, allowed in MAY_IMPORT.items()}
    for name, more in EXCEPTIONS.items():
        assert (ROOT / name).is_file()
        ours[name.split("/")[0]] |= more & OURS
    placed: set[str] = set()
    while ready := [f for f, needs in ours.items() if f not in placed and needs <= placed]:
        placed.update(ready)
    assert placed == OURS
