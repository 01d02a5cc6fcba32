"""Adds pages to the site of ``docs/``: files outside it, the notebook, commands, the Python
interface, tables and recipes.

The pages of commands come from ``--help`` and the pages of tables from their contracts, so both are
always up to date. A link to a file that is not a page of the site becomes the file's name.
"""

import base64
import io
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import redirect_stdout
from importlib.metadata import Distribution, PackageNotFoundError, distribution, requires
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.structure.files import File
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from vlmill.extract import cli as extract_cli
from vlmill.pipelines.crawl import __main__ as crawl
from vlmill.pipelines.fit_image_filter import __main__ as fit_image_filter
from vlmill.pipelines.fit_scorer import __main__ as fit_scorer
from vlmill.pipelines.hard_negatives import __main__ as hard_negatives
from vlmill.pipelines.manifest import __main__ as manifest
from vlmill.pipelines.nearest_images import __main__ as nearest_images
from vlmill.pipelines.regions import __main__ as regions
from vlmill.pipelines.tables import __main__ as tables
from vlmill.pipelines.web_pairs import __main__ as web_pairs
from vlmill.runtime.settings.plain_fields import flatten, to_plain
from vlmill.schemas.tables import TABLES, Table
from vlmill.train import cli as train_cli
from vlmill.train.recipes import RECIPES, RunSettings, recipe_named
from vlmill.train.recipes.describe import compute_cost, describe_stages
from vlmill.train.tasks.registry import TASKS, task_recipe_named

ROOT = Path(__file__).parents[2]
# Files outside docs/ that are pages of the site, with their paths there.
OUTSIDE_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/RESULTS.md": "results.md",
    "docker/README.md": "images.md",
}
NOTEBOOK = "examples/own_images.ipynb"
SOURCES = {**OUTSIDE_PAGES, NOTEBOOK: "notebook.md"}
# What users import: the page of the Python interface has their docstrings.
PUBLIC = {
    "The package": ("vlmill.load", "vlmill.open_table"),
    "What `load` returns": (
        "vlmill.inference.load.public.Pretrained",
        "vlmill.inference.load.model.Classes",
        "vlmill.inference.load.model.Grounded",
        "vlmill.inference.load.explaining.Explanation",
    ),
    "The services' clients": ("vlmill.client.Client", "vlmill.client.AsyncClient"),
}
Main = Callable[[Sequence[str]], object]
COMMANDS: dict[str, Main] = {
    "extract-rois": lambda words: extract_cli.parser().parse_args(words),
    "train-vl": train_cli.main,
    **{
        f"python -m vlmill.pipelines.{module.__name__.split('.')[-2]}": module.main
        for module in (
            *(crawl, web_pairs, hard_negatives, regions, manifest, tables),
            *(nearest_images, fit_image_filter, fit_scorer),
        )
    },
}
# Recipes that follow a paper's text, each with the recipe of the released code.
PAPER_AND_CODE = (
    ("vilbert-paper", "vilbert"),
    ("vl-bert-paper", "vl-bert-captions"),
    ("vl-bert-paper-end-to-end", "vl-bert-end-to-end"),
    ("interbert", "interbert-released"),
    ("vlmo-images-base-paper", "vlmo-images-base"),
    ("vlmo-texts-base-paper", "vlmo-texts-base"),
    ("vlmo-base-paper", "vlmo-base"),
    ("vqa-vilbert-paper", "vqa-vilbert"),
    ("vqa-vl-bert-paper", "vqa-vl-bert"),
    ("vqa-vlmo-base-paper", "vqa-vlmo-base"),
    ("vcr-vilbert-paper", "vcr-vilbert"),
    ("vcr-vl-bert-paper-q2a", "vcr-vl-bert-q2a"),
    ("vcr-interbert-paper", "vcr-interbert"),
    ("refcoco-vilbert-paper", "refcoco-vilbert"),
    ("refcoco-vl-bert-paper", "refcoco-vl-bert"),
    ("nlvr2-vlmo-base-paper", "nlvr2-vlmo-base"),
    ("retrieval-vilbert-paper", "retrieval-vilbert"),
    ("retrieval-interbert-paper", "retrieval-interbert"),
    ("retrieval-vlmo-base-paper-coco", "retrieval-vlmo-base-coco"),
)
_LINK = re.compile(r"(!?)\[([^\]\n]*(?:\n[^\]\n]*)?)\]\(([^()\s]+)\)")
_SUBCOMMANDS = re.compile(r"^positional arguments:\n  \S+\n((?:    .*\n)+)", re.M)

SHIM = re.compile(r'<script src="(https:[^"]+/iframe-worker/shim)"></script>')


