"""The import package ``vlmill`` and the folders at the top of the repository agree."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

import vlmill

ROOT = Path(__file__).parents[1]
CHANGES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
FOLDERS = {"schemas", "runtime", "models", "extract", "train", "inference", "pipelines"}


def test_each_folder_is_linked_for_editors_and_type_checkers() -> None:
    links = {p.name: p.resolve() for p in (ROOT / "src/vlmill").iterdir() if p.is_symlink()}
    assert links == {name: ROOT / name for name in FOLDERS}


def test_one_version() -> None:
    assert version("vlmill") == vlmill.__version__
    versions = re.findall(r"^## (\S+) \((?:20\d\d-\d\d-\d\d|not released yet)\)$", CHANGES, re.M)
    assert versions[0] == vlmill.__version__
    assert len(re.findall(r"^## ", CHANGES, re.M)) == len(versions)
    assert f"\nversion: {vlmill.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_each_extra_is_told_and_tried() -> None:
    """Those that pip is offered, the page of the installation and the long test below."""
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \| ", page.split("**faiss**")[0], re.M)
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    listed = (ROOT / "setup.py").read_text(encoding="utf-8").split("EXTRAS = {")[1]
    offered = set(re.findall(r'^    "(\w+)": ', listed, re.M))
    assert told == offered == {*EXTRAS, "test"}


def test_no_requirement_holds_another_ones_module() -> None:
    """faiss-cpu and faiss-gpu are one module: together, each is broken by the other."""
    required = re.findall(r'"(faiss[a-z0-9-]*)', (ROOT / "setup.py").read_text())
    assert required == ["faiss-cpu"]


def test_console_scripts_load() -> None:
    ours = [s for s in entry_points(group="console_scripts") if s.value.startswith("vlmill.")]
    assert {s.name for s in ours} == {"extract-rois", "train-vl", "vlmill-flink-worker"}
    assert all(callable(s.load()) for s in ours)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel that a release has, which is made from its source archive, and a clone."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"  # a copy: builds leave folders behind, and reuse stale ones
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    assert list(folder.glob("*.tar.gz"))
    return wheel, source


@pytest.mark.slow
def test_a_wheel_has_one_name_and_every_file(built: tuple[Path, Path]) -> None:
    wheel, source = built
    shipped = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    written = {
        f"vlmill/{path.relative_to(source)}"
        for name in FOLDERS
        for path in (source / name).rglob("*")
        if path.is_file()
    }
    assert shipped - {"vlmill/__init__.py", "vlmill/client.py", "vlmill/py.typed"} == written


@pytest.mark.slow
def test_the_source_has_what_its_pages_speak_of(built: tuple[Path, Path]) -> None:
    """Pages, examples, images and exact versions; of the tests all or, as here, none."""
    wheel, source = built
    (archive,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        shipped = {name.partition("/")[2] for name in packed.getnames()}
    listed = subprocess.run(
        ["git", "ls-files"], cwd=source, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    left_out = ("tests/", "benchmarks/", "src/", ".")
    written = {name for name in listed if not name.startswith(left_out)}
    assert (written | {"benchmarks/RESULTS.md"}) - shipped == set()
    assert [name for name in shipped if name.startswith("tests")] == []


@pytest.mark.nightly
def test_commands_of_the_wheel_run(built: tuple[Path, Path], tmp_path: Path) -> None:
    """From the wheel alone, in a process that sees no checkout."""
    wheel, _ = built
    target = tmp_path / "installed"
    install = ["-m", "pip", "install", "--no-deps", "--quiet", "--target", str(target), str(wheel)]
    subprocess.run([sys.executable, *install], check=True)
    env = {**os.environ, "PYTHONPATH": str(target)}
    code = "import vlmill; print(vlmill.__file__)"
    for command in (
        ["-c", code],
        ["-m", "vlmill.train.cli", "--version"],
        ["-m", "vlmill.extract.cli", "--version"],
        ["-m", "vlmill.pipelines.web_pairs", "--version"],
    ):
        done = subprocess.run(
            [sys.executable, *command], env=env, cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert (str(target) if command[1] == code else vlmill.__version__) in done.stdout


BUILD_EDITABLE = "import sys, setuptools.build_meta as b; b.build_editable(sys.argv[1])"


def build_editable(checkout: Path, folder: Path) -> zipfile.ZipFile:
    """The wheel from which pip and uv install a checkout as editable."""
    build = [sys.executable, "-c", BUILD_EDITABLE, str(folder)]
    subprocess.run(build, cwd=checkout, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return zipfile.ZipFile(wheel)


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkout named vlmill, and the Python of an environment in which it is editable."""
    folder = tmp_path_factory.mktemp("editable")
    checkout, env = folder / "above/vlmill", folder / "env"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(checkout)], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    (site_packages,) = env.glob("lib/python3*/site-packages")
    build_editable(checkout, folder).extractall(site_packages)
    return checkout, env / "bin/python"


@pytest.mark.nightly
def test_an_editable_install_is_a_path_that_type_checkers_read(
    editable: tuple[Path, Path], tmp_path: Path
) -> None:
    checkout, python = editable
    (path,) = python.parents[1].rglob("__editable__*.pth")
    assert path.read_text().strip() == str(checkout / "src")
    (tmp_path / "use.py").write_text(
        "from vlmill.schemas.errors import InputError\nInputError(1)\n"
    )
    check = ["--python-executable", str(python), "--follow-imports=skip", "--cache-dir=/dev/null"]
    env = {name: value for name, value in os.environ.items() if name != "MYPYPATH"}
    mypy = [sys.executable, "-m", "mypy", *check, "use.py"]
    done = subprocess.run(mypy, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.nightly
def test_commands_of_an_editable_install_run_in_the_folder_above(
    editable: tuple[Path, Path],
) -> None:
    checkout, python = editable
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(python), "-m", "vlmill.pipelines.manifest", "--help"]
    done = subprocess.run(command, cwd=checkout.parent, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")


@pytest.mark.nightly
def test_a_checkout_without_links_is_editable_by_an_import_hook(
    editable: tuple[Path, Path], tmp_path: Path
) -> None:
    shutil.copytree(editable[0], tmp_path / "vlmill", symlinks=True)
    for name in FOLDERS:  # as git does with core.symlinks=false
        link = tmp_path / "vlmill/src/vlmill" / name
        target = os.readlink(link)
        link.unlink()
        link.write_text(target)
    names = build_editable(tmp_path / "vlmill", tmp_path).namelist()
    assert any(name.endswith("_finder.py") for name in names)


EXTRAS = (
    *("all", "beam", "cloud", "coco", "demo", "dev", "docs", "excel", "extract"),
    *("gcp", "heif", "mining", "mlflow", "onnx", "safety", "search", "service", "train", "wandb"),
)


@pytest.mark.long
def test_a_release_installs_with_its_extras(built: tuple[Path, Path], tmp_path: Path) -> None:
    """In an environment of its own, from the package index (6 GB, minutes)."""
    wheel, source = built
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    python = str(tmp_path / "env/bin/python")
    named = f"{wheel}[{','.join(EXTRAS)}]"
    install = ["install", "--quiet", "--constraint", str(source / "constraints.txt"), named]
    subprocess.run([python, "-m", "pip", *install], check=True)
    subprocess.run([python, "-m", "pip", "check"], check=True)
    for command in ("train-vl", "extract-rois"):
        said = subprocess.run(
            [str(tmp_path / "env/bin" / command), "--version"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert vlmill.__version__ in said.stdout
