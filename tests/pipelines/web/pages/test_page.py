import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmill.pipelines.web.pages.addresses import srcset, unwrap_proxy
from vlmill.pipelines.web.pages.markup import parse, take_out_data
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


@pytest.mark.parametrize(
    ("value", "references"),
    [
        ("a.jpg, b.jpg 2x", ["b.jpg", "a.jpg"]),
        ("x,y.jpg 300w,z.jpg 1e3w", ["z.jpg", "x,y.jpg"]),
        ("a.jpg 300w 200h, b.jpg 600w 400h", ["b.jpg", "a.jpg"]),
        ("data:image/gif;base64,AAAA 1x, b.jpg 2x", ["b.jpg", "data:image/gif;base64,AAAA"]),
        (" , a.jpg 1.5x,b.jpg 3x , ", ["b.jpg", "a.jpg"]),
    ],
)
def test_every_form_of_srcset(value: str, references: list[str]) -> None:
    assert srcset(value) == references


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://a.org/_next/image?url=https%3A%2F%2Fb.org%2Fa.jpg&w=3", "https://b.org/a.jpg"),
        ("http://a.org/_next/image?url=%2Fa.jpg&w=3", "http://a.org/a.jpg"),
        ("http://a.org/_ipx/w_640/https://b.org/a.jpg", "https://b.org/a.jpg"),
        ("http://a.org/image/fetch/w_4/https%3A%2F%2Fb.org%2Fa.jpeg", "https://b.org/a.jpeg"),
        ("https://i0.wp.com/b.org/a.jpg?w=3", "https://b.org/a.jpg"),
        ("http://a.org/login?url=https://b.org/", None),
    ],
)
def test_the_original_of_an_image_proxy(url: str, origin: str | None) -> None:
    assert unwrap_proxy(url) == origin


def test_images_of_objects_and_late_backgrounds() -> None:
    image = one("<object data=a.jpg type=image/jpeg width=640>Loaves</object>")
    assert (image.urls, image.width) == (("http://a.org/dir/a.jpg",), 640)
    assert one("<object data=a.svg type=image/svg+xml><img src=b.jpg></object>").urls == (
        "http://a.org/dir/b.jpg",
    )
    pier = one("<div class=hero role=img aria-label='A pier at dawn' data-bg='/pier.jpg'></div>")
    assert (pier.urls, pier.label) == (("http://a.org/pier.jpg",), "A pier at dawn")


def test_preloads_give_further_addresses() -> None:
    markup = (
        "<head><link rel=preload as=image imagesrcset='s.jpg 640w, l.jpg 1920w'></head>"
        "<body><img src=s.jpg></body>"
    )
    assert one(markup).urls == ("http://a.org/dir/s.jpg", "http://a.org/dir/l.jpg")


def test_shadow_roots_are_shown_and_templates_are_not() -> None:
    markup = (
        "<x-card><template shadowrootmode=open><template><img src=no.jpg></template>"
        "<img src=a.jpg></template></x-card><template><img src=b.jpg></template>"
    )
    assert one(markup).urls == ("http://a.org/dir/a.jpg",)


@pytest.mark.parametrize(
    "json",
    [
        '{"@type": "ImageObject", "url": "a.jpg", "caption": "Two lines\nof text"}',
        '//<![CDATA[\n{"@type":"ImageObject","url":"a.jpg","caption":"Two lines of text"}\n//]]>',
        '<!-- {"@type":"ImageObject",/* c */"url":"a.jpg","caption":"Two lines of text",} -->',
    ],
)
def test_json_ld_as_themes_write_it(json: str) -> None:
    image = one(f'<script type="application/ld+json">{json}</script>')
    assert (image.urls, image.label) == (("http://a.org/dir/a.jpg",), "Two lines of text")


def test_data_of_a_front_end_names_images_with_their_texts() -> None:
    data = '{"props": {"hero": {"src": "/h.jpg", "alt": "A boat at low tide"}, "x": {"src": "y"}}}'
    image = one(f'<script id=__NEXT_DATA__ type="application/json">{data}</script>')
    assert (image.urls, image.label) == (("http://a.org/h.jpg",), "A boat at low tide")


@pytest.mark.parametrize(
    "markup",
    [
        "<img src=a.jpg aria-describedby=d><p id=d>A red boat</p>",
        "<div role=figure aria-labelledby=d><img src=a.jpg></div><p id=d>A red boat</p>",
        "<div itemscope itemtype='https://schema.org/ImageObject'><img itemprop=contentUrl "
        "src=a.jpg><meta itemprop=caption content='A red boat'></div>",
        "<table class='infobox v'><tr><td colspan=2><img src=a.jpg><tr><td>A red boat</table>",
        "<figure><img src=a.jpg><figcaption>A red boat <span class=photo-credit>Jane Doe</span>"
        "</figcaption></figure>",
        "<figure><img src=a.jpg><figcaption><small class=credit>Jane Doe</small> A red boat"
        "</figcaption></figure>",
    ],
)
def test_captions_by_reference_without_credits(markup: str) -> None:
    assert one(f"<body>{markup}</body>").caption == "A red boat"


def test_data_uris_leave_the_markup_and_their_images_stay() -> None:
    jpeg = "data:image/jpeg;base64," + "/9j/" * 2_000
    font = "data:font/woff2;base64," + "AAAA" * 2_000
    source = take_out_data(f"<style>@font-face{{src:url({font})}}</style><img src='{jpeg}'>")
    assert len(source.text) < 200 and source.data_images == [jpeg]
    tree = parse(source.text, max_nesting=1_000)
    assert not isinstance(tree, Drop)
    read = read_page(tree, URL, max_text_chars=9, max_images=9, data_images=source.data_images)
    assert not isinstance(read, Drop)
    ((name, data),) = read.inline
    assert read.images[0].urls == (name,) and data == b"\xff\xd8\xff" * 2_000
