"""The import package ``vlmill`` and the folders at the top of the repository agree."""

import re
import subprocess
import sys
import zipfile
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

import vlmill

ROOT = Path(__file__).parents[1]
FOLDERS = {"schemas", "models", "extract", "pipelines", "train"}


def test_each_folder_is_linked_for_editors_and_type_checkers() -> None:
    links = {p.name: p.resolve() for p in (ROOT / "src/vlmill").iterdir() if p.is_symlink()}
    assert links == {name: ROOT / name for name in FOLDERS}


def test_one_version() -> None:
    assert version("vlmill") == vlmill.__version__
    assert f"## {vlmill.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_no_requirement_holds_another_ones_module() -> None:
    """faiss-cpu and faiss-gpu are one module: together, each is broken by the other."""
    required = re.findall(r'"(faiss[a-z0-9-]*)', (ROOT / "setup.py").read_text())
    assert required == ["faiss-cpu"]


def test_console_scripts_load() -> None:
    ours = [s for s in entry_points(group="console_scripts") if s.value.startswith("vlmill.")]
    assert {s.name for s in ours} == {"extract-rois", "train-vl", "vlmill-flink-worker"}
    assert all(callable(s.load()) for s in ours)


@pytest.mark.slow
def test_a_wheel_has_one_name_and_every_file(tmp_path: Path) -> None:
    source = tmp_path / "source"  # a copy: builds leave folders behind, and reuse stale ones
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--quiet",
        "--disable-pip-version-check",
    ]
    subprocess.run([*build, "-w", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    shipped = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    written = {
        f"vlmill/{path.relative_to(source)}"
        for name in FOLDERS
        for path in (source / name).rglob("*")
        if path.is_file()
    }
    assert shipped - {"vlmill/__init__.py", "vlmill/py.typed"} == written