def on_config(config: Any) -> Any:
    """Links the pages to the repository that a workflow of a host builds them for."""
    server, name = (os.environ.get(f"GITHUB_{part}") for part in ("SERVER_URL", "REPOSITORY"))
    if server and name:
        config.repo_url, config.repo_name = f"{server}/{name}", name
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are not in ``docs/``."""
    for source, page_path in OUTSIDE_PAGES.items():
        files.append(File.generated(config, page_path, content=(ROOT / source).read_text("utf-8")))
    text, images = notebook_page((ROOT / NOTEBOOK).read_text("utf-8"))
    files.append(File.generated(config, "notebook.md", content=text))
    for name, content in images.items():
        files.append(File.generated(config, name, content=content))
    files.append(File.generated(config, "commands.md", content=commands_page()))
    files.append(File.generated(config, "api.md", content=api_page()))
    files.append(File.generated(config, "contracts.md", content=tables_page()))
    files.append(File.generated(config, "switches.md", content=switches_page()))
    files.append(File.generated(config, "model-cards.md", content=model_cards_page()))
    files.append(File.generated(config, "licences.md", content=licences_page()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Converts links between files of the repository to links between pages."""
    page_path = page.file.src_uri
    source = next(
        (path for path, page_name in SOURCES.items() if page_name == page_path),
        f"docs/{page_path}",
    )
    pages = {file.src_uri for file in files}
    return with_links(markdown, source, page_path, pages)


def with_links(markdown: str, source: str, page_path: str, pages: set[str]) -> str:
    """Returns a file of the repository as the page at ``page_path``, with links between pages."""

    def link(found: re.Match[str]) -> str:
        mark, text, target = found.groups()
        if target.startswith(("http://", "https://", "mailto:", "#")):
            return found.group()
        path, _, part = target.partition("#")
        file_path = normpath((PurePosixPath(source).parent / path).as_posix())
        target_page = SOURCES.get(file_path, file_path.removeprefix("docs/"))
        if target_page not in pages:
            return text if text.startswith("`") else f"{text} (`{file_path}`)"
        where = relpath(target_page, PurePosixPath(page_path).parent.as_posix())
        return f"{mark}[{text}]({where}{'#' if part else ''}{part})"

    return _LINK.sub(link, markdown)


def read_help(main: Main, words: Sequence[str]) -> str:
    """Returns the output of a command with ``--help``."""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            main([*words, "--help"])
    except SystemExit as left:
        if left.code:
            raise RuntimeError(f"{' '.join(words)} --help ended with status {left.code}") from None
    return printed.getvalue()


