"""Lists recipes, and prints one as YAML for ``--config``."""

import argparse
from collections.abc import Callable, Collection, Iterable
from typing import Any

from vlmill.runtime.settings.plain_fields import to_yaml
from vlmill.schemas.errors import InputError


def add_recipes_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of :func:`run_recipes`."""
    parser.add_argument("action", nargs="?", choices=("list", "show"), default="list")
    parser.add_argument("name", nargs="?", metavar="NAME", help="recipe to print (with `show`)")


def run_recipes(
    arguments: argparse.Namespace,
    names: Collection[str],
    find_recipe: Callable[[str], Any],
    describe_recipes: Callable[[], Iterable[str]],
    notes: Iterable[str] = (),
) -> int:
    """Prints the lines of all recipes, or one recipe below comments; returns the exit status, 0.

    Raises InputError without the name of a recipe, like ``find_recipe`` for an unknown one.
    """
    if arguments.action == "list":
        print("\n".join(describe_recipes()))
        return 0
    if arguments.name is None:
        raise InputError(f"recipes show: name a recipe; there are {', '.join(names)}")
    recipe = find_recipe(arguments.name)
    for note in notes:
        print(f"# {note}")
    print(to_yaml(recipe), end="")
    return 0
