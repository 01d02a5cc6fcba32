"""Prints the requirements of vlmill with the extras of the argument (all,gcp), one per line.

Images install these before they copy the source, so that a change of the source does not install
torch again. Only setup.py is read, and of it only its lists.
"""

import ast
import sys
from collections.abc import Sequence
from pathlib import Path

SETUP = Path(__file__).resolve().parents[1] / "setup.py"


def read_lists(text: str) -> dict[str, object]:
    """Returns the lists and dicts at the top of setup.py by their names, up to ``EXTRAS``."""
    names: dict[str, object] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List | ast.Dict):
            exec(compile(ast.Module([node], []), str(SETUP), "exec"), {}, names)
        if "EXTRAS" in names:
            break
    return names


def list_requirements(text: str, extras: Sequence[str]) -> list[str]:
    """Returns the distinct requirements. Raises KeyError for an unknown extra."""
    lists = read_lists(text)
    required, by_extra = lists["REQUIRES"], lists["EXTRAS"]
    assert isinstance(required, list) and isinstance(by_extra, dict)
    return list(dict.fromkeys([*required, *(one for name in extras for one in by_extra[name])]))


def main() -> int:
    """Prints the requirements; returns the exit status."""
    extras = [name for words in sys.argv[1:] for name in words.split(",") if name]
    try:
        print("\n".join(list_requirements(SETUP.read_text(encoding="utf-8"), extras)))
    except KeyError as error:
        print(f"setup.py has no extra {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
