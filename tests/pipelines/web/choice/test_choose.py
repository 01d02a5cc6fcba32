"""Pages of the kinds that sites have, and what is chosen on them."""

from collections.abc import Sequence

import pytest

from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.choice.choose import choose, probability
from vlmill.pipelines.web.choice.joined_page import JoinedPage
from vlmill.pipelines.web.choice.site_content import count_site_content
from vlmill.pipelines.web.pages.images import ImageFacts
from vlmill.pipelines.web.pages.markup import parse
from vlmill.pipelines.web.pages.page import read_page
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

RULES = WebPairRules()


def joined(
    markup: str, *, at: str = "http://a.org/page", size: tuple[int, int] = (800, 600)
) -> JoinedPage:
    """A page all of whose images are at hand, each by its name."""
    tree = parse(markup, max_nesting=1_000)
    assert not isinstance(tree, Drop)
    page = read_page(tree, at, max_text_chars=2_000, max_images=100)
    assert not isinstance(page, Drop)
    images = {
        image.order: ImageFacts(
            image_id=image.urls[0], width=size[0], height=size[1], format="jpeg"
        )
        for image in page.images
        if image.urls
    }
    return JoinedPage(page, images)


def chosen(page: JoinedPage, others: Sequence[JoinedPage] = ()) -> list[str | Reason]:
    """The best text of each image, or the reason why there is none."""
    choices = choose(page, count_site_content([page, *others], RULES), RULES)
    return [c.reason if isinstance(c, Drop) else c[0].text for c in choices]


ARTICLE = "<title>A walk - Site</title><article><h1>A walk</h1>{}</article>"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("<p>We went out.<p><img src=1.jpg alt='A red fox in the snow'>", "A red fox in the snow"),
        (
            "<p>We went out.<figure><img src=DSC_0815.jpg alt=DSC_0815.jpg>"
            "<figcaption>A red fox in the snow.</figcaption></figure><p>Then home.",
            "A red fox in the snow.",
        ),
        (
            "<p>We went out. It was cold.<p>A red fox stood in the snow.<p>"
            "<a href=red-fox-snow.jpg><img src=red-fox-snow-s.jpg alt=image></a><p>Then home.",
            "A red fox stood in the snow.",
        ),
    ],
)
def test_the_text_that_describes_a_image(body: str, text: str) -> None:
    assert chosen(joined(ARTICLE.format(body))) == [text]


def test_a_headline_over_a_image_that_nothing_names_is_no_caption() -> None:
    page = joined(ARTICLE.format("<img src=8472.jpg><p>" + "Words about other things. " * 20))
    assert chosen(page) == [Reason.LOW_SCORE]


def test_the_heading_of_a_list_describes_none_of_its_cards() -> None:
    """The image leads to another page, and other pages show it, too."""
    card = "<a href=/recipes/tonic/><img src=/tonic.jpg></a><h2><a href=/recipes/tonic/>{}</a></h2>"
    lists = [
        joined(f"<title>{tag}</title><h1>{tag}</h1>{card.format('')}", at=f"http://a.org/{tag}")
        for tag in ("Ginger roots", "Breakfast")
    ]
    assert chosen(lists[0], lists[1:]) == [Reason.NO_TEXT]
    alone = joined("<title>Ginger roots</title><h1>Ginger roots</h1><p><img src=/ginger.jpg></p>")
    assert chosen(alone) == ["Ginger roots"]
    named = joined(f"<h1>Breakfast</h1>{card.format('A ginger tonic')}", at="http://a.org/b")
    assert chosen(named, lists) in (["A ginger tonic"], [Reason.LOW_SCORE])


def test_captions_above_belong_to_the_next_image() -> None:
    rows = "".join(
        f"<p>Fox number {n} of them</p><p><img src=fox-{n}{n}.jpg></p>" for n in range(5)
    )
    page = joined(f"<main><div>{rows}</div></main>")
    assert [text for text in chosen(page)] == [f"Fox number {n} of them" for n in range(5)]


def test_captions_below_belong_to_the_image_before() -> None:
    rows = "".join(f"<p><img src={n}{n}.jpg></p><p>Fox number {n} of them</p>" for n in range(5))
    page = joined(f"<main><div>{rows}</div></main>")
    for number, text in enumerate(chosen(page)):
        assert text in (f"Fox number {number} of them", Reason.LOW_SCORE)


