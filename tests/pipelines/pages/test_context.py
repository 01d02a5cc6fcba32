from hypothesis import given
from hypothesis import strategies as st

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.pages.context import (
    captions_by_picture,
    first_sentences,
    last_sentences,
    main_text,
    surrounding_texts,
)
from vlmill.pipelines.pages.markup import parse
from vlmill.pipelines.pages.walk import Block, Spot, walk_page


def walk(markup: str) -> tuple[list[Block], list[Spot]]:
    tree = parse(markup, max_nesting=1_000)
    assert not isinstance(tree, Drop)
    return walk_page(tree, max_chars=300, max_images=100)


def captions(markup: str) -> dict[int, str]:
    return captions_by_picture(*walk(markup), max_chars=300)


def surrounding(markup: str) -> tuple[str, ...]:
    blocks, (spot,) = walk(markup)
    return tuple(surrounding_texts(spot, blocks, 60))


def test_a_figure_caption_belongs_to_its_own_picture() -> None:
    found = captions(
        "<div><figure><img src=a.jpg><figcaption>About <b>A</b></figcaption></figure>"
        "<img src=b.jpg></div>"
    )
    assert found == {0: "About A"}


def test_captions_in_a_row_belong_to_the_picture_before() -> None:
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
    assert captions_by_picture(*walk(figure.format("One two")), max_chars=3) == {0: "One"}
    assert captions("<p class=caption>Of nothing</p>") == {}
    assert captions("") == {}


def test_surrounding_text_is_near_whole_and_bounded() -> None:
    assert surrounding("<h2>Head</h2><img src=a.jpg><p>After.") == ("After.", "Head")
    assert surrounding("<p>Before:</p><img src=a.jpg>") == ("Before:",)
    assert surrounding("<p>Text <img src=a.jpg> inline") == ("Text inline",)
    text = "First sentence here. " + "The second one is far too long to fit in here. " * 3
    assert surrounding(f"<img src=a.jpg><p>{text}") == ("First sentence here.",)
    assert surrounding("<img src=a.jpg><p>" + "word " * 50) == ()
    assert surrounding("<img src=a.jpg><footer>Imprint</footer>") == ()


def test_sentences_by_hand() -> None:
    text = "One is. Two was! Three?"
    assert first_sentences(text, 20) == "One is. Two was!"
    assert last_sentences(text, 18) == "Two was! Three?"
    assert first_sentences(text, 5) == last_sentences(text, 5) == ""
    assert first_sentences("", 0) == last_sentences("", 0) == ""


@given(st.text("aB.! \n", max_size=80), st.integers(0, 80))
def test_sentences_lie_at_their_end_of_the_text_within_the_limit(text: str, limit: int) -> None:
    first, last = first_sentences(text, limit), last_sentences(text, limit)
    assert len(first) <= limit and text.lstrip().startswith(first.lstrip())
    assert len(last) <= limit and text.rstrip().endswith(last.rstrip())


def test_main_text_is_prose_outside_of_menus() -> None:
    blocks, _ = walk(
        "<nav>Menu and more of it</nav><script>x</script>"
        "<p>" + "Real prose that is long enough to count as such. " * 3 + "<style>y</style>"
        '<div>{"a":[1,2,3],"b":{"c":"http://x.y/z"},"d":[4,5,6,7,8,9,10,11,12,13,14,15]}</div>'
    )
    text = main_text(blocks, 500)
    assert text.startswith("Real prose") and "Menu" not in text and "x.y" not in text
    assert main_text(blocks, 10) == "Real prose"
    menu, _ = walk("<nav>Menu</nav>")
    assert main_text(menu, 500) == "Menu"
    assert main_text([], 500) == ""
