import pytest

from vlmill.pipelines.web.pages.blocks import Block, Spot, fold
from vlmill.pipelines.web.pages.markup import parse
from vlmill.pipelines.web.pages.walk import walk_page
from vlmill.runtime.units.funnel import Drop


def walk(markup: str) -> tuple[list[Block], list[Spot]]:
    tree = parse(markup, max_nesting=1_000)
    assert not isinstance(tree, Drop)
    blocks, spots, num_beyond = walk_page(tree, max_chars=20, max_images=100)
    assert num_beyond == 0
    return blocks, spots


def test_blocks_are_runs_of_text_in_document_order() -> None:
    blocks, _ = walk(
        "Bare <b>text</b><p>one\n two</p><script>no</script><nav>menu</nav>"
        "<p class=caption>under it</p><p>" + "x" * 50
    )
    assert [(b.text, b.tag, b.furniture > 0, b.caption > 0) for b in blocks] == [
        ("Bare text", "body", False, False),
        ("one two", "p", False, False),
        ("menu", "nav", True, False),
        ("under it", "p", False, True),
        ("x" * 20, "p", False, False),
    ]


def test_a_image_stands_before_the_text_that_follows_it() -> None:
    blocks, spots = walk("<p>one</p><img src=a.jpg><p>two <img src=b.jpg> three</p>")
    assert [block.text for block in blocks] == ["one", "two", "three"]
    assert [spot.block for spot in spots] == [1, 2]


def test_a_small_image_stands_in_its_line() -> None:
    blocks, _ = walk("<p>two <img src=b.jpg width=16> three</p>")
    assert [block.text for block in blocks] == ["two three"]


def test_a_listing_is_one_block() -> None:
    (block,), _ = walk("<pre><code><span>a</span> = <b>1</b></code></pre>")
    assert (block.text, block.tag, block.code) == ("a = 1", "pre", True)


def test_furniture_by_class_and_what_only_looks_like_it() -> None:
    blocks, _ = walk(
        "<div class='widget Blog'>post</div><div id=sidebar>side</div>"
        "<article><header>head</header></article><header>banner</header><a href=x>link</a>"
    )
    assert [(b.text, b.furniture > 0, b.linked) for b in blocks] == [
        ("post", False, 0.0),
        ("side", True, 0.0),
        ("head", False, 0.0),
        ("banner", True, 0.0),
        ("link", False, 1.0),
    ]


def test_an_element_with_most_of_the_text_is_no_furniture() -> None:
    blocks, (inside, outside) = walk(
        "<div class=sidebar><nav>menu</nav><p>We walked along the coast for two days.<img></div>"
        "<div class=related>Other posts<img></div>"
    )
    assert [(b.text[:4], b.furniture > 0) for b in blocks] == [
        ("menu", True),
        ("We w", False),
        ("Othe", True),
    ]
    assert (inside.furniture > 0, outside.furniture > 0) == (False, True)


def test_captions_in_inline_elements() -> None:
    blocks, _ = walk("<p>text <span class=photo-caption>of it</span> more</p>")
    assert [(b.text, b.caption > 0) for b in blocks] == [
        ("text", False),
        ("of it", True),
        ("more", False),
    ]


def test_what_is_around_a_image() -> None:
    _, (spot,) = walk(
        "<body class=has-sidebar><div class='Post x' id=P1><a href=big.jpg><img class=Wide>"
    )
    assert spot.ancestors == ("a", "div", "body")
    assert spot.marks == ("wide", "", "post x p1", "")
    assert spot.link == "big.jpg"


@pytest.mark.parametrize(
    ("width", "expected"),
    [("40", 40), (" 40px ", 40), ("40.5", 40), ("100%", None), ("auto", None), ("", None)],
)
def test_sides_are_pixels_or_nothing(width: str, expected: int | None) -> None:
    _, (spot,) = walk(f"<img width='{width}'>")
    assert spot.sides == (expected, None)


def test_images_beyond_so_many_are_only_counted() -> None:
    markup = "<p>first</p>" + "<img src=a.jpg>" * 30 + "<p>last</p>"
    tree = parse(f"{markup}<svg>{'<image href=b.jpg />' * 20}</svg>", max_nesting=1_000)
    assert not isinstance(tree, Drop)
    blocks, spots, num_beyond = walk_page(tree, max_chars=20, max_images=10)
    assert (len(spots), num_beyond) == (10, 40)
    assert [block.text for block in blocks] == ["first", "last"]


def test_empty_pages() -> None:
    for markup in ("", "<p>", "<html></html>", "\0"):
        assert walk(markup) == ([], [])


def test_fold_by_hand() -> None:
    assert fold(" a \n\t b ", 10) == "a b"
    assert fold("abcdef", 3) == "abc"
    assert fold(None, 3) == fold("", 3) == ""
