"""A file of rules: what it may set, what is refused, and how its words change the choice."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.texts.phrases import LANGUAGES, LISTS
from vlmill.pipelines.web_pairs.__main__ import build_rules, main, parser
from vlmill.pipelines.web_pairs.rules_file import changed_rules, read_rules_file

FLAGS = ["--warc", "x.warc.gz", "--output", "out", "--safety-model", "none"]


def write(folder: Path, text: str, name: str = "rules.toml") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_every_rule_can_be_set_and_flags_have_priority(tmp_path: Path) -> None:
    defaults = WebPairRules().as_settings()
    file = read_rules_file(write(tmp_path, json.dumps(defaults), "rules.json"))
    assert file.values == defaults and len(defaults) == len(fields(WebPairRules))
    path = write(tmp_path, "min_score = 0.7\nmin_dominance = 0\nmin_words = 3\n")
    args, _ = parser().parse_known_args([*FLAGS, "--rules", path, "--min-words", "2"])
    rules = build_rules(args, read_rules_file(path))
    assert (rules.min_score, rules.min_dominance, rules.min_words) == (0.7, 0.0, 2)
    assert changed_rules(rules) == {
        "min_dominance": "0.0 (default: 0.5)",
        "min_words": "2 (default: 1)",
        "min_score": "0.7 (default: 0.5)",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("min_scores = 0.5", "min_scores: unknown field; did you mean min_score?"),
        ("min_score = 1.5", "min_score is 1.5; it must be in 0..1"),
        ("max_pixels = 0", "max_pixels is 0; it must be in 1..1000000000"),
        ("min_side_px = '3'", "min_side_px: expected a whole number, got '3'"),
        ("language_detector = 'mine'", "expected one of cld2, langdetect"),
        ("min_score 1", "is not TOML: "),
        ("words = 'de.toml'", 'such as words.de = "de.toml"'),
        ("[words]\nde = 'none.toml'", "none.toml cannot be read: No such file"),
        ("[words]\nde = 'bad.toml'", "points: '(' is not a regular expression"),
        ("[words]\nde = 'odd.toml'", "pointers: unknown list; expected one of generic, "),
        ("[words]\nde = 'void.toml'", "points: 'a*' matches an empty text"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    write(tmp_path, "points = ['(']", "bad.toml")
    write(tmp_path, "pointers = []", "odd.toml")
    write(tmp_path, "points = ['a*']", "void.toml")
    path = write(tmp_path, text)
    assert main([*FLAGS, "--realism-model", "none", "--rules", path]) == 2
    error = capsys.readouterr().err
    assert message in error and f"--rules {path}" in error and error.count("\n") == 1


def test_a_language_of_the_file_replaces_the_projects_or_is_added(tmp_path: Path) -> None:
    write(tmp_path, "points = ['siehe']\n", "german.toml")
    write(tmp_path, "points = ['zdjęcie']\n", "pl.toml")
    rules = write(tmp_path, "[words]\nde = 'german.toml'\npl = 'pl.toml'\n")
    languages = read_rules_file(rules).languages
    ours, theirs = read_rules_file(None).languages.compile(), languages.compile()
    for text, before, after in [
        ("siehe oben", False, True),
        ("zdjęcie kota", False, True),
        ("zeigt ein haus", True, False),
        ("shown here", True, True),
    ]:
        assert bool(ours.points.search(text)) == before, text
        assert bool(theirs.points.search(text)) == after, text
    assert set(languages.as_settings()["words"]) == {"de", "pl"}
    assert read_rules_file(None).languages.as_settings() == {}


def test_the_files_of_the_project_have_every_list() -> None:
    english = (LANGUAGES / "en.toml").read_text(encoding="utf-8")
    assert all(f"\n{name} = [" in english for name in LISTS)


def test_the_page_lists_every_rule_with_its_default() -> None:
    page = (Path(__file__).parents[3] / "docs" / "web-pairs.md").read_text(encoding="utf-8")
    for name, value in WebPairRules().as_settings().items():
        shown = str(value).lower() if isinstance(value, bool | None) else value
        assert f"| `{name}` | {shown} |" in page, name
