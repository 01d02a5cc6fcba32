"""Prints the table of published weights: on a terminal, and as the page docs/weights.md.

``python -m vlmill.runtime.weights.listing`` prints the page.
"""

import argparse
from collections.abc import Iterator

from vlmill.runtime.weights.published import Kind, Published, published
from vlmill.schemas.errors import InputError

TITLES: dict[Kind, str] = {"detector": "Detectors", "model": "Models"}
TAKES: dict[Kind, str] = {
    "detector": "--weights takes an address, hf://OWNER/NAME, or the file",
    "model": "--checkpoint takes an address, hf://OWNER/NAME, or the file",
}
HEAD = """\
# Published weights

Detectors of region features, and the checkpoints of the five papers, of BERT, BEiT, ViT and of
DALL-E's tokenizer: their addresses, mirrors, addresses that are known to be gone, licence, size,
and the command that uses them. `extract-rois weights` and `train-vl weights` print the same table.

The facts are those of the public pages and threads that each row names. No file was downloaded to
check them, so an address may have stopped working since. A SHA-256 is given only where public
material states it; a file from that address is compared with it. "The repository" means the
licence of the code: most authors state none for the weights.

## Names of weights

`--weights`, `--init`, `--checkpoint`, `--backbone` and `vlmill.load` take a path or a name:

| name | files |
|---|---|
| `hf://OWNER/NAME` | the files of a repository of the hub that the command reads |
| `hf://OWNER/NAME/PATH@REVISION` | a file or a folder of it, at a commit, tag or branch |
| `https://HOST/FILE` | that file |
| `https://HOST/FOLDER/` | a detector or a checkpoint that vlmill wrote |

Of a detector's repository, the weights and `config.yaml` are read: `pytorch_model.bin` or
`model.safetensors`, also in several files with their index, or else the only file of weights.
`config.yaml` is then used as `--config`. `convert` reads the weights, the configuration and
the vocabulary. `--init`, `--checkpoint` and `vlmill.load` read checkpoints of vlmill, and refuse a
repository with a pickle in it. A local folder with the same files is read like the repository.

A name may end in `#sha256=` and the 64 digits that the file must have; `http://` needs that. Files
of the hub are kept in the cache of its library (`HF_HUB_CACHE`), with `HF_TOKEN` and `HF_ENDPOINT`
in their usual meaning; other files are kept in `VLMILL_CACHE` (`~/.cache/vlmill`). An interrupted
download continues, and a complete file is not fetched again unless you delete it. Addresses
must be public. Pickles are read as plain data, and refused if they contain anything else.
"""
FOOT = """
Files without an address for programs, and those on Google Drive or SharePoint that ask for a
browser, are downloaded by hand; `--weights FILE` then takes them.
"""


def add_weights_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``weights``."""
    parser.description = "Lists published weights: addresses, mirrors, licences, sizes, commands."
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="rows to print (default: all; also a family)"
    )


def list_weights(kind: Kind, names: list[str]) -> int:
    """Prints the rows of one kind that have these names or families; returns the exit status.

    Raises InputError for a name that no row has.
    """
    rows = [row for row in published() if row.kind == kind]
    known = {name for row in rows for name in (row.name, row.family)}
    if unknown := [name for name in names if name not in known]:
        every = ", ".join(row.name for row in rows)
        raise InputError(f"{unknown[0]}: no such row; give one of {every}")
    chosen = [row for row in rows if not names or row.name in names or row.family in names]
    print("\n\n".join("\n".join(describe(row)) for row in chosen))
    print(f"\n{TAKES[kind]} (docs/weights.md)")
    return 0


def describe(row: Published) -> Iterator[str]:
    """Yields the lines of one row for a terminal."""
    yield row.name
    for label, text in row.facts:
        yield f"  {label:10}{text}"
    yield f"  {'command':10}{row.command}"


def render_page() -> str:
    """Returns the page of the documentation."""
    parts = [HEAD]
    for kind, title in TITLES.items():
        parts.append(f"\n## {title}\n")
        for row in published():
            if row.kind == kind:
                facts = "\n".join(f"- {label}: {_linked(text)}" for label, text in row.facts)
                parts.append(
                    f"\n### {row.name}\n\n{facts}\n\n"
                    f"<!-- needs: the network -->\n```sh\n{row.command}\n```\n"
                )
        if kind == "detector":
            parts.append(FOOT)
    return "".join(parts)


def _linked(text: str) -> str:
    """Returns a text with addresses as code, so that no page links to dead addresses."""
    words = text.split(" ")
    return " ".join(f"`{word}`" if "://" in word else word for word in words)


if __name__ == "__main__":
    print(render_page(), end="")
