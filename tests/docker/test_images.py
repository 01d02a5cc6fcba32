"""The files of images and of the forge are what their readers take."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
SCRIPTS = sorted((ROOT / "docker").glob("*.sh"))


def ran(*command: str, cwd: Path = ROOT, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True
    )


def tool(name: str) -> str:
    """A program that pip has put beside Python."""
    return str(Path(sys.executable).with_name(name))


def test_there_are_images_and_scripts() -> None:
    assert DOCKERFILES and SCRIPTS


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_has_nothing_to_say(path: Path) -> None:
    done = ran(tool("hadolint"), str(path))
    assert (done.returncode, done.stdout) == (0, ""), done.stdout


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_is_no_roots_and_installs_by_a_script(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users[-1] == "1000"
    assert any("install.sh" in line or "make install" in line for line in lines)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_shell(path: Path) -> None:
    assert os.access(path, os.X_OK)
    assert ran("sh", "-n", str(path)).returncode == 0


def test_a_folder_without_detectron2_is_refused(tmp_path: Path) -> None:
    script = str(ROOT / "docker/install_detectron2.sh")
    done = ran(script, str(tmp_path))
    assert done.returncode == 2 and f"{tmp_path}: no source of Detectron2 there" in done.stderr
    assert ran(script).returncode != 0


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("vendor.github-workflows", ".github/workflows/*.yml"),
        ("vendor.citation-file-format", "CITATION.cff"),
    ],
)
def test_files_of_the_forge_fit_their_schemas(schema: str, pattern: str) -> None:
    files = sorted(map(str, ROOT.glob(pattern)))
    assert files
    done = ran(tool("check-jsonschema"), "--builtin-schema", schema, *files)
    assert done.returncode == 0, done.stdout


@pytest.mark.long
def test_the_script_of_images_installs_on_this_machine(tmp_path: Path) -> None:
    """From the package index into an environment of its own: 6 GB, minutes."""
    source = tmp_path / "source"
    ran("git", "clone", "--quiet", str(ROOT), str(source))
    ran(sys.executable, "-m", "venv", str(tmp_path / "env"))
    python = str(tmp_path / "env/bin/python")
    done = ran(str(source / "docker/install.sh"), "cloud", cwd=tmp_path, PYTHON=python)
    assert done.returncode == 0, done.stderr[-2000:]
    said = ran(str(tmp_path / "env/bin/extract-rois"), "--version", cwd=tmp_path)
    assert said.stdout.startswith("vlmill ")