def helps(name: str, main: Main, words: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yields a command with its help, then its subcommands with theirs."""
    text = read_help(main, words)
    yield " ".join((name, *words)), text
    listed = _SUBCOMMANDS.search(text)
    for sub in re.findall(r"^    ([a-z]\S*)", listed.group(1), re.M) if listed else ():
        yield from helps(name, main, (*words, sub))


def notebook_page(content: str) -> tuple[str, dict[str, bytes]]:
    """Returns a notebook with its saved outputs as a page, and the images of the outputs."""
    parts, images = [], dict[str, bytes]()
    for cell in json.loads(content)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"notebook-{len(images) + 1}.png"
                images[name] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![Output of the cell above]({name})")
            else:
                text = "".join(output.get("text", data.get("text/plain", "")))
                parts.append(f"```text\n{text.rstrip()}\n```")
    parts.append(f"The notebook itself is `{NOTEBOOK}`.\n")
    return "\n\n".join(parts), images


def api_page() -> str:
    """Returns the page of the Python interface: directives for mkdocstrings."""
    parts = ["# The Python interface\n", "The docstrings of what users import.\n"]
    for title, names in PUBLIC.items():
        parts += [f"## {title}\n", *(f"::: {name}\n" for name in names)]
    return "\n".join(parts)


def commands_page() -> str:
    """Returns the page with the help of every command."""
    parts = ["# Commands\n\nThe `--help` of every command.\n"]
    for name, main in COMMANDS.items():
        for title, text in helps(name, main):
            depth = "##" if title == name else "###"
            parts.append(f"{depth} `{title}`\n\n```text\n{text.rstrip()}\n```\n")
    return "\n".join(parts)


def tables_page() -> str:
    """Returns the page with the columns of every table."""
    intro = "# Contracts\n\nThe columns of every table; [tables.md](tables.md) describes them.\n"
    return "\n".join([intro, *map(table_section, TABLES.values())])


def table_section(table: Table) -> str:
    """Returns a table's columns with their Arrow types, and whether nulls are allowed."""
    rows = [
        f"| `{field.name}` | `{field.type}` | {'may be null' if field.nullable else 'required'} |"
        for field in table.schema
    ]
    head = f"## `{table.name}`, version {table.version}\n\n| column | type | |\n|---|---|---|"
    return "\n".join([head, *rows, ""])


def switches_page() -> str:
    """Returns the page of fields that differ between a paper's recipe and its released code's."""
    intro = (
        "# Paper and code\n",
        "Every field that differs between the recipe of a paper's text and the recipe of its "
        "released code. `field=value` at the end of a command sets a field; "
        "[architecture.md](architecture.md) shows where the fields are defined.\n",
    )
    return "\n".join([*intro, *(switches_section(*pair) for pair in PAPER_AND_CODE)])


def switches_section(paper: str, code: str) -> str:
    """Returns a table of the fields that differ between two recipes, with their values."""
    ours, theirs = recipe_fields(paper), recipe_fields(code)
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    rows = [
        f"| `{name}` | {format_value(ours, name)} | {format_value(theirs, name)} |"
        for name in names
    ]
    head = (f"## `{paper}` and `{code}`\n", "| field | paper | released |", "|---|---|---|")
    return "\n".join([*head, *rows, ""])


def recipe_fields(recipe: str) -> dict[str, Any]:
    """Returns a recipe's fields by their dotted names, without its name and descriptions."""
    made = recipe_named(recipe) if recipe in RECIPES else task_recipe_named(recipe)
    flat = flatten(to_plain(made))
    return {
        name.removeprefix("stages.0."): value
        for name, value in flat.items()
        if name not in ("name", "about", "needs")
    }


def format_value(fields: dict[str, Any], name: str) -> str:
    """Returns a field's value, or a dash without one."""
    return f"`{fields[name]}`" if name in fields else "–"


def model_cards_page() -> str:
    """Returns the page of the models that the recipes train, and their data."""
    intro = (
        "# Model cards\n",
        "vlmill publishes no weights: these are the models that its recipes train, by variant and "
        "by task. `train-vl push` writes the card of a trained model, with its data, figures and "
        "licences ([own-images.md](own-images.md)); `train-vl show DIR` prints the same facts. "
        "The [results](results.md) have the figures of the small models.\n",
        "`train-vl recipes show NAME` prints every setting. Do not use these models for decisions "
        "about people: they repeat the biases of their training data.\n",
    )
    by_variant: dict[str, list[RunSettings]] = {}
    for name in RECIPES:
        recipe = recipe_named(name)
        by_variant.setdefault(recipe.variant, []).append(recipe)
    sections: dict[str, Sequence[RunSettings]] = {
        **by_variant,
        **{f"{task}, fine-tuned": TASKS[task].make_recipes() for task in TASKS},
    }
    return "\n".join([*intro, *(cards_section(*section) for section in sections.items())])


def cards_section(title: str, recipes: Sequence[RunSettings]) -> str:
    """Returns a table of recipes: model, number of parameters, training and inputs."""
    rows = [
        f"| `{one.name}` | {one.about} | {compute_cost(one).parameters / 1e6:,.1f} | "
        f"{describe_stages(one)} "
        f"| {one.needs or '–'} |"
        for one in recipes
    ]
    head = f"## {title}\n\n| recipe | model | million parameters | trained for | needs |"
    return "\n".join([head, "|---|---|---|---|---|", *rows, ""])


def licences_page() -> str:
    """Returns the page of vlmill's dependencies, direct and indirect, with their licences."""
    asked = {canonicalize_name(Requirement(line).name) for line in requires("vlmill") or ()}
    exact = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    brought = {canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", exact, re.M)}
    intro = (
        "vlmill's own licence is Apache-2.0. The licences of other packages are quoted from their "
        "metadata.\n"
    )
    return "\n".join(
        [
            *("# Licences\n", intro),
            "## Direct dependencies of vlmill and its extras\n",
            *licence_rows(asked),
            "\n## Indirect dependencies\n",
            "From `constraints.txt`: the packages that were installed when this page was built.\n",
            *licence_rows(brought - asked),
            "",
        ]
    )


def licence_rows(names: Collection[str]) -> list[str]:
    """Returns a table of the packages that are installed here."""
    rows = [
        f"| {name} | {whole.version} | {find_licence(whole)} |"
        for name in sorted(names)
        if (whole := _installed(name))
    ]
    return ["| package | version | licence |", "|---|---|---|", *rows]


def find_licence(package: Distribution) -> str:
    """Returns the licence in a package's metadata: expression, classifiers or first line."""
    data = package.metadata.json
    classifiers = [str(one) for one in data.get("classifier", ())]
    classified = [one.split(" :: ")[-1] for one in classifiers if "License ::" in one]
    said = str(data.get("license_expression") or ", ".join(classified) or data.get("license", ""))
    return said.strip().partition("\n")[0] or "not stated in its metadata"


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:  # of an extra that is not installed here
        return None


def on_post_page(output: str, **_: Any) -> str:
    """Keeps the script by which the theme searches in pages opened as files to these: served pages
    search without it, and nothing is fetched from elsewhere when one is read.
    """
    write = r"""document.write("<script src='\1'><\\/script>")"""
    return SHIM.sub(rf'<script>if (location.protocol === "file:") {write}</script>', output)


on_post_template = on_post_page  # the page for addresses that do not exist
