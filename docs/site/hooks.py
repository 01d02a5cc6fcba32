"""What mkdocs adds to the pages of ``docs/``: the pages beside them, commands and tables.

Commands are what ``--help`` prints, tables what their contracts say: neither can go stale. A link
to a file that is no page of the site becomes the file's name.
"""

import io
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
from vlmill.pipelines.crawl import command as crawl
from vlmill.pipelines.fit_image_filter import command as fit_image_filter
from vlmill.pipelines.fit_scorer import command as fit_scorer
from vlmill.pipelines.hard_negatives import command as hard_negatives
from vlmill.pipelines.manifest import job as manifest
from vlmill.pipelines.nearest_images import command as nearest_images
from vlmill.pipelines.regions import command as regions
from vlmill.pipelines.tables import command as tables
from vlmill.pipelines.web_pairs import command as web_pairs
from vlmill.runtime.settings.plain_fields import flatten, to_plain
from vlmill.schemas.tables import TABLES, Table
from vlmill.train import cli as train_cli
from vlmill.train.recipes import RECIPES, RunSettings, recipe_named
from vlmill.train.recipes.describe import compute_cost, describe_stages
from vlmill.train.tasks.registry import TASKS, task_recipe_named

ROOT = Path(__file__).parents[2]
# Files outside docs/ that are pages of the site: their places there.
BESIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/RESULTS.md": "results.md",
    "docker/README.md": "images.md",
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
# Recipes that follow a paper's text, each beside that of the released code.
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


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that do not lie in ``docs/``."""
    for source, place in BESIDE.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text("utf-8")))
    files.append(File.generated(config, "commands.md", content=commands_page()))
    files.append(File.generated(config, "contracts.md", content=tables_page()))
    files.append(File.generated(config, "switches.md", content=switches_page()))
    files.append(File.generated(config, "model-cards.md", content=model_cards_page()))
    files.append(File.generated(config, "licences.md", content=licences_page()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turns links between files of the repository into links between pages."""
    place = page.file.src_uri
    source = next((path for path, beside in BESIDE.items() if beside == place), f"docs/{place}")
    pages = {file.src_uri for file in files}
    return with_links(markdown, source, place, pages)


def with_links(markdown: str, source: str, place: str, pages: set[str]) -> str:
    """The text of a file of the repository as the page at ``place``, links that lead to pages."""

    def link(found: re.Match[str]) -> str:
        mark, text, target = found.groups()
        if target.startswith(("http://", "https://", "mailto:", "#")):
            return found.group()
        path, _, part = target.partition("#")
        lies = normpath((PurePosixPath(source).parent / path).as_posix())
        leads = BESIDE.get(lies, lies.removeprefix("docs/"))
        if leads not in pages:
            return text if text.startswith("`") else f"{text} (`{lies}`)"
        where = relpath(leads, PurePosixPath(place).parent.as_posix())
        return f"{mark}[{text}]({where}{'#' if part else ''}{part})"

    return _LINK.sub(link, markdown)


def help_of(main: Main, words: Sequence[str]) -> str:
    """What a command prints with ``--help``."""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            main([*words, "--help"])
    except SystemExit as left:
        if left.code:
            raise RuntimeError(f"{' '.join(words)} --help ended with status {left.code}") from None
    return printed.getvalue()


