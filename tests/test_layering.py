"""Imports between folders, and between the packages of a folder, follow the layers."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"schemas", "runtime", "models", "extract", "train", "inference", "pipelines"}
COMMAND_LINES = ("extract/cli.py", "train/cli.py")
HEAVY = {"torch", "torchvision", "apache_beam", "accelerate", "tokenizers", "faiss", "sklearn"}
MAY_IMPORT: dict[str, set[str]] = {
    "schemas": set(),
    "runtime": {"schemas"},
    "models": {"schemas", "torch", "torchvision"},
    "extract": {"schemas", "runtime", "models", "torch", "torchvision", "accelerate"},
    "train": {
        *("schemas", "runtime", "models", "extract"),
        *("torch", "accelerate", "tokenizers", "faiss"),
    },
    "inference": {
        *("schemas", "runtime", "models", "extract", "train"),
        *("torch", "accelerate", "tokenizers", "faiss"),
    },
    "pipelines": {"schemas", "runtime", "sklearn"},
}
# What runs networks brings them to Beam: one job the engine of extraction.
EXCEPTIONS: dict[str, set[str]] = {
    # Beam is loaded where a job is started on it.
    **{
        f"runtime/units/{name}.py": {"apache_beam"}
        for name in (
            *("run_beam", "launch/options", "launch/clusters"),
            "launch/flink_worker",
        )
    },
    # The file systems that Beam alone knows.
    "pipelines/web_pairs/archives.py": {"apache_beam"},
    "pipelines/web/archives/reading.py": {"apache_beam"},
    "pipelines/regions/__main__.py": {"extract"},
    "pipelines/regions/job.py": {"extract"},
    # An image filter may have a network as its backbone.
    "pipelines/filters/backbone.py": {"models", "torch", "torchvision"},
    # Curves of the runs that train, in whichever folder.
    "runtime/console/trackers.py": {"accelerate"},
    # Threads and devices of the library that two jobs search with.
    "runtime/console/threads.py": {"faiss"},
    # How their processes are brought together, and whether one of them was asked to stop.
    "runtime/console/process_group.py": {"accelerate", "torch"},
    "runtime/console/stopping.py": {"accelerate", "torch"},
    # RoIAlign with gradients.
    "train/detector/losses.py": {"torchvision"},
    # The unpickler of strangers' files.
    "pipelines/nearest_images/published.py": {"models"},
    "pipelines/manifest/sets/refcoco.py": {"models"},
    # The two command lines are the top floor, above all folders.
    **dict.fromkeys(COMMAND_LINES, OURS),
}

# The rooms of a folder, floor by floor from the bottom: a room may import what lies on the floors
# below its own, and no other room of its floor. A file beside the rooms is a room of its own.
FLOORS: dict[str, tuple[str, ...]] = {
    "schemas": (
        "errors ids names plain_json plurals",
        "tables rejects answers labels splits",
        "images",
        "__init__",
    ),
    "runtime": (
        "bus_errors settings extras cores memory",
        "processes",
        "bounded_calls",
        "files",
        "readers console net client",
        "units service weights",
        "__init__",
    ),
    "models": (
        "config_checks positions convert rows probes",
        "inputs detector",
        "outputs",
        "layers/cpu layers/gpu",
        "layers",
        "bert imagebert interbert vilbert vlbert vlmo",
        "beit",
        "registry",
        "from_bert published",
        "from_beit",
        "__init__",
    ),
    "extract": (
        "config",
        "images image_level weights",
        "detect formats",
        "run show verify compare",
        "service",
        "flags from_flags",
        "cli",
        "__init__",
    ),
    "train": (
        "settings",
        "devices loading",
        "optim objectives checkpoints",
        "recipes",
        "run",
        "detector tasks",
        "cli",
        "__init__",
    ),
    "inference": (
        "search convert show",
        "load",
        "push service export",
        "__init__",
    ),
    "pipelines": (
        "rules judging",
        "web/texts",
        "web/pages filters",
        "web/archives web/choice",
        "web/fetching",
        "web manifest/cleaning manifest/reading manifest/part",  # of tables of others
        "web_pairs hard_negatives nearest_images manifest regions crawl fit_image_filter "
        "fit_scorer tables",
        "__init__",
    ),
}
# Rooms that open to few of those above: room -> who enters.
DOORS: dict[str, dict[str, set[str]]] = {
    "models": {
        "detector": {"vlbert"},  # its Fast R-CNN is trained with it
        "vlmo": {"beit", "from_beit", "registry"},
    },
}
NESTED = {  # rooms inside rooms
    *("layers/cpu", "layers/gpu"),
    *("manifest/cleaning", "manifest/reading", "manifest/part"),
    *(f"web/{room}" for room in ("archives", "choice", "fetching", "pages", "texts")),
}


DOTTED = re.compile(r"vlmill(\.\w+)+")  # a module in a string: some table imports it later


def imports(source: str, name: str) -> Iterator[tuple[int, str]]:
    """(line, first part) of every import of a file, ``vlmill.`` stripped."""
    for line, module in modules(source, name):
        yield line, module.removeprefix("vlmill.").split(".")[0]


@cache
def modules(source: str, name: str) -> tuple[tuple[int, str], ...]:
    """(line, module) of every import of a file, by a string too; of ours also the name, which
    may be a module.
    """
    return tuple(_modules(source, name))


def _modules(source: str, name: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source, name)):
        match node:
            case ast.Import(names=aliases):
                found = [alias.name for alias in aliases]
            case ast.ImportFrom(module="vlmill", names=aliases):
                found = [f"vlmill.{alias.name}" for alias in aliases]
            case ast.ImportFrom(module=str(module), level=0, names=aliases):
                ours = module.startswith("vlmill.")
                found = [f"{module}.{a.name}" for a in aliases] if ours else [module]
            case ast.ImportFrom(level=level) if level:
                found = ["a relative import"]
            case ast.Constant(value=str(text)) if DOTTED.fullmatch(text):
                found = [text]
            case _:
                continue
        for module in found:
            yield node.lineno, module


def violations(folder: str, source: str, name: str) -> list[str]:
    """What a file of ``folder`` imports that it may not."""
    allowed = MAY_IMPORT[folder] | EXCEPTIONS.get(name, set()) | {folder}
    banned = (OURS | HEAVY | {"a relative import"}) - allowed
    return [f"{name}:{line} imports {n}" for line, n in imports(source, name) if n in banned]


def room_of(path: str) -> str:
    """The room of ``models/layers/cpu/linear.py`` is ``layers/cpu``, that of a file its name."""
    parts = path.removesuffix(".py").split("/")[1:]
    nested = "/".join(parts[:2])
    return nested if nested in NESTED else parts[0]


def room_named(folder: str, module: str) -> str | None:
    """The room of ``vlmill.models.layers.blocks.Route``; None for another folder's module."""
    head = f"vlmill.{folder}."
    if not module.startswith(head):
        return None
    path = module.removeprefix(head).replace(".", "/")
    known = {room for floor in FLOORS[folder] for room in floor.split()}
    nested = "/".join(path.split("/")[:2])
    if nested in NESTED:
        return nested
    room = path.split("/")[0]
    there = (ROOT / folder / room).exists() or (ROOT / folder / f"{room}.py").exists()
    return room if room in known or there else "__init__"  # a name of the folder's own page


