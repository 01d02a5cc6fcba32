"""Parity proves what commands run: no recording is compared with code that no command reaches.

A function that a faster one has replaced would go on passing its recording while the other runs.
"""

from functools import cache
from pathlib import Path

import pytest
from tests.behaviour.reached import Tree, reached, read_tree, sources_below

ROOT = Path(__file__).parents[2]
FOLDERS = ("schemas", "runtime", "models", "extract", "train", "inference", "pipelines")
COMMANDS = ("vlmill.extract.cli.main", "vlmill.train.cli.main")
PUBLIC = (
    "vlmill.models.load_reference",
    "vlmill.models.export_reference",
    "vlmill.inference.load.public.Pretrained",  # of vlmill.load
)

# Heads that published files have, and no task of ours asks: read, written back and compared.
OF_PUBLISHED_FILES = {
    "vlmill.models.layers.pair_heads.ScoreHeads.token_scores": "ViLBERT, InterBERT: no task's",
    "vlmill.models.vilbert.tasks.Vilbert12in1.entailment_logits": "12-in-1: SNLI-VE",
    "vlmill.models.vilbert.tasks.Vilbert12in1.gqa_logits": "12-in-1: GQA",
}


@cache
def tree() -> Tree:
    sources: dict[str, str] = {}
    for folder in FOLDERS:
        sources |= sources_below(ROOT / folder, f"vlmill.{folder}")
    return read_tree(sources | sources_below(ROOT / "tests/parity", "tests.parity"))


@cache
def reached_by_commands() -> frozenset[str]:
    jobs = sorted((ROOT / "pipelines").glob("*/__main__.py"))
    assert jobs
    mains = [f"vlmill.pipelines.{path.parent.name}.__main__" for path in jobs]
    return frozenset(reached(tree(), [*COMMANDS, *PUBLIC, *mains]))


@cache
def proved_by_parity() -> frozenset[str]:
    """What the tests of parity use of the package, and methods that only their name tells.

    A method counts when the tests mention its name and no command reaches a method of that name:
    then it cannot be another's.
    """
    whole = tree()
    names = whole.used_by("tests.parity") & whole.definitions()
    asked = whole.attributes_in("tests.parity")
    named = {m for m in whole.methods() if m.rpartition(".")[2] in asked}
    known = {m.rpartition(".")[2] for m in named & reached_by_commands()}
    methods = {m for m in named if m.rpartition(".")[2] not in known}
    return frozenset(name for name in names | methods if name.startswith("vlmill."))


def test_parity_proves_what_commands_reach() -> None:
    proved = proved_by_parity()
    assert len(proved) > 50
    unreached = sorted(proved - reached_by_commands() - OF_PUBLISHED_FILES.keys())
    assert not unreached, f"recordings prove what no command reaches: {', '.join(unreached)}"


@pytest.mark.parametrize("name", OF_PUBLISHED_FILES)
def test_what_is_listed_is_there_and_reached_by_no_command(name: str) -> None:
    assert name in tree().definitions() | tree().methods(), f"{name} is gone: take it off the list"
    assert name not in reached_by_commands(), f"{name} is reached: take it off the list"


def reached_in(sources: dict[str, str], *roots: str) -> set[str]:
    """What is reached in the files of a small package ``p``, without its prefix."""
    return {name.removeprefix("p.") for name in reached(read_tree(sources), roots)}


def test_a_call_reaches_and_an_import_does_not() -> None:
    sources = {
        "p.a": "from p.b import called, imported\ndef main():\n    called()\ndef other(): main()",
        "p.b": "def called(): helper()\ndef helper(): ...\ndef imported(): ...",
    }
    assert reached_in(sources, "p.a.main") == {"a", "b", "a.main", "b.called", "b.helper"}


def test_a_module_is_reached_by_attribute() -> None:
    sources = {
        "p": "",
        "p.a": "import p.b\nfrom p import c as other\ndef main():\n    p.b.f()\n    other.g()",
        "p.b": "def f(): ...\ndef g(): ...",
        "p.c": "def f(): ...\ndef g(): ...",
    }
    reached_names = reached_in(sources, "p.a.main")
    assert {"b.f", "c.g"} <= reached_names and not {"b.g", "c.f"} & reached_names


