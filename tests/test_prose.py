"""Counts words that make texts hard to read; no count may rise.

Each entry of :data:`WORDS` makes a sentence hard to read; its value is what to write instead. A hit
may be right in its sentence, so :data:`LIMITS` bounds how many there are per 1,000 words of a group
of texts. A change that lowers a count lowers its limit; no change raises one.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORDS = {
    r"\bbeside\b": "next to, in addition to, compared with",
    r"\bbehind\b": "after",
    r"\b(tells?|told|telling)\b": "prints, reports, records",
    r"\b(says?|said|saying)\b": "states, prints, defines",
    r"\b(lies?|lay)\b": "is, is stored in",
    r"\b(stands?|stood)\b": "is, is listed in",
    r"\bgo(es)? on\b": "continues",
    r"\b(comes?|came) again\b": "is repeated, repeatable",
    r"\b(one's|someone's|anyone's) own\b|\bof (its|their|our) own\b": "its own X, your own X",
    r"\b(is|are|was|were) none\b|\b(is|are) no\b": "is not a, does not exist",
    r"\bat hand\b|\bto be had\b|\bcan(not)? be had\b": "available",
    r"\bput together\b": "merged, concatenated",
    r"\bdivided by commas\b|\bparted\b": "separated by",
    r"\bwho(ever|soever)\b|\bwhatever\b|\bwherever\b": "any, regardless of",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bstrangers?'?\b": "untrusted, third-party",
    r"\bat once\b": "immediately, in one pass",
    r"\bso (many|long|much|often)\b": "a number, a duration",
    r"\b(for|by) (itself|themselves)\b": "separately, alone",
    r"\btaken for\b": "treated as",
    r"\bleft (away|out)\b|\bleaves? (away|out)\b": "omit, exclude, remove",
    r"\bpictures?\b": "image",
    r"\balike\b|\banew\b": "similar, the same; again",
    r"\bthose (that|of)\b|\bthat which\b|\bof which\b|\bof whose\b": "name the thing",
    r"\bwhat (it|they|one|that|this|has|is|was|are|were|a|the)\b": "name the thing",
    r"\bplaces?\b": "path, position, index",
    r"\b(forgets?|forgotten)\b": "drop, discard",
}
ODD_NAMES = re.compile(
    r"^(found|kept|own|wanted|held|given|told|asked|shown|said|seen|ours|theirs|others|one|way|"
    r"most|least|rest|whole|apart|beside|behind|at|of)$|_of$|^of_|^said_|^at_"
)
HITS = re.compile("|".join(f"(?:{pattern})" for pattern in WORDS), re.IGNORECASE)
WORD = re.compile(r"[A-Za-z][A-Za-z'-]+")
FOLDERS = ("schemas", "runtime", "models", "extract", "pipelines", "train", "inference")
LIMITS: dict[str, float] = {
    "docs": 1.5,
    "help": 0.5,
    "schemas messages": 0.5,
    "schemas docstrings": 2.0,
    "schemas comments": 0.5,
    "schemas names": 3.5,
    "runtime messages": 2.0,
    "runtime docstrings": 2.0,
    "runtime comments": 1.0,
    "runtime names": 2.5,
    "models messages": 2.0,
    "models docstrings": 1.5,
    "models comments": 1.0,
    "models names": 4.5,
    "extract messages": 1.0,
    "extract docstrings": 2.0,
    "extract comments": 1.0,
    "extract names": 7.0,
    "pipelines messages": 3.5,
    "pipelines docstrings": 0.5,
    "pipelines comments": 0.5,
    "pipelines names": 3.0,
    "train messages": 2.5,
    "train docstrings": 1.0,
    "train comments": 0.5,
    "train names": 2.0,
    "inference messages": 2.5,
    "inference docstrings": 2.0,
    "inference comments": 0.5,
    "inference names": 2.0,
}
"""Hits per 1,000 words (of names: per 1,000 names), by group: docs, help, or folder and type"""


def plain_text(node: ast.expr) -> str:
    """Returns the text of a string; ``X`` stands for each value in an f-string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "X" for v in node.values)
    return ""