def may_enter(folder: str, room: str) -> set[str]:
    """The rooms that a room may import."""
    floors = [floor.split() for floor in FLOORS[folder]]
    at = next((i for i, floor in enumerate(floors) if room in floor), None)
    if at is None:
        return set()
    doors = DOORS.get(folder, {})
    below = {lower for floor in floors[:at] for lower in floor}
    return {lower for lower in below if lower not in doors or room in doors[lower]} | {room}


def entered(folder: str, source: str, name: str) -> Iterator[tuple[int, str]]:
    """(line, room) of every import inside the folder."""
    for line, module in modules(source, name):
        room = room_named(folder, module)
        if room is not None:
            yield line, room


def wrong_rooms(folder: str, source: str, name: str) -> list[str]:
    """What a file imports of rooms that lie beside or above its own."""
    room = room_of(name)
    allowed = may_enter(folder, room)
    if room not in allowed:
        return [f"{name}: {room} is on no floor of {folder}"]
    return [
        f"{name}:{line}: {room} may not import {to}"
        for line, to in entered(folder, source, name)
        if to not in allowed
    ]


def files_of(folder: str) -> dict[str, str]:
    """The texts of a folder's files by their path."""
    files = sorted((ROOT / folder).rglob("*.py"))
    assert len(files) > 1
    return {f.relative_to(ROOT).as_posix(): f.read_text(encoding="utf-8") for f in files}


def circle(needs: Mapping[str, set[str]]) -> list[str]:
    """Names that import one another in a ring, the first once more at the end; none if none do."""
    left = {name: others - {name} for name, others in needs.items()}
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    if not left:
        return []
    way = [min(left)]
    while way[-1] not in way[:-1]:
        way.append(min(left[way[-1]] & left.keys()))
    return way[way.index(way[-1]) :]


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_follow_the_layers(folder: str) -> None:
    broken = [v for name, text in files_of(folder).items() for v in violations(folder, text, name)]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("folder", "source"),
    [
        ("schemas", "import torch"),
        ("models", "from vlmill.train import cli"),
        ("models", "from vlmill import train"),
        ("models", "import vlmill.runtime.files"),
        ("extract", "def f():\n    import apache_beam.io"),
        ("train", "from vlmill.inference.load.model import load_pretrained"),
        ("pipelines", "from ..schemas import ids"),
    ],
)
def test_the_check_finds_what_it_must(folder: str, source: str) -> None:
    assert violations(folder, source, "x.py")


def test_no_circles_between_folders() -> None:
    ours = {folder: allowed & OURS for folder, allowed in MAY_IMPORT.items()}
    for name, more in EXCEPTIONS.items():
        assert (ROOT / name).is_file()
        if name not in COMMAND_LINES:
            ours[name.split("/")[0]] |= more & OURS
    assert ours.keys() == OURS
    assert not circle(ours)