def test_a_method_is_reached_by_its_name() -> None:
    sources = {
        "p.a": (
            "from p.b import Model\n"
            "def main(): run(Model())\n"
            "def run(model): return model.encode()\n"
        ),
        "p.b": (
            "class Model:\n"
            "    def __init__(self): start()\n"
            "    def encode(self): deep()\n"
            "    def unasked(self): unreached()\n"
            "class Other:\n"
            "    def encode(self): unreached()\n"
            "def start(): ...\n"
            "def deep(): ...\n"
            "def unreached(): ...\n"
        ),
    }
    reached_names = reached_in(sources, "p.a.main")
    assert {"b.Model.__init__", "b.Model.encode", "b.start", "b.deep"} <= reached_names
    assert not {"b.Model.unasked", "b.Other", "b.Other.encode", "b.unreached"} & reached_names


def test_a_method_is_reached_through_a_base_of_another_library() -> None:
    sources = {
        "p.a": (
            "import threading as t\n"
            "class Base(t.Thread): ...\n"
            "class Work(Base):\n"
            "    def run(self): done()\n"
            "    def walk(self): undone()\n"
            "def done(): ...\n"
            "def undone(): ...\n"
            "def main(): Work()\n"
        ),
    }
    reached_names = reached_in(sources, "p.a.main")
    assert {"a.Base", "a.Work.run", "a.done"} <= reached_names
    assert not {"a.Work.walk", "a.undone"} & reached_names


def test_lazy_imports_are_followed() -> None:
    sources = {
        "p": (
            "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n"
            "    from p.b import Face, Unasked\n"
            "if not TYPE_CHECKING:\n"
            "    def __getattr__(name): ...\n"
        ),
        "p.a": (
            "from p import Face\ndef main():\n    from p.c import late as later\n    later(Face)\n"
        ),
        "p.b": "class Face: ...\nclass Unasked: ...",
        "p.c": "def late(face): ...\ndef early(): ...",
    }
    reached_names = reached_in(sources, "p.a.main")
    assert {"b.Face", "c.late"} <= reached_names
    assert not {"b.Unasked", "c.early"} & reached_names


def test_a_table_reaches_what_it_holds() -> None:
    sources = {
        "p.a": "from p.b import TABLE\ndef main(name): return TABLE[name]()",
        "p.b": (
            "from p.c import f, g, h\n"
            "TABLE = {'f': f, 'i': 'p.c:i', 'j': 'c.j'}\n"
            "UNASKED: dict = {'g': g}\n"
        ),
        "p.c": "\n".join(f"def {name}(): ..." for name in "fghij"),
    }
    reached_names = reached_in(sources, "p.a.main")
    assert {"b.TABLE", "c.f", "c.i", "c.j"} <= reached_names
    assert not {"b.UNASKED", "c.g", "c.h"} & reached_names


def test_what_stands_in_a_module_is_reached_with_it() -> None:
    sources = {
        "p.a": "import p.b\nif __name__ == '__main__':\n    p.b.main()",
        "p.b": "def main(): ...\nfor f in (listed,):\n    f()\ndef listed(): ...\ndef g(): ...",
    }
    assert reached_in(sources, "p.a") == {"a", "b", "b.main", "b.listed"}


def test_a_name_of_a_function_is_not_the_modules() -> None:
    sources = {
        "p.a": (
            "def main(f, *, g=k):\n"
            "    h = f(g)\n"
            "    return [i + j(h) for i in h], lambda f: f, type_of\n"
            "def f(): ...\ndef g(): ...\ndef h(): ...\ndef i(): ...\ndef j(): ...\n"
            "def k(): ...\ndef type_of(): ...\n"
        ),
    }
    assert reached_in(sources, "p.a.main") == {"a", "a.main", "a.j", "a.k", "a.type_of"}


def test_a_root_that_is_not_there_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"p\.a\.gone"):
        reached_in({"p.a": "def main(): ..."}, "p.a.gone")
