"""YAML as plain data: what is read, what is refused, and that no text does anything else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmill.runtime.settings.plain_yaml import BadYaml, read_document

TEXT = """
_BASE_: "../Base.yaml"
MODEL:
  RPN: {NMS_THRESH: 0.7, IN_FEATURES: ["res4"]}
  STEPS: (60000, 80000,)
  NOTE: (see below
  MASK_ON: False
  SEED: -1
  NONE: ~
  DAY: 2019-12-01
"""


def test_sections_lists_and_scalars_are_read_with_their_lines() -> None:
    document = read_document(TEXT, lists_in_texts=True)
    assert document.value == {
        "_BASE_": "../Base.yaml",
        "MODEL": {
            "RPN": {"NMS_THRESH": 0.7, "IN_FEATURES": ["res4"]},
            "STEPS": [60000, 80000],
            "NOTE": "(see below",
            "MASK_ON": False,
            "SEED": -1,
            "NONE": None,
            "DAY": "2019-12-01",
        },
    }
    assert document.lines["MODEL.RPN.NMS_THRESH"] == 4 and document.lines["MODEL.DAY"] == 10
    assert read_document("").value is None


def test_a_list_in_a_text_is_one_only_where_asked() -> None:
    assert read_document("a: (1, 2)").value == {"a": "(1, 2)"}
    assert read_document("a: (1, 2)", lists_in_texts=True).value == {"a": [1, 2]}


def test_an_alias_is_the_value_once_more() -> None:
    value = read_document("a: &x [1, 2]\nb: *x\nc: {d: *x}").value
    assert value == {"a": [1, 2], "b": [1, 2], "c": {"d": [1, 2]}}


BOMB = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n" + "\n".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        (BOMB, "over 20000 values", 4),
        ("[" * 50 + "]" * 50, "nested deeper than 16", 1),
        ("a: &x [*x]", "alias", 1),
        ("a: 1\nb: 2\na: 3", "a comes twice", 3),
        ("a: {b: 1, b: 2}", "a.b comes twice", 1),
        ("a: 1\nb: !!python/object/apply:os.system [ls]", "'!!python/object/apply:os.system'", 2),
        ("a: !!python/tuple [1, 2]", "!!python/tuple", 1),
        ("a: !mine 3", "'!mine'", 1),
        ("a: !!int three", "'three' is not of type int", 1),
        ("<<: {a: 1}", "cannot be a key", 1),
        ("1: 2", "cannot be a key", 1),
        ("a.b: 2", "cannot be a key", 1),
        ("a: 1\n---\nb: 2", "a second document", 2),
        ("a: [1", "expected", 1),
        ("a: \x00", "special characters", 1),
        ("a: " + "b" * 5000, "over 4096 characters", 1),
        ("# " + "b" * 70000, "over 65536 characters", 1),
        ("a: " + "9" * 101, "a number of over 100 characters", 1),
    ],
)
def test_what_is_no_plain_data_is_refused(text: str, message: str, line: int) -> None:
    with pytest.raises(BadYaml) as caught:
        read_document(text, lists_in_texts=True)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert abs(caught.value.line - line) <= (text is BOMB) * 2


@settings(max_examples=300, deadline=None)
@given(
    at=st.integers(0, len(TEXT)),
    cut=st.integers(0, 12),
    put=st.text("&*!<>|:-[]{}(),#'\"%@` \n\t\\0a=?~", max_size=8),
)
def test_a_damaged_text_is_read_or_refused(at: int, cut: int, put: str) -> None:
    try:
        read_document(TEXT[:at] + put + TEXT[at + cut :], lists_in_texts=True)
    except BadYaml as error:
        assert error.line >= 1 and "\n" not in str(error)
