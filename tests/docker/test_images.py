"""The files of images and of the forge are what their readers take."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def load_script(name: str) -> Any:
    """A script of docker/ as a module."""
    spec = importlib.util.spec_from_file_location(Path(name).stem, ROOT / "docker" / name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_health_is_an_answer() -> None:
    """Of an address that answers, of one that does not, and of the main process; no torch."""
    healthy = str(ROOT / "docker/healthy.py")
    check = load_script("healthy.py").check_address
    with serving(sends(ok())) as server:
        assert check(f"http://127.0.0.1:{server.port}/") is None
    done = ran(sys.executable, healthy, f"http://127.0.0.1:{server.port}/")
    assert done.returncode == 1 and str(server.port) in done.stderr
    program = f"import runpy, sys; sys.modules['torch'] = None; runpy.run_path({healthy!r}, "
    assert ran(sys.executable, "-c", f"{program}run_name='__main__')").returncode == 0


@pytest.mark.parametrize(
    ("state", "is_well"), [("S", True), ("R", True), ("Z", False), ("T", False)]
)
def test_a_main_process_that_is_stopped_is_not_well(
    state: str, is_well: bool, tmp_path: Path
) -> None:
    (tmp_path / "stat").write_text(f"1 (train-vl (x) y) {state} 0 1 1")
    problem = load_script("healthy.py").check_process(tmp_path / "stat")
    assert (problem is None) == is_well and (is_well or f"state {state}" in problem)


class Driver:
    """Plays NVIDIA's library of a CUDA version, with a number of GPUs."""

    def __init__(self, version: int, count: int = 1, status: int = 0) -> None:
        self.version, self.count, self.status = version, count, status

    def cuInit(self, _: int) -> int:
        return self.status

    def cuDriverGetVersion(self, pointer: Any) -> int:
        pointer._obj.value = self.version
        return 0

    def cuDeviceGetCount(self, pointer: Any) -> int:
        pointer._obj.value = self.count
        return 0


def test_a_driver_that_torch_cannot_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = load_script("healthy.py")
    given = {"NVIDIA_VISIBLE_DEVICES": "all"}
    assert (
        healthy.check_gpu({}) is None and healthy.check_gpu({"NVIDIA_VISIBLE_DEVICES": ""}) is None
    )
    assert "has no libnone.so" in healthy.check_gpu(given, "libnone.so")
    for driver, words in (
        (Driver(13_020), None),
        (Driver(12_040), "is for CUDA 12, torch's libraries for CUDA 13: install driver 580"),
        (Driver(13_000, count=0), "does not see"),
        (Driver(13_000, status=999), "cuInit returns 999"),
    ):
        monkeypatch.setattr(healthy.ctypes, "CDLL", lambda _, driver=driver: driver)
        problem = healthy.check_gpu(given)
        assert problem is None if words is None else words in problem


def test_the_least_driver_is_that_of_the_pinned_cuda() -> None:
    """And the pages name it."""
    healthy = load_script("healthy.py")
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    (cuda,) = re.findall(r"^cuda-toolkit==(\d+)\.", constraints, re.M)
    assert int(cuda) == healthy.LEAST_CUDA
    for page in ("docs/install.md", "docs/clusters.md", "docker/README.md"):
        assert str(healthy.LEAST_DRIVER) in (ROOT / page).read_text(encoding="utf-8"), page


