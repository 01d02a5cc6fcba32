"""Which definitions of a package its commands reach, by what each one mentions; nothing is run.

A definition is a function, a class, a method, or a name that a module assigns. It is reached when
reached code mentions it: calls it, puts it into a table, names it in an annotation. What is unsure
counts as reached. Methods of a reached class are reached when reached code mentions an attribute of
their name, whatever it is an attribute of, or when a base class of another library has one. Code
that stands in a module outside its definitions is reached with the module. An import alone reaches
the module and none of its names.
"""

import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.behaviour.mentions import Module, Unit, is_special, read_module


@dataclass(kw_only=True)
class Tree:
    """The modules of a package by name."""

    modules: Mapping[str, Module]

    def key(self, module: str, path: str) -> str | None:
        """The definition or the module that a path in ``module`` stands for, by its full name."""
        if path.startswith(".."):  # of a table: as seen from the module or from its package
            seen_from = (module, module.rpartition(".")[0])
            keys = (self.absolute(f"{place}.{path[2:]}") for place in seen_from)
            return next((key for key in keys if key not in (None, *seen_from)), None)
        head, dot, tail = path.partition(".")
        if head in self.modules[module].definitions:
            return f"{module}.{head}"
        if head in self.modules[module].aliases:
            return self.absolute(f"{self.modules[module].aliases[head]}{dot}{tail}")
        return self.absolute(path)

    def absolute(self, path: str, *, seen: frozenset[str] = frozenset()) -> str | None:
        """The same of a full path; None for what is not of this package."""
        if path in self.modules:
            return path
        parts = path.split(".")
        for end in range(len(parts) - 1, 0, -1):
            name, head = ".".join(parts[:end]), parts[end]
            if name not in self.modules:
                continue
            module = self.modules[name]
            if head in module.definitions:
                return f"{name}.{head}"
            if head in module.aliases and path not in seen:
                rest = ".".join([module.aliases[head], *parts[end + 1 :]])
                return self.absolute(rest, seen=seen | {path})
            return name
        return None

    def uses(self, module: str, unit: Unit) -> set[str]:
        """The definitions and modules that a unit mentions or imports, by their full names."""
        paths = {self.key(module, path) for path in unit.paths}
        modules = {self.home(path) for path in unit.imported}
        return {key for key in paths | modules if key is not None}

    def inside(self, package: str) -> Iterator[tuple[str, Unit]]:
        """The units of a package's modules, each with its module's name."""
        for module in self.modules.values():
            if f"{module.name}.".startswith(f"{package}."):
                methods = [unit for units in module.methods.values() for unit in units.values()]
                for unit in [module.rest, *module.definitions.values(), *methods]:
                    yield module.name, unit

    def used_by(self, package: str) -> set[str]:
        """The definitions and modules that any code of a package mentions or imports."""
        return {key for module, unit in self.inside(package) for key in self.uses(module, unit)}

    def attributes_in(self, package: str) -> set[str]:
        """The names of attributes that any code of a package mentions."""
        return {name for _, unit in self.inside(package) for name in unit.attributes}

    def home(self, path: str) -> str | None:
        """The module that an import of ``path`` loads."""
        while path and path not in self.modules:
            path = path.rpartition(".")[0]
        return path or None

    def packages(self, module: str) -> set[str]:
        """A module and the packages around it, which are loaded with it."""
        parts = module.split(".")
        names = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
        return names & self.modules.keys()

    def definitions(self) -> set[str]:
        return {f"{m.name}.{name}" for m in self.modules.values() for name in m.definitions}

    def methods(self) -> set[str]:
        return {
            f"{m.name}.{cls}.{name}"
            for m in self.modules.values()
            for cls, methods in m.methods.items()
            for name in methods
            if not is_special(name)
        }

    def inherited(self, module: str, cls: str) -> Iterator[type]:
        """The bases of a class that come from elsewhere, through its bases from here."""
        for base in self.modules[module].bases.get(cls, ()):
            key = self.key(module, base)
            if key is not None:
                home = self.home(key)
                assert home is not None
                if key != home:
                    yield from self.inherited(home, key.removeprefix(f"{home}."))
                continue
            head, dot, tail = base.partition(".")
            aliases = self.modules[module].aliases
            foreign = loaded(f"{aliases.get(head, f'builtins.{head}')}{dot}{tail}")
            if isinstance(foreign, type):
                yield foreign


@cache
def loaded(path: str) -> object:
    """The object of another library that a full path names; None if there is none."""
    module, dot, name = path.rpartition(".")
    if not dot:
        return None
    if (holder := loaded(module)) is not None:
        return getattr(holder, name, None)
    try:
        return getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError:
        return None


def reached(tree: Tree, roots: Iterable[str]) -> set[str]:
    """The full names of the modules, definitions and methods that ``roots`` lead to.

    Raises LookupError for a root that is not there.
    """
    names: set[str] = set()
    attributes: set[str] = set()
    waiting = {root_key(tree, root) for root in roots}
    while waiting:
        for name in waiting:
            module, unit = unit_of(tree, name)
            waiting = waiting | tree.uses(module, unit) | tree.packages(module)
            attributes |= unit.attributes
            names.add(name)
        waiting = (waiting | methods_of(tree, names, attributes)) - names
    return names


def root_key(tree: Tree, root: str) -> str:
    key = tree.absolute(root)
    if key is None or (key in tree.modules and root not in tree.modules):
        raise LookupError(f"no {root} to start from")
    return key


def unit_of(tree: Tree, name: str) -> tuple[str, Unit]:
    """The module of a full name, and what the name's code mentions."""
    home = tree.home(name)
    assert home is not None
    module = tree.modules[home]
    first, _, method = name.removeprefix(home).removeprefix(".").partition(".")
    if method:
        return home, module.methods[first][method]
    return home, module.definitions[first] if first else module.rest


def methods_of(tree: Tree, names: set[str], attributes: set[str]) -> set[str]:
    """The methods that reached code may call, of the classes among ``names``."""
    return {
        f"{module.name}.{cls}.{method}"
        for module in tree.modules.values()
        for cls, methods in module.methods.items()
        if f"{module.name}.{cls}" in names
        for method in methods
        if method in attributes
        or is_special(method)
        or any(hasattr(base, method) for base in tree.inherited(module.name, cls))
    }


def read_tree(sources: Mapping[str, str]) -> Tree:
    """The tree of files' texts by the full names of their modules."""
    return Tree(modules={name: read_module(name, text) for name, text in sources.items()})


def sources_below(folder: Path, package: str) -> dict[str, str]:
    """The texts of a folder's files, by the names that they have as modules of ``package``."""
    texts = {}
    for path in sorted(folder.rglob("*.py")):
        inner = path.relative_to(folder).with_suffix("").parts
        name = ".".join([package, *(part for part in inner if part != "__init__")])
        texts[name] = path.read_text(encoding="utf-8")
    return texts
