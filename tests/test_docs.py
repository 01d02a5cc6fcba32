"""Pages are correct: their commands, recipes, presets, counts of parameters and links."""

import ast
import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from docs.site.hooks import COMMANDS

from vlmill.inference.convert.arguments import preset_changes
from vlmill.inference.convert.command import SOURCES
from vlmill.models import PRESETS, VARIANTS, preset
from vlmill.pipelines.filters.scorer import GROUPS, NAMES
from vlmill.pipelines.filters.statistics import GROUPS as IMAGE_GROUPS
from vlmill.runtime.settings.plain_fields import override
from vlmill.runtime.units.launch.loading import flags_of_beam
from vlmill.train.recipes import RECIPES, change_recipe, recipe_named
from vlmill.train.tasks.registry import TASKS, task_recipe_named, task_recipes

ROOT = Path(__file__).parents[1]
PAGES = {
    page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8")
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
BEAM_JOBS = {
    f"python -m vlmill.pipelines.{job}" for job in ("hard_negatives", "regions", "web_pairs")
}
SUBCOMMANDS = (
    "python -m vlmill.pipelines.manifest",
    "python -m vlmill.pipelines.tables",
    "extract-rois",
    "train-vl",
)
# What starts several processes of one of the commands.
LAUNCHED = re.compile(r"^(?:torchrun|accelerate launch) .*?-m vlmill\.train\.cli\b")


def commands(page: str) -> list[str]:
    """Our commands in a page's shell blocks, one line each."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    named = [LAUNCHED.sub("train-vl", line) for line in lines]
    return [line for line in named if line.startswith(("train-vl", "extract-rois", "python -m"))]


ALL = [
    pytest.param(command, id=f"{name}: {' '.join(command.split())}")
    for name, page in PAGES.items()
    for command in commands(page)
]


def words_of(command: str) -> tuple[str, list[str]]:
    """The command's name, and its arguments."""
    name = next(name for name in COMMANDS if command.startswith(name))
    return name, shlex.split(command.removeprefix(name), comments=True)


@pytest.mark.parametrize("name", PAGES)
def test_commands_stand_where_they_are_tried(name: str) -> None:
    """In blocks that say sh: of no other kind, and not indented."""
    rest = re.sub(r"^```sh\n.*?^```", "", PAGES[name], flags=re.M | re.S)
    ours = r"^ *(?:python -m vlmill\.|extract-rois |train-vl ).*"
    assert re.findall(ours, rest, re.M) == []


@pytest.mark.parametrize("command", ALL)
def test_a_command_is_one(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its choices are accepted, and its help knows its flags."""
    name, words = words_of(command)
    with pytest.raises(SystemExit) as left:  # what stands before --help is read first
        COMMANDS[name]([*words, "--help"])
    said = capsys.readouterr()
    assert left.value.code == 0, said.err
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    missing = {flag for flag in flags if not re.search(rf"{flag}\b(?!-)", said.out)}
    assert missing <= (flags_of_beam() if name in BEAM_JOBS else set())
    assert name not in SUBCOMMANDS or words


@pytest.mark.parametrize("command", [c for c in ALL if "train-vl" in str(c.values[0])])
def test_its_recipes_presets_and_fields_exist(command: str) -> None:
    _, words = words_of(command)
    changes = [word for word in words if re.match(r"[a-z][a-z_.\d]*=", word)]
    if words[0] == "pretrain":
        named = [word for word in words[1:2] if not word.startswith("--")]
        recipe = change_recipe(recipe_named(named[0] if named else "imagebert-small"), changes)
        assert recipe.stages
    if words[0] == "finetune" and words[1] in task_recipes():
        assert change_recipe(task_recipe_named(words[1]), changes).stages
    if words[0] == "finetune" and words[1] not in task_recipes():  # chosen by the checkpoint
        assert "--init" in words and (words[1] in TASKS or words[1].startswith("--"))
    if words[0] == "recipes" and "show" in words:
        assert words[words.index("show") + 1] in RECIPES
    if "--as" in words:
        assert override(preset(words[words.index("--as") + 1]), preset_changes(changes))
    if words[0] == "convert":
        assert words[words.index("--family") + 1] in SOURCES


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", PAGES[name]):
        assert (ROOT / name).parent.joinpath(target).exists(), target


def test_the_front_page_has_the_steps_of_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, in their order, and with the same arguments."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    page = PAGES["README.md"].split("## The main job, step by step")[1]
    block = page.split("```sh\n")[1].split("```")[0]
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    typed = [words for words in lines if words and words[0] != "."]

    def plain(word: str) -> str:
        if word == sys.executable:
            return "python"
        examples = f"{ROOT / 'examples'}/"
        return word.replace(examples, "examples/").removeprefix(f"{Path(sys.executable).parent}/")

    steps = importlib.import_module("demo").steps(Path("demo"))
    assert [sorted(words) for words in typed] == [sorted(map(plain, s.command)) for s in steps]


@pytest.mark.parametrize(
    "command",
    [
        *(name for name in COMMANDS),
        "python -m vlmill.pipelines.manifest own",
        *(
            f"extract-rois {c}"
            for c in (
                "run",
                "serve",
                "verify",
                "import",
                "export",
                "show",
                "compare",
                "train",
                "recipes",
            )
        ),
        *(
            f"train-vl {c}"
            for c in ("pretrain", "finetune", "evaluate", "convert", "recipes", "serve")
        ),
    ],
)
def test_every_help_has_an_example_of_its_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, words = words_of(command)
    with pytest.raises(SystemExit):
        COMMANDS[name]([*words, "--help"])
    _, example, rest = capsys.readouterr().out.partition("xample")
    assert example and re.search(rf"^ +{re.escape(command)}\b", rest, re.M)


def test_every_page_is_linked_from_the_front() -> None:
    for name in PAGES:
        assert name == "README.md" or f"({name})" in PAGES["README.md"], name


def counted(name: str) -> str:
    """The parameters of a preset as the page writes them: ours are rounded."""
    config = preset(name)
    variant = next(variant for variant in VARIANTS.values() if variant.config is type(config))
    with torch.device("meta"):
        model = variant.model(config)
    count = sum(parameter.numel() for parameter in model.parameters())
    return f"{count / 1e6:.1f} million" if name.endswith("-small") else f"{count:,}"


def test_the_page_on_models_counts_every_preset() -> None:
    section = PAGES["docs/models.md"].split("## Presets")[1].split("\n## ")[0]
    told = {
        name: count
        for names, count in re.findall(r"^\| (`.*?`) \| ([\d,.]+(?: million)?) \|", section, re.M)
        for name in re.findall(r"`(.+?)`", names)
    }
    assert told == {name: counted(name) for name in PRESETS}


def test_the_page_on_training_lists_every_recipe() -> None:
    section = PAGES["docs/training.md"].split("## The recipes")[1].split("\n## ")[0]
    named = set(re.findall(r"`([\w-]+)`", section))
    assert set(RECIPES) <= named


PACKAGES = ("schemas", "runtime", "models", "extract", "train", "inference", "pipelines")
FOLDERS = "|".join((*PACKAGES, "benchmarks", "examples", "tests"))


@pytest.mark.parametrize("name", PAGES)
def test_files_that_a_page_names_are_there(name: str) -> None:
    """In backticks; NAME and the like stand for any."""
    for path in re.findall(rf"`((?:{FOLDERS})/[a-z_\d/]+(?:\.\w+)?)`", PAGES[name]):
        assert (ROOT / path).exists(), path


def test_the_counts_that_add_up_are_held_by_tests_that_exist() -> None:
    table = PAGES["docs/tables.md"].partition("## Counts that add up")[2]
    rows = re.findall(r"^\| (.*?) \| (.*?) \| (.*?) \|$", table, re.M)[1:]
    assert len(rows) > 20
    for command, _, held in rows:
        tests = re.findall(r"`(tests/\S+\.py)::(test_\w+)`", held)
        assert tests, command
        for path, name in tests:
            assert f"\ndef {name}(" in (ROOT / path).read_text(encoding="utf-8"), (path, name)


def test_the_tree_on_the_page_on_code_is_there() -> None:
    """Every folder of the package has its line, and every name is a file or a folder."""
    shown, rooms = set(), [ROOT]
    for line in PAGES["docs/code.md"].split("```")[1].strip().splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        words = line.partition("#")[0].replace("...", "").split()
        if depth < 4:  # else the line above goes on
            rooms[depth + 1 :] = [rooms[depth] / words.pop(0)]
        for path in (rooms[-1], *(rooms[-1] / word for word in words)):
            assert path.is_dir() or path.with_suffix(".py").is_file(), path
            shown.add(path)
    inside = {p.parent for folder in PACKAGES for p in (ROOT / folder).rglob("*.py")}
    assert inside <= shown, inside - shown


def modules_named(room: Path) -> tuple[set[str], set[str]]:
    """What a room's ``__init__`` names in its docstring, and what it imports of the room."""
    tree = ast.parse((room / "__init__.py").read_text(encoding="utf-8"))
    named = set(re.findall(r"``([a-z][a-z_\d]*)``", ast.get_docstring(tree) or ""))
    package = f"vlmill.{room.relative_to(ROOT).as_posix().replace('/', '.')}"
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return named, {alias.name for node in froms if node.module == package for alias in node.names}


ROOMS = sorted(
    path.parent.relative_to(ROOT).as_posix()
    for folder in PACKAGES
    for path in (ROOT / folder).rglob("__init__.py")
)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_in_which_order_to_read_it(room: str) -> None:
    """Every file of it is named, and nothing that is not there."""
    files = {path.stem for path in (ROOT / room).glob("*.py")}
    folders = {path.parent.name for path in (ROOT / room).glob("*/__init__.py")}
    named, imported = modules_named(ROOT / room)
    assert named <= files | folders, f"{room} has no {named - files - folders}"
    unnamed = files - named - imported - {"__init__", "__main__"}
    assert not unnamed, f"{room}/__init__.py does not name {unnamed}"


def test_the_page_of_filters_counts_the_features() -> None:
    page = PAGES["docs/filters.md"]
    counted = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", page, re.M))
    assert counted == {group: str(len(names)) for group, names in GROUPS.items()}
    assert f"The scorer uses {len(NAMES)} features." in page
    assert all(f"| `{group}` |" in page for group in IMAGE_GROUPS)