def test_the_top_of_the_package_imports_what_it_hands_out() -> None:
    path = "src/vlmill/__init__.py"
    source = (ROOT / path).read_text(encoding="utf-8")
    ours = {module for _, module in modules(source, path) if module.startswith("vlmill.")}
    assert ours == {
        "vlmill.runtime.files.reading.open_dataset",
        "vlmill.inference.load.public.Pretrained",
        "vlmill.inference.load.model.load_pretrained",
    }


@pytest.mark.parametrize("folder", FLOORS)
def test_rooms_import_the_floors_below(folder: str) -> None:
    broken = [v for name, text in files_of(folder).items() for v in wrong_rooms(folder, text, name)]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("folder", FLOORS)
def test_every_room_of_the_table_is_there(folder: str) -> None:
    there = {room_of(name) for name in files_of(folder)}
    assert there == {room for floor in FLOORS[folder] for room in floor.split()}


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("runtime/files/x.py", "from vlmill.runtime.readers.regions import RegionReader"),
        ("runtime/readers/x.py", "from vlmill.runtime.console import report"),
        ("models/layers/x.py", "from vlmill.models.vlmo.model import Vlmo"),
        ("models/layers/cpu/x.py", "def f():\n    from vlmill.models.layers.blocks import Route"),
        ("models/bert/x.py", "from vlmill.models.imagebert.model import ImageBert"),
        ("models/vlmo/x.py", "from vlmill.models.beit import model"),
        ("models/vilbert/x.py", "from vlmill.models.detector.boxes import clip_boxes"),
        ("models/vlbert/x.py", "from vlmill.models import preset"),
        ("extract/images/x.py", "from vlmill.extract.detect import predict"),
        ("extract/formats/x.py", "from vlmill.extract import cli"),
        ("pipelines/web_pairs/x.py", "import vlmill.pipelines.manifest.own.job"),
        ("pipelines/web/pages/x.py", "from vlmill.pipelines.web.fetching import journal"),
        ("runtime/console/x.py", "from vlmill.runtime.units.step import Step"),
        ("train/loading/x.py", "from vlmill.train.objectives.losses import IGNORED"),
        ("train/new_room/x.py", "import math"),
        ("train/x.py", "import math"),
        ("train/recipes/x.py", "LATER = 'vlmill.train.tasks.vqa.task'"),
    ],
)
def test_the_check_of_rooms_finds_what_it_must(name: str, source: str) -> None:
    assert wrong_rooms(name.split("/")[0], source, name)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("models/layers/x.py", "from vlmill.models.layers.cpu.linear import Linear"),
        ("models/vlbert/x.py", "from vlmill.models.detector.resnet import Stem"),
        ("extract/cli.py", "from vlmill.extract import show, verify"),
        ("train/run/x.py", "from vlmill.train.run import loop\nfrom vlmill.models import preset"),
    ],
)
def test_the_check_of_rooms_lets_pass_what_it_may(name: str, source: str) -> None:
    assert not wrong_rooms(name.split("/")[0], source, name)


@pytest.mark.parametrize("folder", FLOORS)
def test_no_circles_between_rooms(folder: str) -> None:
    needs: dict[str, set[str]] = {}
    for name, text in files_of(folder).items():
        rooms = {room for _, room in entered(folder, text, name)}
        needs.setdefault(room_of(name), set()).update(rooms)
    assert not circle(needs), " <- ".join(circle(needs))


def test_no_circles_between_files() -> None:
    texts = {name: text for folder in FLOORS for name, text in files_of(folder).items()}
    names = {module_named(name): name for name in texts}
    needs: dict[str, set[str]] = {}
    for name, text in texts.items():
        found = [module for _, module in modules(text, name)]
        whole = {names.get(m) or names.get(m.rpartition(".")[0]) for m in found}
        needs[name] = {other for other in whole if other}
    assert sum(map(len, needs.values())) > len(needs)
    assert not circle(needs), " <- ".join(circle(needs))


def module_named(path: str) -> str:
    """The name under which a file is imported."""
    return "vlmill." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_few_modules_are_named_in_strings() -> None:
    """A reader can jump to what a registry imports, not to what a string names."""
    texts = {name: text for folder in FLOORS for name, text in files_of(folder).items()}
    files = {module_named(name) for name in texts}
    strings = [
        f"{name}:{node.lineno} {node.value}"
        for name, text in texts.items()
        for node in ast.walk(ast.parse(text, name))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and DOTTED.fullmatch(node.value)
        and {node.value, node.value.rpartition(".")[0]} & files
    ]
    assert len(strings) <= 5, "\n".join(strings)


def test_the_check_finds_circles() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) in (["b", "c", "b"], ["c", "b", "c"])
    assert not circle({"a": {"b", "c"}, "b": {"c"}, "c": {"c"}})
    ring = circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert len(ring) == 4 and ring[0] == ring[-1] and len(set(pairwise(ring))) == 3
