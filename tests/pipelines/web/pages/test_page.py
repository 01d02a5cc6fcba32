from hypothesis import given
from hypothesis import strategies as st

from vlmill.pipelines.web.pages.addresses import srcset
from vlmill.pipelines.web.pages.markup import parse
from vlmill.pipelines.web.pages.page import Page, PageImage, read_page
from vlmill.runtime.units.funnel import Drop

URL = "http://a.org/dir/page.html"


def page(markup: str, *, images: int = 100) -> Page:
    tree = parse(markup, max_nesting=1_000)
    assert not isinstance(tree, Drop)
    page = read_page(tree, URL, max_text_chars=300, max_images=images)
    assert not isinstance(page, Drop)
    return page


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


def test_variants_of_one_image() -> None:
    image = one(
        "<a href=full.jpg><picture><source srcset='s.webp 1x'>"
        "<img src=small.jpg data-src=lazy.jpg srcset='m.jpg 400w, l.jpg 800w'></picture></a>"
    )
    names = [url.rsplit("/", 1)[1] for url in image.urls]
    assert names == ["l.jpg", "m.jpg", "lazy.jpg", "small.jpg", "s.webp", "full.jpg"]
    assert image.links_to_picture


def test_unusable_addresses_give_none() -> None:
    assert one("<img src='data:image/png;base64,'>").urls == ()
    assert one("<img src='javascript:x'>").urls == ()
    assert one("<img>").urls == ()


def test_srcset_urls_may_hold_commas() -> None:
    assert srcset("a,b.jpg 1x, c.jpg 2x") == ["c.jpg", "a,b.jpg"]
    assert srcset("") == [] and srcset(" , ,") == []


def test_metadata_names_a_image() -> None:
    head = "<meta property=og:image content=/a.jpg><meta name=description content='A cat.'>"
    shown = one(f"<head>{head}</head><img src=http://a.org/a.jpg>")
    assert shown.is_metadata and shown.metadata == ("A cat.",)
    hidden, other = sorted(page(f"<head>{head}</head><img src=b.jpg>").images, key=lambda i: i.urls)
    assert hidden.is_metadata and not other.is_metadata


def test_page_facts() -> None:
    found = page("<html lang=en-GB><title> A  page </title><p>Text of it.")
    assert (found.title, found.url) == ("A page", URL)


def test_each_image_has_its_own_texts() -> None:
    found = page(
        "<figure><img src=a.jpg><figcaption>About <b>A</b></figcaption></figure>"
        "<h2>Second</h2><img src=b.jpg><p>After.</p>"
    )
    first, second = found.images
    assert (first.caption, second.caption) == ("About A", "")
    assert [block.text for block in found.blocks[: second.block]] == ["About A", "Second"]
    assert found.blocks[second.block].text == "After."


def test_a_copy_for_browsers_without_scripts_is_the_same_image() -> None:
    image = one(
        "<img src=data:image/gif;base64,R0lG data-src=a.jpg>"
        "<noscript><img src=a.jpg alt='A cat.'></noscript>"
    )
    assert (image.urls, image.alt) == (("http://a.org/dir/a.jpg",), "A cat.")
    placeholder = one("<img src=data:image/gif;base64,R0lG><noscript><img src=b.webp></noscript>")
    assert placeholder.urls[0] == "http://a.org/dir/b.webp"


def test_a_image_in_the_page_is_kept_under_its_digest() -> None:
    found = page("<img src='data:image/png;base64,QUJD'><img src='data:image/svg+xml,<svg/>'>")
    ((name, content),) = found.inline
    assert content == b"ABC" and found.images[0].urls == (name,)
    assert name.startswith("urn:sha256:b5d4045c") and found.images[1].urls == ()


def test_any_attribute_that_is_named_like_a_image_counts() -> None:
    names = [u.rsplit("/", 1)[1] for u in one("<img src=x data-zoom='/full.avif'>").urls]
    assert names == ["x", "full.avif"]


def test_what_json_ld_says_of_images() -> None:
    said = (
        '[{"@graph": [{"@type": "ImageObject", "contentUrl": "/a.jpg", "caption": "A cat."},'
        '{"@type": "Article", "image": ["/b.jpg"], "license": "https://l.org/by"}]}]'
    )
    found = page(
        f"<script type='application/ld+json'>{said}</script>"
        "<script type='application/ld+json'>{broken</script><img src=/a.jpg>"
    )
    shown, hidden = found.images
    assert (shown.label, shown.is_metadata) == ("A cat.", True)
    assert hidden.urls == ("http://a.org/b.jpg",) and found.license == "https://l.org/by"


def test_licenses_are_links() -> None:
    cc = "https://creativecommons.org/licenses/by/4.0/"
    assert page(f"<a href='{cc}'>CC</a>").license == cc
    assert page("<a rel='nofollow license' href=/terms>x</a>").license == "/terms"
    assert page("<a href=https://creativecommons.org/>CC</a>").license is None


def test_empty_pages() -> None:
    for markup in ("", "<p>", "<html></html>", "\0"):
        assert page(markup).images == ()


def test_numbers_are_bounded() -> None:
    many = page("<img src=a.jpg>" * 50, images=10)
    assert (len(many.images), many.num_beyond) == (10, 40)
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
    found = page("".join(parts))
    orders = [image.order for image in found.images]
    assert orders == sorted(set(orders))
    assert all(0 <= image.block <= len(found.blocks) for image in found.images)


def test_labels_by_reference_and_of_the_link() -> None:
    text = "<p><b id=one>A red</b> <i id=two>fox</i></p>"
    assert one(f"{text}<img src=a.jpg aria-labelledby='one two none'>").label == "A red fox"
    assert one(f"{text}<a aria-labelledby=one><img src=a.jpg></a>").label == "A red"
    assert one("<img src=a.jpg aria-label=Fox aria-labelledby=one>").label == "Fox"
    assert one("<p id=one></p><img src=a.jpg aria-labelledby=one>").label == ""


def test_images_that_an_elements_own_style_paints() -> None:
    style = "color: red; background: #fff url(&quot;hero.jpg&quot;) no-repeat"
    image = one(f"<div role=img aria-label='A red fox' style='{style}'><h2>Foxes</h2></div>")
    assert image.urls == ("http://a.org/dir/hero.jpg",) and image.is_background
    assert (image.label, image.src) == ("A red fox", "hero.jpg")
    assert one("<img src=a.jpg style='background: url(wait.gif)'>").urls[0].endswith("a.jpg")
    assert page("<style>p {background: url(a.jpg)}</style><p style='color: red'>").images == ()
    assert page("<p style='background: none; content: url(a.jpg)'>").images == ()
    assert len(page("<p style='background:url(a.jpg)'>" * 5, images=3).images) == 3


def test_images_in_drawings() -> None:
    image = one("<svg><title>A red fox</title><g><image xlink:href=a.jpg /></g></svg>")
    assert image.urls == ("http://a.org/dir/a.jpg",) and image.label == "A red fox"
    assert one("<svg><image href=b.jpg></image></svg>").urls == ("http://a.org/dir/b.jpg",)
    assert page("<svg><image></image><path/></svg>").images[0].urls == ()
    assert len(page("<svg><image href=b.jpg /><image href=c.jpg /></svg>", images=1).images) == 1