def texts_of_code(source: str) -> Iterator[tuple[str, str]]:
    """Yields type and text: help, messages, docstrings, comments and names of a module."""
    tree = ast.parse(source)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if (text := ast.get_docstring(node)) is not None:
                skipped.add(id(node.body[0].value))  # type: ignore[attr-defined]
                yield "docstrings", text
            if not isinstance(node, ast.Module):
                yield "names", node.name
        if isinstance(node, ast.arg):
            yield "names", node.arg
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield "names", node.id
        if isinstance(node, ast.keyword) and node.arg in ("help", "description", "epilog"):
            skipped.update(id(part) for part in ast.walk(node.value))
            yield "help", plain_text(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in skipped:
            text = plain_text(node)
            if isinstance(node, ast.JoinedStr):
                skipped.update(id(part) for part in node.values)
            if len(WORD.findall(text)) > 4:
                yield "messages", text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield "comments", token.string


def texts_of_page(page: str) -> Iterator[str]:
    """Yields the lines of a page without its blocks of code, code in lines and addresses."""
    for line in re.sub(r"^```.*?^```", "", page, flags=re.M | re.S).splitlines():
        yield re.sub(r"`[^`]*`|\]\([^)]*\)", " X ", line)


def all_texts() -> Iterator[tuple[str, str]]:
    """Yields group and text for every page and every module."""
    pages = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")]
    pages += [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docker").glob("*.md")]
    for page in pages:
        for line in texts_of_page(page.read_text(encoding="utf-8")):
            yield "docs", line
    for folder in FOLDERS:
        for module in (ROOT / folder).rglob("*.py"):
            for kind, text in texts_of_code(module.read_text(encoding="utf-8")):
                yield kind if kind == "help" else f"{folder} {kind}", text


@pytest.fixture(scope="module")
def rates() -> dict[str, float]:
    """Hits per 1,000 words of each group; of names per 1,000 names."""
    words: Counter[str] = Counter()
    hits: Counter[str] = Counter()
    for group, text in all_texts():
        if group.endswith("names"):
            words[group] += 1
            hits[group] += ODD_NAMES.search(text) is not None
        else:
            words[group] += len(WORD.findall(text))
            hits[group] += len(HITS.findall(text))
    return {group: 1000 * hits[group] / count for group, count in words.items() if count}


def test_odd_words_become_no_more(rates: dict[str, float]) -> None:
    above = {
        group: f"{rate:.1f} per 1,000, limit {LIMITS.get(group, 0)}"
        for group, rate in rates.items()
        if rate > LIMITS.get(group, 0)
    }
    assert not above, f"write what WORDS suggests instead: {above}"


def test_limits_follow_the_counts(rates: dict[str, float]) -> None:
    loose = {
        group: f"{rates[group]:.1f} per 1,000, limit {limit}"
        for group, limit in LIMITS.items()
        if limit > rates[group] + 2
    }
    assert not loose, f"lower these limits: {loose}"


def test_words_are_found_in_every_type_of_text() -> None:
    source = '"""It lies behind."""\n# told anew\nparser.add_argument("--a", help="a picture")\n'
    source += 'raise ValueError(f"{own} cannot be had at once, says the whole test")\nkept = 1\n'
    found = {kind: HITS.findall(text) for kind, text in texts_of_code(source)}
    assert {kind: len(hits) for kind, hits in found.items() if kind != "names"} == {
        "docstrings": 2,
        "comments": 2,
        "help": 1,
        "messages": 3,
    }
    assert [text for kind, text in texts_of_code(source) if kind == "names"] == ["kept"]
    assert ODD_NAMES.search("kept") and ODD_NAMES.search("size_of") and not ODD_NAMES.search("size")
    page = "It lies `behind` [it](behind.md).\n```sh\nbehind\n```\n"
    assert [hit[0] for line in texts_of_page(page) if (hit := HITS.search(line))] == ["lies"]
