from vlmill.pipelines.web.pages.blocks import Block, Spot
from vlmill.pipelines.web.pages.context import captions_by_image, captions_in_tables, nearby
from vlmill.pipelines.web.pages.markup import parse
from vlmill.pipelines.web.pages.walk import walk_page
from vlmill.runtime.units.funnel import Drop


def walk(markup: str) -> tuple[list[Block], list[Spot]]:
    tree = parse(markup, max_nesting=1_000)
    assert not isinstance(tree, Drop)
    blocks, spots, _ = walk_page(tree, max_chars=300, max_images=100)
    return blocks, spots


def captions(markup: str) -> dict[int, str]:
    return captions_by_image(*walk(markup), max_chars=300)


def test_a_figure_caption_belongs_to_its_own_image() -> None:
    found = captions(
        "<div><figure><img src=a.jpg><figcaption>About <b>A</b></figcaption></figure>"
        "<img src=b.jpg></div>"
    )
    assert found == {0: "About A"}


def test_captions_in_a_row_belong_to_the_image_before() -> None:
    found = captions(
        "<div><img src=a.jpg><p class=caption>A</p><img src=b.jpg><p class=wp-caption-text>B</p>"
    )
    assert found == {0: "A", 1: "B"}


def test_an_icon_in_a_caption_does_not_take_it() -> None:
    found = captions(
        "<div><div class=thumb><a><img src=a.jpg></a><div class=thumbcaption>"
        "<a><img src=magnify.png width=15></a>A caption.</div></div></div>"
    )
    assert found == {0: "A caption."}


def test_captions_are_whole_bounded_and_the_first_counts() -> None:
    figure = "<figure><img src=a.jpg><figcaption>{}</figcaption><figcaption>B</figcaption></figure>"
    assert captions(figure.format("<p>One</p><p>two</p>")) == {0: "One two"}
    assert captions_by_image(*walk(figure.format("One two")), max_chars=3) == {0: "One"}
    assert captions("<p class=caption>Of nothing</p>") == {}
    assert captions("") == {}


def test_the_caption_of_a_listing_belongs_to_no_image() -> None:
    assert (
        captions(
            "<div><img src=a.jpg><figure><figcaption>Code</figcaption><pre>x = 1</pre></figure>"
        )
        == {}
    )


def test_a_caption_that_swallows_a_table_is_not_taken_whole() -> None:
    figure = "<figure><img src=a.jpg><figcaption>A cat.<table><tr><td>1<td>2</table></figcaption>"
    assert captions(figure) == {0: "A cat."}


def test_near_blocks_are_kept_and_headings_wherever_they_are() -> None:
    blocks, _ = walk("<h1>Head</h1>" + "<p>far</p>" * 5 + "<p>near</p><img><p>next</p><p>far</p>")
    assert [blocks[i].text for i in nearby(blocks, [7], 1)] == ["Head", "near", "next"]


# Captions in tables.


def captions_in(markup: str) -> list[str | None]:
    """The caption of each image of a page, in order."""
    tree = parse(markup, max_nesting=1_000)
    assert not isinstance(tree, Drop)
    texts = captions_in_tables(tree)
    return [texts.get(node.mem_id) for node in tree.css("img")]


IMAGES = "<tr><td><img src=a.jpg><td><a href=b><img src=b.jpg></a></tr>"
TEXTS = "<tr><td>One cat<td>Two <b>dogs</b></tr>"


def test_a_row_of_captions_below_or_above_its_images() -> None:
    assert captions_in(f"<table>{IMAGES}{TEXTS}</table>") == ["One cat", "Two dogs"]
    assert captions_in(f"<table>{TEXTS}{IMAGES}</table>") == ["One cat", "Two dogs"]


def test_the_last_row_says_on_which_side_captions_stand() -> None:
    other = "<tr><th>Three cows<th>Four pigs</tr>"
    below = captions_in(f"<table>{IMAGES}{TEXTS}<tbody>{IMAGES}{other}</table>")
    assert below == ["One cat", "Two dogs", "Three cows", "Four pigs"]
    above = captions_in(f"<table>{TEXTS}{IMAGES}{other}{IMAGES}</table>")
    assert above == ["One cat", "Two dogs", "Three cows", "Four pigs"]


def test_columns_are_counted_with_their_spans() -> None:
    wide = "<tr><td colspan=2><img src=a.jpg><td><img src=b.jpg></tr>"
    assert captions_in(f"<table>{wide}<tr><td>One cat<td>-<td>Two dogs</table>") == [
        "One cat",
        "Two dogs",
    ]


def test_what_lays_out_a_page_has_no_captions_in() -> None:
    none = [None, None]
    assert captions_in(f"<table>{IMAGES}</table>") == none
    assert captions_in(f"<table>{IMAGES}<tr><td>One cat<td></table>") == none
    assert captions_in(f"<table>{IMAGES}<tr><td>{'word ' * 50}<td>Two dogs</table>") == none
    assert captions_in(f"<table><tr><td>Text <img src=a><td><img src=b>{TEXTS}</table>") == none
    inner = f"<table>{IMAGES}{TEXTS}</table>"
    assert captions_in(f"<table><tr><td>{inner}<td>Menu</table>") == ["One cat", "Two dogs"]
    assert captions_in("") == []
