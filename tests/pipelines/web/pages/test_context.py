from vlmill.pipelines.web.pages.blocks import Block, Spot
from vlmill.pipelines.web.pages.context import captions_by_image, nearby
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
