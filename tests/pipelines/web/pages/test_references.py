from vlmill.pipelines.web.pages.markup import parse
from vlmill.pipelines.web.pages.references import captions_in_tables
from vlmill.runtime.units.funnel import Drop


def captions(markup: str) -> list[str | None]:
    """The caption of each image of a page, in order."""
    tree = parse(markup, max_nesting=1_000)
    assert not isinstance(tree, Drop)
    texts = captions_in_tables(tree)
    return [texts.get(node.mem_id) for node in tree.css("img")]


IMAGES = "<tr><td><img src=a.jpg><td><a href=b><img src=b.jpg></a></tr>"
TEXTS = "<tr><td>One cat<td>Two <b>dogs</b></tr>"


def test_a_row_of_captions_below_or_above_its_images() -> None:
    assert captions(f"<table>{IMAGES}{TEXTS}</table>") == ["One cat", "Two dogs"]
    assert captions(f"<table>{TEXTS}{IMAGES}</table>") == ["One cat", "Two dogs"]


def test_the_last_row_says_on_which_side_captions_stand() -> None:
    other = "<tr><th>Three cows<th>Four pigs</tr>"
    below = captions(f"<table>{IMAGES}{TEXTS}<tbody>{IMAGES}{other}</table>")
    assert below == ["One cat", "Two dogs", "Three cows", "Four pigs"]
    above = captions(f"<table>{TEXTS}{IMAGES}{other}{IMAGES}</table>")
    assert above == ["One cat", "Two dogs", "Three cows", "Four pigs"]


def test_columns_are_counted_with_their_spans() -> None:
    wide = "<tr><td colspan=2><img src=a.jpg><td><img src=b.jpg></tr>"
    assert captions(f"<table>{wide}<tr><td>One cat<td>-<td>Two dogs</table>") == [
        "One cat",
        "Two dogs",
    ]


def test_what_lays_out_a_page_has_no_captions() -> None:
    none = [None, None]
    assert captions(f"<table>{IMAGES}</table>") == none
    assert captions(f"<table>{IMAGES}<tr><td>One cat<td></table>") == none
    assert captions(f"<table>{IMAGES}<tr><td>{'word ' * 50}<td>Two dogs</table>") == none
    assert captions(f"<table><tr><td>Text <img src=a><td><img src=b>{TEXTS}</table>") == none
    inner = f"<table>{IMAGES}{TEXTS}</table>"
    assert captions(f"<table><tr><td>{inner}<td>Menu</table>") == ["One cat", "Two dogs"]
    assert captions("") == []