def test_a_task_manager_sees_its_own_death(tmp_path: Path) -> None:
    """By its port, and by the job manager; not while the job manager itself is away."""
    healthy = load_script("healthy.py")
    beat, body = tmp_path / "beat", b'{"timeSinceLastHeartbeat": 1700000000000}'
    node: dict[str, Any] = {"role": "taskmanager", "name": "tm-1", "own": "127.0.0.1"}
    node |= {"job_manager": "127.0.0.1"}
    with serving(sends(ok(body))) as known:
        node |= {"port": known.port, "rpc_port": known.port}
        assert healthy.check_node({**node, "role": "jobmanager"}) is None
        assert healthy.check_node(node, beat) is None and "1700000000000" in beat.read_text()
        assert healthy.check_node(node, beat) is None  # the same heartbeat, a moment later
        os.utime(beat, (1, 1))
        assert "no heartbeat for" in (healthy.check_node(node, beat) or "")
        assert healthy.check_node({**node, "name": "tm-2"}, beat) is None
        assert "127.0.0.1:1" in (healthy.check_node({**node, "rpc_port": 1}, beat) or "")
        assert healthy.check_node({**node, "port": 1}, beat) is None
    with serving(sends(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")) as forgotten:
        problem = healthy.check_node({**node, "port": forgotten.port, "rpc_port": forgotten.port})
    assert problem is not None and "does not know tm-1" in problem
    assert healthy.check_node({**node, "role": "jobmanager"}) is not None


def test_requirements_are_those_of_setup(capsys: pytest.CaptureFixture[str]) -> None:
    """Of its lists alone: the layer of an image has no other file of the source."""
    script = load_script("requirements.py")
    setup = script.SETUP.read_text(encoding="utf-8")
    wanted = script.list_requirements(setup, ["all", "gcp"])
    assert {"torch>=2.8", "fastwarc>=2.0", "apache-beam[gcp]>=2.70"} <= set(wanted)
    assert len(wanted) == len(set(wanted)) and "pytest>=8.3" not in wanted
    assert set(script.list_requirements(setup, [])) < set(wanted)
    done = ran(sys.executable, str(ROOT / "docker/requirements.py"), "none")
    assert done.returncode == 2 and "no extra 'none'" in done.stderr


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_requirements_are_installed_before_the_source_is_copied(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    copied = re.search(r"^COPY (?:--chown=\S+ )?\. ", text, re.M)
    assert copied is not None
    first = text[: copied.start()]
    assert "install.sh --requirements " in first
    for name in re.findall(r"^COPY (?:--chown=\S+ )?(.+)$", first, re.M):
        assert all((ROOT / each).exists() for each in name.split()[:-1])


def test_base_images_are_pinned() -> None:
    """By a digest; Beam's, which no list of digests has, is an argument."""
    bases = [
        base
        for path in DOCKERFILES
        for base in re.findall(r"^FROM (\S+)", path.read_text(encoding="utf-8"), re.M)
        if re.search(r"[:$]", base)
    ]
    assert len(bases) == 4
    pinned = [base for base in bases if re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", base)]
    assert sorted(set(bases) - set(pinned)) == ["${BEAM_IMAGE}"]
    beam = re.search(r"^apache-beam==(\S+)", (ROOT / "constraints.txt").read_text(), re.M)
    worker = (ROOT / "docker/worker.Dockerfile").read_text(encoding="utf-8")
    assert beam is not None and f"beam_python3.11_sdk:{beam[1]}\n" in worker


def test_the_worker_is_what_is_built_without_a_target() -> None:
    worker = (ROOT / "docker/worker.Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"^FROM \S+ AS (\S+)", worker, re.M) == ["base", "detectron2", "worker"]


def test_there_is_one_list_of_what_detectron2_requires() -> None:
    pins = (ROOT / "docker/detectron2.txt").read_text(encoding="utf-8")
    (commit,) = re.findall(r"^# commit ([0-9a-f]{40})$", pins, re.M)
    message = (ROOT / "extract/detect/detectron2.py").read_text(encoding="utf-8")
    assert f"commit {commit[:8]}, " in message
    for path in ("docs/install.md", "docker/install_detectron2.sh", "extract/detect/detectron2.py"):
        assert "hydra-core" not in (ROOT / path).read_text(encoding="utf-8"), path
    assert "detectron2.txt" in (ROOT / "docs/install.md").read_text(encoding="utf-8")


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
