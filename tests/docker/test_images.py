"""The files of images and of the forge are what their readers take."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from tests.runtime.net.servers import ok, sends, serving

import vlmill

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
    given = dict(line.split()[1].split("=") for line in lines if line.startswith("ARG "))
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert given.get(users[-1].strip("${}"), users[-1]) == "1000"
    assert any("install.sh" in line or "make install" in line for line in lines)
    assert any(line.startswith("HEALTHCHECK ") for line in lines)


def test_boot_of_beam_writes_where_the_user_may() -> None:
    """It makes an environment under /opt unless told not to, and writes options where it starts."""
    worker = (ROOT / "docker/worker.Dockerfile").read_text(encoding="utf-8")
    assert "RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1" in worker
    assert "useradd --create-home --uid 1000 vlmill" in worker
    assert worker.index("\nUSER ") < worker.index("\nWORKDIR /home/vlmill\n")


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


def test_a_service_that_is_given_no_token_asks_for_none() -> None:
    """compose makes an empty one of ``${VLMILL_TOKEN:-}``, which a service refuses."""
    serve = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]["serve"]
    assert serve["environment"] == ["VLMILL_TOKEN"]


def test_images_of_the_examples_have_this_version() -> None:
    tags = [
        tag
        for path in KUBERNETES
        for tag in re.findall(r"image: \S+:(\S+)", path.read_text(encoding="utf-8"))
    ]
    assert tags and set(tags) == {vlmill.__version__}


def test_a_pod_of_training_has_the_time_to_save() -> None:
    """torchrun kills after 30 seconds by itself, Kubernetes after its grace period."""
    job = yaml.safe_load((ROOT / "examples/kubernetes/train.yaml").read_text(encoding="utf-8"))
    pod = job["spec"]["template"]["spec"]
    (waits,) = re.findall(r"--shutdown-timeout=(\d+)", str(pod["containers"][0]["command"]))
    assert 60 < int(waits) < pod["terminationGracePeriodSeconds"]


def environment(folder: Path) -> str:
    """The Python of an environment that sees the packages of this one, pip among them."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    tests_own = Path(pytest.__file__).parents[1]
    (site / "packages.pth").write_text(f"{tests_own}\n", encoding="utf-8")
    return str(folder / "bin/python")


@pytest.mark.nightly
def test_the_script_of_images_installs_on_this_machine(tmp_path: Path) -> None:
    """vlmill from its source, beside the packages that are here: no index is asked."""
    source = tmp_path / "source"  # a copy: builds leave folders behind
    ran("git", "clone", "--quiet", str(ROOT), str(source))
    python = environment(tmp_path / "env")
    here = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PYTHONPATH": ""}
    done = ran(str(source / "docker/install.sh"), "all", cwd=tmp_path, PYTHON=python, **here)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "No broken requirements found" in done.stdout
    said = ran(str(tmp_path / "env/bin/extract-rois"), "--version", cwd=tmp_path, PYTHONPATH="")
    assert said.stdout.startswith(f"vlmill {vlmill.__version__}")
    imported = ran(
        python, "-c", "import vlmill; print(vlmill.__file__)", cwd=tmp_path, PYTHONPATH=""
    )
    assert imported.stdout.startswith(str(tmp_path / "env"))


@pytest.mark.long
def test_all_that_an_image_has_comes_from_the_index(tmp_path: Path) -> None:
    """Into an environment without anything: 6 GB, minutes."""
    source = tmp_path / "source"
    ran("git", "clone", "--quiet", str(ROOT), str(source))
    ran(sys.executable, "-m", "venv", str(tmp_path / "env"))
    python = str(tmp_path / "env/bin/python")
    done = ran(str(source / "docker/install.sh"), "all", cwd=tmp_path, PYTHON=python)
    assert done.returncode == 0, done.stderr[-2000:]
    said = ran(str(tmp_path / "env/bin/extract-rois"), "--version", cwd=tmp_path)
    assert said.stdout.startswith("vlmill ")


@pytest.mark.long
def test_detectron2_is_built_from_its_folder_and_gives_our_rows(tmp_path: Path) -> None:
    """Minutes of a compiler, and some packages from the index."""
    source = os.environ.get("VLMILL_DETECTRON2")
    if not source:
        pytest.skip("VLMILL_DETECTRON2 names no folder of Detectron2's source")
    if importlib.util.find_spec("detectron2") is not None:
        pytest.skip("Detectron2 is installed beside the tests already")
    python = environment(tmp_path / "env")
    copy = tmp_path / "detectron2"  # its build writes into its source
    shutil.copytree(source, copy, symlinks=True)
    done = ran(str(ROOT / "docker/install_detectron2.sh"), str(copy), PYTHON=python, FORCE_CUDA="0")
    assert done.returncode == 0, done.stderr[-2000:]
    rows = ran(python, "-m", "pytest", "-q", "tests/extract/detect/test_detectron2.py")
    assert rows.returncode == 0 and "skipped" not in rows.stdout, rows.stdout[-2000:]
