from hypothesis import given
from hypothesis import strategies as st

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.pages.markup import parse
from vlmill.pipelines.pages.page import Page, PageImage, read_page, srcset

URL = "http://a.org/dir/page.html"


def page(markup: str, *, images: int = 100) -> Page:
    tree = parse(markup, max_nesting=1_000)
    assert not isinstance(tree, Drop)
    return read_page(
        tree,
        URL,
        max_text_chars=300,
        surrounding_chars=60,
        max_images=images,
        max_main_chars=500,
    )


def one(markup: str) -> PageImage:
    (image,) = page(markup).images
    return image


def test_attributes_are_read_and_folded() -> None:
    image = one('<img src=a.jpg alt=" two\n words " title=T width=40 height="30px" class="X y">')
    assert (image.alt, image.title, image.width, image.height) == ("two words", "T", 40, 30)
    assert image.urls == ("http://a.org/dir/a.jpg",)
    assert image.marks[0] == "x y"
    assert one("<img src=a.jpg width=100% height=auto>").width is None


def test_base_and_dots() -> None:
    assert one("<base href='/x/y/'><img src=../a.jpg>").urls == ("http://a.org/x/a.jpg",)


def test_variants_of_one_picture() -> None:
    image = one(
        "<a href=full.jpg><picture><source srcset='s.webp 1x'>"
        "<img src=small.jpg data-src=lazy.jpg srcset='m.jpg 400w, l.jpg 800w'></picture></a>"
    )
    names = [url.rsplit("/", 1)[1] for url in image.urls]
    assert names == ["small.jpg", "lazy.jpg", "l.jpg", "m.jpg", "s.webp", "full.jpg"]
    assert image.links_to_picture


def test_unusable_addresses_give_none() -> None:
    assert one("<img src='data:image/png;base64,AA'>").urls == ()
    assert one("<img src='javascript:x'>").urls == ()
    assert one("<img>").urls == ()


def test_srcset_urls_may_hold_commas() -> None:
    assert srcset("a,b.jpg 1x, c.jpg 2x") == ["c.jpg", "a,b.jpg"]
    assert srcset("") == [] and srcset(" , ,") == []


def test_metadata_names_a_picture() -> None:
    head = "<meta property=og:image content=/a.jpg><meta name=description content='A cat.'>"
    shown = one(f"<head>{head}</head><img src=http://a.org/a.jpg>")
    assert shown.is_metadata and shown.metadata == ("A cat.",)
    hidden, other = sorted(page(f"<head>{head}</head><img src=b.jpg>").images, key=lambda i: i.urls)
    assert hidden.is_metadata and not other.is_metadata


def test_page_facts() -> None:
    found = page("<html lang=en-GB><title> A  page </title><p>Text of it.")
    assert (found.title, found.declared_language, found.url) == ("A page", "en-GB", URL)
    assert found.text == "Text of it."
    assert page("<title>Only this</title><img src=a.jpg>").text == "Only this"


def test_each_picture_has_its_own_texts() -> None:
    first, second = page(
        "<figure><img src=a.jpg><figcaption>About <b>A</b></figcaption></figure>"
        "<h2>Second</h2><img src=b.jpg><p>After.</p>"
    ).images
    assert (first.caption, first.surrounding) == ("About A", ())
    assert (second.caption, second.surrounding) == ("", ("After.", "Second"))


def test_empty_pages() -> None:
    for markup in ("", "<p>", "<html></html>", "\0"):
        assert page(markup).images == ()


def test_numbers_are_bounded() -> None:
    assert len(page("<img src=a.jpg>" * 50, images=10).images) == 10
    assert len(one("<img src=a.jpg alt='" + "x" * 5_000 + "'>").alt) == 300


TAGS = st.sampled_from(
    [
        *("<div>", "</div>", "<p>", "<figure>", "</figure>", "<figcaption>", "</figcaption>"),
        *("<table>", "<td>", "<a href=b.jpg>", "</a>", "<img src=a.jpg>", "text. ", "<noscript>"),
        *("<svg>", "<!--", "<select>", "<p class=caption>", "<frameset>", "<template>", "<h1>"),
        *("</body>", "<head>"),
    ]
)


@given(st.lists(TAGS, max_size=30))
def test_no_soup_breaks_the_walk(parts: list[str]) -> None:
    for number, image in enumerate(page("".join(parts)).images):
        assert image.order == number