@pytest.mark.parametrize(
    ("markup", "reason"),
    [
        ("<nav><img src=a.jpg alt='A red fox'></nav>", Reason.NAVIGATION),
        ("<div class=sidebar><img src=a.jpg alt='A red fox'></div>", Reason.NAVIGATION),
        ("<img src=logo.jpg>", Reason.ICON),
        ("<div class=advert><img src=a.jpg></div>", Reason.ADVERTISEMENT),
        ("<img src=http://ads.example.org/a.jpg>", Reason.ADVERTISEMENT),
        ("<img src=a.jpg width=60 height=60>", Reason.DECLARED_SMALL),
        ("<img src=a.jpg>" * 3, Reason.REPEATED),
        ("<img src=javascript:x>", Reason.BAD_URL),
    ],
)
def test_what_is_not_content(markup: str, reason: Reason) -> None:
    assert set(chosen(joined(f"<article>{markup}</article>"))) == {reason}


def test_banners_are_told_by_their_true_size() -> None:
    banner = joined("<article><img src=a.jpg alt='A red fox'>", size=(1600, 320))
    assert chosen(banner) == [Reason.DECLARED_SMALL]
    panorama = joined("<article><img src=a.jpg alt='Wide hills in the evening'>", size=(2400, 500))
    assert chosen(panorama) == ["Wide hills in the evening"]


def test_what_is_not_at_hand_or_was_rejected() -> None:
    page = joined("<img src=a.jpg><img src=b.jpg>")
    second = page.page.images[1]
    images = {second.order: Drop(Reason.TOO_SMALL, "10x10")}
    reasons = chosen(JoinedPage(page.page, images))
    assert reasons == [Reason.MISSING_IMAGE, Reason.REJECTED_IMAGE]


def test_a_image_of_every_page_belongs_to_the_site() -> None:
    markup = "<article><img src=/banner.jpg alt='The hills of our region'>{}</article>"
    pages = [joined(markup.format(n), at=f"http://a.org/{n}") for n in range(6)]
    assert chosen(pages[0], pages[1:]) == [Reason.REPEATED]
    assert chosen(pages[0]) == ["The hills of our region"]


def test_scores_are_probabilities() -> None:
    assert probability(0.0) == 0.5
    assert (probability(-1e9), probability(1e9)) == (0.0, 1.0)


def test_a_text_belongs_to_the_nearest_image_or_to_none() -> None:
    """A sentence after several images is not the caption of all; a row of images has none."""
    two = ARTICLE.format("<img src=1.jpg><img src=2.jpg><p>Here is the harbour at dawn.")
    assert chosen(joined(two)).count("Here is the harbour at dawn.") <= 1
    row = ARTICLE.format(
        "<p>Before.<img src=1.jpg><img src=2.jpg><img src=3.jpg><p>Here is the harbour at dawn."
    )
    assert "Here is the harbour at dawn." not in chosen(joined(row))
    named = row.replace("3.jpg", "harbour-dawn.jpg")
    assert chosen(joined(named))[2] == "Here is the harbour at dawn."


def test_a_caption_comes_before_headings() -> None:
    page = (
        "<title>Kettle Mill</title><main><h1>Kettle Mill</h1><table class=infobox><tr><td>"
        "<img src=Kettle_mill.jpg><div class=infobox-caption>Kettle Mill from the south in spring"
        "</div></table><p>It is a water mill of the seventeenth century.</main>"
    )
    assert chosen(joined(page)) == ["Kettle Mill from the south in spring"]


@pytest.mark.parametrize(
    "markup",
    [
        "<div class='layout ad-free'><figure>{}<figcaption>{}</figcaption></figure></div>",
        "<figure><button class='btn btn-link'>{}</button><figcaption>{}</figcaption></figure>",
        "<figure><a class='image-magnify-lightbox'>{}</a><figcaption>{}</figcaption></figure>",
        "<aside><figure>{}<figcaption>{}</figcaption></figure></aside>",
        "<div class='no-ads badge'><figure>{}<figcaption>{}</figcaption></figure></div>",
    ],
)
def test_no_single_word_removes_an_image(markup: str) -> None:
    body = markup.format("<img src=http://pixel.a.org/counter-7.jpg>", "A baker arranges loaves.")
    assert chosen(joined(ARTICLE.format(body))) == ["A baker arranges loaves."]


def test_copies_of_a_gallery_are_one_image() -> None:
    shirt = "<div><img src=shirt.jpg alt='Blue linen shirt on a hanger'></div>"
    assert chosen(joined(ARTICLE.format(shirt * 4))) == ["Blue linen shirt on a hanger"] * 4
    bullets = ARTICLE.format("<p><img src=b.jpg alt=''> A point of the list of many points." * 4)
    assert chosen(joined(bullets)) == [Reason.REPEATED] * 4


def test_an_alt_text_may_be_long_and_a_sentence_nearby_may_not() -> None:
    words = "with a baker in a white apron who arranges loaves of dark bread on a wooden stall "
    long = f"A wide street market in a small town {words}{words}and a black dog below it all"
    assert chosen(joined(ARTICLE.format(f"<img src=1.jpg alt='{long}'>"))) == [long]
    assert long not in chosen(joined(ARTICLE.format(f"<img src=1.jpg><p>{long}.")))