def helps(name: str, main: Main, words: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """A command and what its help says, then its subcommands'."""
    text = help_of(main, words)
    yield " ".join((name, *words)), text
    listed = _SUBCOMMANDS.search(text)
    for sub in re.findall(r"^    ([a-z]\S*)", listed.group(1), re.M) if listed else ():
        yield from helps(name, main, (*words, sub))


def commands_page() -> str:
    """Every command with its help, as a page."""
    parts = ["# Commands\n\nEvery command, as its `--help` prints it.\n"]
    for name, main in COMMANDS.items():
        for title, text in helps(name, main):
            depth = "##" if title == name else "###"
            parts.append(f"{depth} `{title}`\n\n```text\n{text.rstrip()}\n```\n")
    return "\n".join(parts)


def tables_page() -> str:
    """Every table with its columns, as a page."""
    intro = "# Contracts\n\nThe columns of every table; [what they hold](tables.md).\n"
    return "\n".join([intro, *map(table_section, TABLES.values())])


def table_section(table: Table) -> str:
    """A table's columns: Arrow type, and whether nulls are allowed."""
    rows = [
        f"| `{field.name}` | `{field.type}` | {'may be null' if field.nullable else 'required'} |"
        for field in table.schema
    ]
    head = f"## `{table.name}`, version {table.version}\n\n| column | type | |\n|---|---|---|"
    return "\n".join([head, *rows, ""])


def switches_page() -> str:
    """Every field in which a paper's recipe differs from its released code's, as a page."""
    intro = (
        "# Paper and code\n",
        "Every field in which the recipe of a paper's text differs from that of its released code. "
        "`field=value` behind a command sets one; "
        "[what to add where](architecture.md) says where they stand.\n",
    )
    return "\n".join([*intro, *(switches_section(*pair) for pair in PAPER_AND_CODE)])


def switches_section(paper: str, code: str) -> str:
    """Two recipes beside each other: the fields that differ, and their values."""
    ours, theirs = fields_of(paper), fields_of(code)
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    rows = [f"| `{name}` | {shown(ours, name)} | {shown(theirs, name)} |" for name in names]
    head = (f"## `{paper}` and `{code}`\n", "| field | paper | released |", "|---|---|---|")
    return "\n".join([*head, *rows, ""])


def fields_of(recipe: str) -> dict[str, Any]:
    """A recipe's fields by their dotted names, but for what only describes it."""
    made = recipe_named(recipe) if recipe in RECIPES else task_recipe_named(recipe)
    flat = flatten(to_plain(made))
    return {
        name.removeprefix("stages.0."): value
        for name, value in flat.items()
        if name not in ("name", "about", "needs")
    }


def shown(fields: dict[str, Any], name: str) -> str:
    """A field's value, or that there is none."""
    return f"`{fields[name]}`" if name in fields else "–"


def model_cards_page() -> str:
    """What a model of each recipe is and was trained on, as a page."""
    intro = (
        "# Model cards\n",
        "vlmill publishes no weights: these are the models that its recipes make, by variant and "
        "by task. Of a trained one `train-vl push` writes the card, with its data, its figures and "
        "its licences ([your own images](own-images.md)); `train-vl show DIR` tells the same. "
        "What the small ones reach stands in the [results](results.md).\n",
        "`train-vl recipes show NAME` prints every setting. None is for deciding about people: "
        "what their data say of people, models repeat.\n",
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
    """A table of recipes: what each makes, of how many parameters, from what."""
    rows = [
        f"| `{one.name}` | {one.about} | {compute_cost(one).parameters / 1e6:,.1f} | "
        f"{describe_stages(one)} "
        f"| {one.needs or '–'} |"
        for one in recipes
    ]
    head = f"## {title}\n\n| recipe | what it is | million parameters | trained for | needs |"
    return "\n".join([head, "|---|---|---|---|---|", *rows, ""])


def licences_page() -> str:
    """The packages that vlmill and its extras ask for, what these bring, and their licences."""
    asked = {canonicalize_name(Requirement(line).name) for line in requires("vlmill") or ()}
    exact = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    brought = {canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", exact, re.M)}
    said = "vlmill's own licence is Apache-2.0. Those of other packages are in their own words.\n"
    return "\n".join(
        [
            *("# Licences\n", said),
            "## What vlmill and its extras ask for\n",
            *licence_rows(asked),
            "\n## What these bring along\n",
            "By `constraints.txt`, as far as it is installed where this page was made.\n",
            *licence_rows(brought - asked),
            "",
        ]
    )


def licence_rows(names: Collection[str]) -> list[str]:
    """A table of those of the packages that are installed here."""
    rows = [
        f"| {name} | {whole.version} | {licence_of(whole)} |"
        for name in sorted(names)
        if (whole := _installed(name))
    ]
    return ["| package | version | licence |", "|---|---|---|", *rows]


def licence_of(package: Distribution) -> str:
    """The licence in a package's metadata: its expression, classifiers, or first line of text."""
    data = package.metadata.json
    classifiers = [str(one) for one in data.get("classifier", ())]
    classified = [one.split(" :: ")[-1] for one in classifiers if "License ::" in one]
    said = str(data.get("license_expression") or ", ".join(classified) or data.get("license", ""))
    return said.strip().partition("\n")[0] or "not said in its metadata"


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:  # of an extra that is not installed here
        return None
