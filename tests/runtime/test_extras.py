"""The table of extras agrees with setup.py and with what the package imports."""

import ast
import re
import runpy
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from vlmill.runtime.console.command import run_command
from vlmill.runtime.extras import MODULES, REQUIRED, install_command, missing_line, require_extra
from vlmill.schemas.errors import InputError

ROOT = Path(__file__).parents[2]
FOLDERS = ("schemas", "runtime", "models", "extract", "train", "inference", "pipelines")
MOST_REQUIRED = 17
# Modules that come with the requirement of another one.
COMES_WITH = {
    "google.protobuf": "apache-beam",
    "grpc": "apache-beam",
    "starlette": "fastapi",
    "mlflow": "mlflow-skinny",
}
WITH_TORCH = {"triton"}  # where torch has it: the code asks first
BUILT_BY_HAND = {"detectron2"}  # docs/install.md
SUFFIXES = (".py", ".md", ".sh", ".yml", ".Dockerfile")
NOT_OF_COMMANDS = {"all", "demo", "dev", "docs", "gcp", "test"}


@pytest.fixture(scope="module")
def declared() -> dict[str, set[str]]:
    """The distributions of each extra of setup.py, those that are required under ""."""
    given: dict[str, list[str]] = {}

    def setup(**words: object) -> None:
        assert isinstance(words["extras_require"], dict)
        given.update(words["extras_require"])
        assert isinstance(words["install_requires"], list)
        given[""] = words["install_requires"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setuptools.setup", setup)
        patch.chdir(ROOT)
        runpy.run_path("setup.py")
    return {
        extra: {re.split(r"[\[<>=!]", requirement)[0] for requirement in requirements}
        for extra, requirements in given.items()
    }


@cache
def installed() -> Mapping[str, list[str]]:
    """The distributions that have each module; reading all of them takes a second."""
    return packages_distributions()


def distribution(module: str) -> str:
    """The name in setup.py of what installs a module."""
    if module in COMES_WITH:
        return COMES_WITH[module]
    (name,) = set(installed()[module])
    return name.lower().replace("_", "-")


@cache
def imported_modules() -> list[tuple[str, str]]:
    """(file, module) of each import of another project."""
    return list(_imported_modules())


def _imported_modules() -> Iterator[tuple[str, str]]:
    ours = {"vlmill", *sys.stdlib_module_names}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                match node:
                    case ast.Import(names=aliases):
                        modules = [alias.name for alias in aliases]
                    case ast.ImportFrom(module=str(module)):
                        modules = [module]
                    case _:
                        continue
                for module in modules:
                    if module.split(".")[0] not in ours:
                        yield path.relative_to(ROOT).as_posix(), module


def test_few_distributions_are_required(declared: dict[str, set[str]]) -> None:
    assert len(declared[""]) <= MOST_REQUIRED
    assert {distribution(module) for module in REQUIRED} == declared[""]


def test_each_import_is_of_a_requirement_or_an_extra() -> None:
    found = {(file, module.split(".")[0]): module for file, module in imported_modules()}
    assert len(found) > 500
    others = WITH_TORCH | BUILT_BY_HAND
    unknown = [
        key
        for key, module in found.items()
        if key[1] not in others
        and not (missing_line(key[1]) or missing_line(".".join(module.split(".")[:2])))
    ]
    assert not unknown


def test_each_module_of_the_table_is_used() -> None:
    imported = {module for _, module in imported_modules()}
    tops = {module.split(".")[0] for module in imported}
    # sudachipy imports its dictionary, fsspec its stores and torch its exporter, by name; the
    # tables of wordfreq are read as files.
    by_name = {"sudachidict_small", "gcsfs", "s3fs", "tensorboard", "wandb", "onnx", "onnxscript"}
    by_name |= {"wordfreq"}
    used = {module for modules in MODULES.values() for module in modules} - by_name
    assert {
        m for m in used if m not in tops and not any(i.startswith(m) for i in imported)
    } == set()
    assert set(REQUIRED) <= tops


@pytest.mark.parametrize("extra", MODULES)
def test_an_extra_installs_the_modules_of_its_row(
    extra: str, declared: dict[str, set[str]]
) -> None:
    assert {distribution(module) for module in MODULES[extra]} == declared[extra]


def test_all_has_what_commands_need(declared: dict[str, set[str]]) -> None:
    servers = {"mlflow", "wandb"}
    parts = (declared[extra] for extra in MODULES if extra not in servers)
    assert declared["all"] == set().union(*parts)
    assert set(declared) - {""} == MODULES.keys() | NOT_OF_COMMANDS


# Of two extras that have a module, the first is named.
FIRST = {module: extra for extra in reversed(list(MODULES)) for module in MODULES[extra]}


@pytest.mark.parametrize(("module", "extra"), [*FIRST.items(), ("apache_beam.io.gcp", "beam")])
def test_a_missing_module_is_one_line_that_names_its_extra(
    module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, module.split(".")[0], raising=False)
    assert missing_line(module) == (
        f"{module.split('.')[0]} is not installed, which the extra `{extra}` has: run "
        f"pip install -e '.[{extra}]' in vlmill's checkout"
    )


def test_a_missing_requirement_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert missing_line("torch.nn") == (
        "torch is not installed, which vlmill requires: run pip install -e . in vlmill's checkout"
    )


def test_a_command_that_lacks_a_module_ends_with_status_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(_: object) -> int:
        import faiss.contrib

        return len(dir(faiss))

    monkeypatch.setitem(sys.modules, "faiss", None)
    assert run_command(command, []) == 2
    assert capsys.readouterr().err == f"error: {missing_line('faiss')}\n"


def test_another_missing_module_is_a_bug() -> None:
    def command(_: object) -> int:
        raise ModuleNotFoundError("No module named 'vlmill.typo'", name="vlmill.typo")

    assert missing_line(None) is None
    assert missing_line("numpy.no_such_part") is None  # numpy itself is here
    with pytest.raises(ModuleNotFoundError, match="typo"):
        run_command(command, [])


def test_a_whole_extra_is_asked_for_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    require_extra("service")
    monkeypatch.setitem(sys.modules, "pycurl", None)  # which `mining` has, too
    with pytest.raises(InputError, match=r"^pycurl is .* pip install -e '\.\[service\]'"):
        require_extra("service")


def test_no_text_names_the_package_to_an_index() -> None:
    """Until it is published, anybody could register the name."""
    files = [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "setup.py"]
    for folder in (*FOLDERS, "docs", "docker", "examples", "benchmarks", ".github"):
        files += [p for p in (ROOT / folder).rglob("*") if p.suffix in SUFFIXES]
    named = re.compile(r"pip3? install[^\n`]*['\" ]vlmill\b")
    assert len(files) > 400
    assert [p for p in files if named.search(p.read_text(encoding="utf-8"))] == []
    assert install_command("cloud") == "pip install -e '.[cloud]'"
