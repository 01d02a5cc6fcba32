"""The files of images and of the forge are what their readers take."""

import os
import re
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from tests.schemas.net.servers import ok, sends, serving

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker/compose.yaml"
KUBERNETES = sorted((ROOT / "examples/kubernetes").glob("*.yaml"))
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
        ("vendor.compose-spec", "docker/compose.yaml"),
    ],
)
def test_files_fit_their_schemas(schema: str, pattern: str) -> None:
    files = sorted(map(str, ROOT.glob(pattern)))
    assert files
    done = ran(tool("check-jsonschema"), "--builtin-schema", schema, *files)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_kubernetes_takes_the_examples(path: Path) -> None:
    documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    assert documents
    for document in documents:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_images_that_are_named_are_built() -> None:
    """Each image of compose and Kubernetes has a stage, each script that a stage runs is there."""
    dockerfile = (ROOT / "docker/vlmill.Dockerfile").read_text(encoding="utf-8")
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, re.M))
    texts = [path.read_text(encoding="utf-8") for path in (COMPOSE, *KUBERNETES)]
    services = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    targets = {s["build"]["target"] for s in services.values() if "target" in s.get("build", {})}
    assert targets and targets <= stages
    images = {n for text in texts for n in re.findall(r"image: \S*vlmill-(\w+)", text)} - {"demo"}
    assert images and images <= stages
    scripts = re.findall(r"/src/(docker/[\w/.]+)", "".join([dockerfile, *texts]))
    assert scripts and [s for s in scripts if not (ROOT / s).exists()] == []


def test_health_is_an_answer() -> None:
    """Of an address that answers, of one that does not, and of torch."""
    healthy = str(ROOT / "docker/healthy.py")
    with serving(sends(ok())) as server:
        assert ran(sys.executable, healthy, f"http://127.0.0.1:{server.port}/").returncode == 0
    done = ran(sys.executable, healthy, f"http://127.0.0.1:{server.port}/")
    assert done.returncode == 1 and str(server.port) in done.stderr
    assert ran(sys.executable, healthy).returncode == 0


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
