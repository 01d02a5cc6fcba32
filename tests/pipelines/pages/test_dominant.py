import pytest

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.pages.dominant import WEIGHTS, Dominant, dominance, features, judge_images
from vlmill.pipelines.pages.markup import parse
from vlmill.pipelines.pages.page import Page, read_page
from vlmill.pipelines.rules import WebPairRules
from vlmill.schemas.rejects import Reason

RULES = WebPairRules()


def page(markup: str) -> Page:
    tree = parse(markup, max_nesting=1_000)
    assert not isinstance(tree, Drop)
    return read_page(
        tree,
        "http://a.org/",
        max_text_chars=300,
        surrounding_chars=100,
        max_images=100,
        max_main_chars=500,
    )


def verdicts(markup: str) -> list[Reason | None]:
    """The reason of each picture, None for dominant ones."""
    found = judge_images(page(markup), RULES)
    return [None if isinstance(v, Dominant) else v.reason for v in found]


@pytest.mark.parametrize(
    "markup",
    [
        "<img src=a.jpg width=400 height=300>",
        "<img src=a.jpg alt='A cat on a mat'>",
        "<img src=a.jpg title='A cat on a mat'>",
        "<article><p><img src=a.jpg></article>",
        "<div class='entry-content'><img src=a.jpg></div>",
        "<figure><img src=a.jpg><figcaption>A cat.</figcaption></figure>",
        "<article><header><img src=a.jpg></header></article>",
        "<meta property=og:image content=logo.jpg><img src=x.jpg alt='A cat on a mat'>",
        "<a href=big.jpg><img src=thumb.jpg width=80 height=60 alt='A cat on a mat'></a>",
        "<div class='thing may-blank'><img src=a.jpg alt='A cat on a mat'></div>",
        "<div class='content-sidebar-wrap'><img src=a.jpg alt='A cat on a mat'></div>",
    ],
)
def test_content_is_dominant(markup: str) -> None:
    assert verdicts(markup)[0] is None


@pytest.mark.parametrize(
    ("markup", "reason"),
    [
        ("<img src='data:image/gif;base64,R0'>", Reason.BAD_URL),
        ("<img src=/img/site-logo.png alt='The logo of us' width=400 height=400>", Reason.ICON),
        ("<img src=a.jpg class='user avatar' alt='A cat on a mat'>", Reason.ICON),
        ("<img src=http://t.org/pixel.gif>", Reason.ICON),
        ("<div class='ad-slot'><img src=a.jpg alt='A cat on a mat'></div>", Reason.ADVERTISEMENT),
        ("<img src=http://ad.doubleclick.net/x.jpg alt='A cat on mat'>", Reason.ADVERTISEMENT),
        ("<nav><img src=a.jpg alt='A cat on a mat'></nav>", Reason.NAVIGATION),
        ("<footer><img src=a.jpg alt='A cat on a mat'></footer>", Reason.NAVIGATION),
        ("<header><img src=a.jpg alt='A cat on a mat'></header>", Reason.NAVIGATION),
        ("<div class=sidebar><img src=a.jpg alt='A cat on a mat'></div>", Reason.NAVIGATION),
        ("<img src=a.jpg width=1 height=1>", Reason.DECLARED_SMALL),
        ("<img src=a.jpg width=119 height=400 alt='A cat on a mat'>", Reason.DECLARED_SMALL),
        ("<img src=a.jpg width=900 height=150 alt='A cat on a mat'>", Reason.DECLARED_SMALL),
        ("<img src=a.jpg>", Reason.NOT_DOMINANT),
    ],
)
def test_decoration_is_not(markup: str, reason: Reason) -> None:
    assert verdicts(markup) == [reason]


def test_what_comes_again_and_again_is_decoration() -> None:
    assert verdicts("<img src=a.jpg alt='A cat on a mat'>" * 2) == [None, None]
    assert verdicts("<img src=a.jpg alt='A cat on a mat'>" * 3) == [Reason.REPEATED] * 3


def test_a_gallery_has_many() -> None:
    cell = "<figure><img src=%d.jpg width=300 height=300></figure>"
    assert verdicts("".join(cell % n for n in range(9))) == [None] * 9


def test_a_page_without_pictures() -> None:
    assert verdicts("<p>text") == []


def test_every_feature_has_a_weight() -> None:
    (image,) = page("<img src=a.jpg>").images
    found = features(image, 0)
    assert found.keys() == WEIGHTS.keys()
    assert dominance(dict.fromkeys(WEIGHTS, 1.0)) == 1.0
    assert dominance(dict.fromkeys(WEIGHTS, 0.0)) == 0.0
