# ruff: noqa: E501
"""Pages as they are written everywhere, each with the pair that a careful reader would take.

All pages lie in one archive, each on a host of its own, and are mined in one run.
"""

import base64
import io
import json
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from tests.factories import NO_MODELS
from tests.pipelines.conftest import make_image, make_response
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from vlmill.pipelines.web_pairs import __main__ as command
from vlmill.runtime.files.reading import read_table
from vlmill.schemas.ids import compute_image_id
from vlmill.schemas.tables import PAIRS

PROSE = {
    "en": "<p>We walked along the river all day and talked about the weather, the books that we "
    "had read and what we wanted to cook in the evening with our old friends.</p>",
    "de": "<p>Wir sind den ganzen Tag am Fluss entlang gegangen und haben über das Wetter, unsere "
    "Bücher und das Abendessen mit alten Freunden gesprochen.</p>",
    "fr": "<p>Nous avons marché toute la journée le long de la rivière en parlant du temps, de nos "
    "livres et de ce que nous voulions préparer le soir avec nos vieux amis.</p>",
    "es": "<p>Caminamos todo el día a lo largo del río y hablamos del tiempo, de los libros que "
    "habíamos leído y de lo que queríamos cocinar por la noche con los amigos.</p>",
    "it": "<p>Abbiamo camminato tutto il giorno lungo il fiume e abbiamo parlato del tempo, dei "
    "libri che avevamo letto e di che cosa volevamo cucinare la sera.</p>",
    "pt": "<p>Caminhámos todo o dia ao longo do rio e falámos do tempo, dos livros que tínhamos "
    "lido e do que queríamos cozinhar à noite com os nossos velhos amigos.</p>",
    "ru": "<p>Мы весь день шли вдоль реки и говорили о погоде, о прочитанных книгах и о том, что "
    "хотели приготовить вечером со старыми друзьями.</p>",
    "ko": "<p>우리는 하루 종일 강을 따라 걸으며 날씨와 읽은 책, 그리고 저녁에 오랜 친구들과 함께 "
    "무엇을 요리할지 이야기했습니다.</p>",
    "ar": "<p>مشينا طوال اليوم على طول النهر وتحدثنا عن الطقس وعن الكتب التي قرأناها وعما نريد أن "
    "نطبخه في المساء مع أصدقائنا القدامى.</p>",
    "th": "<p>เราเดินเลียบแม่น้ำตลอดทั้งวันและคุยกันเรื่องอากาศ หนังสือที่อ่าน และสิ่งที่อยากทำอาหารในตอนเย็นกับเพื่อนเก่า</p>",
    "zh": "<p>我们整天沿着河边散步，谈论天气、读过的书，以及晚上想和老朋友们一起做什么菜。</p>",
    "ja": "<p>私たちは一日中川沿いを歩き、天気や読んだ本のこと、夜に古い友人たちと何を料理するかについて話しました。</p>",
}
BOAT = "A red boat on the lake"
HORSE = "Two horses in the morning mist"


ROW = {
    "red-boat.jpg": BOAT,
    "two-horses.jpg": HORSE,
    "snow-church.jpg": "A church in the deep snow",
}
LATE = (BOAT, HORSE, "A church in the snow", "Bread on a wooden table")


class Case(NamedTuple):
    """A page's body, and the texts of its images as a reader would give them.

    ``texts`` are by images, which lie at /a.jpg and so on; another that is there gives no pair.
    ``files`` says which image lies elsewhere, by its address. ``$host`` is the page's host, and
    ``$inline`` image a as an address.
    """

    name: str
    body: str
    texts: dict[str, str] = {"a": BOAT}  # noqa: RUF012
    head: str = ""
    files: dict[str, str] = {}  # noqa: RUF012
    language: str = "en"
    type: str = "text/html; charset=utf-8"
    encoding: str = "utf-8"


CASES = (
    Case("alt", f"<img src=a.jpg alt='{BOAT}'>"),
    Case("alt in capitals of a tag", f"<IMG SRC=a.jpg ALT='{BOAT}'>"),
    Case(
        "entities in alt",
        "<img src=a.jpg alt='Smith &amp; Sons&#39; old shop'>",
        {"a": "Smith & Sons' old shop"},
    ),
    Case("title", f"<img src=a.jpg title='{BOAT}'>"),
    Case("title of the link", f"<a href=/more title='{BOAT}'><img src=a.jpg></a>"),
    Case("aria-label", f"<img src=a.jpg aria-label='{BOAT}'>"),
    Case("aria-label of the link", f"<a href=/more aria-label='{BOAT}'><img src=a.jpg></a>"),
    Case("figcaption", f"<figure><img src=a.jpg><figcaption>{BOAT}</figcaption></figure>"),
    Case("figcaption above", f"<figure><figcaption>{BOAT}</figcaption><img src=a.jpg></figure>"),
    Case(
        "figcaption with markup",
        "<figure><img src=a.jpg><figcaption>A <b>red</b> boat <i>on the</i> lake</figcaption></figure>",
    ),
    Case(
        "figure of two images",
        f"<figure><img src=a.jpg alt='{BOAT}'></figure><figure><img src=b.jpg><figcaption>{HORSE}</figcaption></figure>",
        {"a": BOAT, "b": HORSE},
    ),
    Case(
        "nested figures",
        f"<figure><figure><img src=a.jpg><figcaption>{BOAT}</figcaption></figure><figure><img src=b.jpg><figcaption>{HORSE}</figcaption></figure></figure>",
        {"a": BOAT, "b": HORSE},
    ),
    Case(
        "figcaption with a table",
        f"<figure><img src=a.jpg><figcaption>{BOAT}<table><tr><td>1<td>2</table></figcaption></figure>",
    ),
    Case(
        "WordPress",
        f"<div class='wp-caption alignnone'><img src=a.jpg><p class=wp-caption-text>{BOAT}</p></div>",
    ),
    Case(
        "gallery of MediaWiki",
        f"<ul class=gallery><li><div class=thumb><a href=/wiki/File:A><img src=a.jpg></a></div><div class=gallerytext>{BOAT}</div></li></ul>",
    ),
    Case(
        "image behind a thumbnail",
        f"<a href=a.jpg><img src=thumb.jpg width=100 height=80 alt='{BOAT}'></a>",
    ),
    Case(
        "srcset with widths",
        f"<img src=gone.jpg srcset='gone.jpg 100w, a.jpg 800w' sizes=100vw alt='{BOAT}'>",
    ),
    Case("srcset with densities", f"<img srcset='gone.jpg 1x, a.jpg 2x' alt='{BOAT}'>"),
    Case(
        "later entry of srcset",
        f"<img src=gone.jpg srcset='gone2.jpg 900w, a.jpg 400w' alt='{BOAT}'>",
    ),
    Case(
        "srcset with commas in addresses",
        f"<img srcset='x/w_100,h_50/gone.jpg 1x, x/a,b/a.jpg 2x' alt='{BOAT}'>",
        files={"/x/a,b/a.jpg": "a"},
    ),
    Case("source", f"<picture><source srcset=a.jpg><img src=gone.jpg alt='{BOAT}'></picture>"),
    Case(
        "later source",
        f"<picture><source srcset=no.avif type=image/avif><source srcset='no.webp 1x, a.jpg 2x'><img src=gone.jpg alt='{BOAT}'></picture>",
    ),
    Case(
        "source loaded late",
        f"<picture><source data-srcset=a.jpg><img src='data:image/gif;base64,R0lGODlhAQABAAAAACw=' alt='{BOAT}'></picture>",
    ),
    *(
        Case(f"late by {name}", f"<img src=blank.gif {name}=a.jpg alt='{BOAT}'>")
        for name in (
            "data-src",
            "data-original",
            "data-lazy-src",
            "data-lazy",
            "data-echo",
            "data-srcset",
            "data-lazyload",
            "data-hires",
            "data-original-src",
            "data-img-url",
            "nitro-lazy-src",
            "data-flickity-lazyload",
            "data-pin-media",
        )
    ),
    Case(
        "late without a file's ending",
        f"<img src=blank.gif data-foo=/media/a alt='{BOAT}'>",
        files={"/media/a": "a"},
    ),
    Case(
        "late within JSON",
        f"<img src=blank.gif data-settings='{{&quot;src&quot;: &quot;/a.jpg&quot;}}' alt='{BOAT}'>",
    ),
    Case(
        "noscript",
        f"<img class=lazy src='data:image/gif;base64,R0lGODlhAQABAAAAACw='><noscript><img src=a.jpg alt='{BOAT}'></noscript>",
    ),
    Case("noscript alone", f"<noscript><img src=a.jpg alt='{BOAT}'></noscript>"),
    Case(
        "placeholders that many share",
        "".join(
            f"<p><img src=blank.gif data-src={c}.jpg alt='{t}'></p>"
            for c, t in zip("abcd", LATE, strict=True)
        ),
        dict(zip("abcd", LATE, strict=True)),
    ),
    Case(
        "large placeholder",
        f"<img src=large.jpg data-src=a.jpg alt='{BOAT}'><img src=large.jpg data-src=b.jpg alt='{HORSE}'><img src=large.jpg data-src=c.jpg alt='A church in the snow'>",
        {"a": BOAT, "b": HORSE, "c": "A church in the snow"},
        files={"/large.jpg": "z", "/a.jpg": "a", "/b.jpg": "b", "/c.jpg": "c"},
    ),
    Case(
        "base href",
        f"<img src=a.jpg alt='{BOAT}'>",
        head="<base href='/x/y/'>",
        files={"/x/y/a.jpg": "a"},
    ),
    Case("address without a scheme", f"<img src='//$host/a.jpg' alt='{BOAT}'>"),
    Case("address with dots", f"<img src='../x/./a.jpg' alt='{BOAT}'>", files={"/x/a.jpg": "a"}),
    Case("address with spaces", f"<img src=' a.jpg\n' alt='{BOAT}'>"),
    Case(
        "address in other letters",
        f"<img src='bilder/größe a.jpg' alt='{BOAT}'>",
        files={"/bilder/gr%C3%B6%C3%9Fe%20a.jpg": "a"},
    ),
    Case(
        "another host's image",
        f"<img src='http://cdn.example/$host/a.jpg' alt='{BOAT}'>",
        files={"http://cdn.example/$host/a.jpg": "a"},
    ),
    Case(
        "query after the name",
        f"<img src='a.jpg?w=800&amp;h=600' alt='{BOAT}'>",
        files={"/a.jpg?w=800&h=600": "a"},
    ),
    Case("https of an http image", f"<img src='https://$host/a.jpg' alt='{BOAT}'>"),
    Case("fragment after the name", f"<img src='a.jpg#big' alt='{BOAT}'>"),
    Case("redirect", f"<img src=moved.jpg alt='{BOAT}'>", files={"/there.jpg": "a"}),
    Case("revisit", f"<img src=again.jpg alt='{BOAT}'>", files={"/before.jpg": "a"}),
    Case("inline image", f"<img src='$inline' alt='{BOAT}'>", files={"/none.jpg": "z"}),
    Case("WebP", f"<img src=a.webp alt='{BOAT}'>", files={"/a.webp": "a"}),
    Case("AVIF", f"<img src=a.avif alt='{BOAT}'>", files={"/a.avif": "a"}),
    Case("PNG", f"<img src=a.png alt='{BOAT}'>", files={"/a.png": "a"}),
    Case("GIF", f"<img src=a.gif alt='{BOAT}'>", files={"/a.gif": "a"}),
    Case("no file's ending", f"<img src='/image?id=a' alt='{BOAT}'>", files={"/image?id=a": "a"}),
    Case(
        "og:image",
        "",
        head=f"<meta property=og:image content=a.jpg><meta property=og:image:alt content='{BOAT}'>",
    ),
    Case(
        "og:image of a shown image",
        "<img src=a.jpg>",
        head=f"<meta property=og:image content=a.jpg><meta property=og:image:alt content='{BOAT}'>",
    ),
    Case(
        "twitter:image",
        "",
        head=f"<meta name=twitter:image content=a.jpg><meta name=twitter:image:alt content='{BOAT}'>",
    ),
    Case(
        "JSON-LD",
        "<img src=a.jpg>",
        head=f"<script type='application/ld+json'>{json.dumps({'@type': 'ImageObject', 'contentUrl': '/a.jpg', 'caption': BOAT})}</script>",
    ),
    Case(
        "JSON-LD within a graph",
        "",
        head=f"<script type='application/ld+json'>{json.dumps({'@graph': [{'@type': 'Article', 'image': {'@type': 'ImageObject', 'url': 'a.jpg', 'caption': BOAT}}]})}</script>",
    ),
    Case(
        "JSON-LD with several types",
        "",
        head=f"<script type='application/ld+json'>{json.dumps({'@type': ['ImageObject', 'Thing'], 'contentUrl': 'a.jpg', 'name': BOAT})}</script>",
    ),
    Case("amp-img", f"<amp-img src=a.jpg width=400 height=320 alt='{BOAT}'></amp-img>"),
    Case("poster of a film", f"<video poster=a.jpg title='{BOAT}'></video>"),
    Case(
        "text that points",
        "<p>Here is a view of the red boat on the lake:</p><img src=red-boat.jpg>",
        {"a": "Here is a view of the red boat on the lake"},
        files={"/red-boat.jpg": "a"},
    ),
    Case(
        "captions below in a row",
        "<div>"
        + "".join(f"<p><img src={name}></p><p>{text}</p>" for name, text in ROW.items())
        + "</div>",
        dict(zip("abc", ROW.values(), strict=True)),
        files={f"/{name}": letter for name, letter in zip(ROW, "abc", strict=True)},
    ),
    Case(
        "captions above in a row",
        "<div>"
        + "".join(f"<p>{text}</p><p><img src={name}></p>" for name, text in ROW.items())
        + "</div>",
        dict(zip("abc", ROW.values(), strict=True)),
        files={f"/{name}": letter for name, letter in zip(ROW, "abc", strict=True)},
    ),
    Case(
        "heading that the file's name supports",
        f"<h2>{BOAT}</h2><img src=red-boat-lake.jpg>",
        files={"/red-boat-lake.jpg": "a"},
    ),
    Case(
        "quotation marks",
        "<img src=a.jpg alt='The sign says “Keep off the grass” in red'>",
        {"a": "The sign says “Keep off the grass” in red"},
    ),
    Case(
        "Latin 1",
        "<img src=a.jpg alt='Ein Käse auf dem Tisch in Köln'>",
        {"a": "Ein Käse auf dem Tisch in Köln"},
        language="de",
        type="text/html",
        encoding="latin-1",
        head="<meta charset=iso-8859-1>",
    ),
    Case(
        "Windows-1251",
        "<img src=a.jpg alt='Красная лодка на озере'>",
        {"a": "Красная лодка на озере"},
        language="ru",
        type="text/html; charset=windows-1251",
        encoding="cp1251",
    ),
    Case(
        "Shift JIS",
        "<img src=a.jpg alt='湖に浮かぶ赤いボート'>",
        {"a": "湖に浮かぶ赤いボート"},
        language="ja",
        type="text/html; charset=shift_jis",
        encoding="shift_jis",
    ),
    Case("UTF-16", f"<img src=a.jpg alt='{BOAT}'>", encoding="utf-16"),
    Case("XHTML", f"<img src='a.jpg' alt='{BOAT}' />", type="application/xhtml+xml"),
    Case(
        "French",
        "<img src=a.jpg alt='Un bateau rouge sur le lac'>",
        {"a": "Un bateau rouge sur le lac"},
        language="fr",
    ),
    Case(
        "Spanish",
        "<img src=a.jpg alt='Una barca roja en el lago'>",
        {"a": "Una barca roja en el lago"},
        language="es",
    ),
    Case(
        "Italian",
        "<img src=a.jpg alt='Una barca rossa sul lago'>",
        {"a": "Una barca rossa sul lago"},
        language="it",
    ),
    Case(
        "Portuguese",
        "<img src=a.jpg alt='Um barco vermelho no lago'>",
        {"a": "Um barco vermelho no lago"},
        language="pt",
    ),
    Case(
        "Korean",
        "<figure><img src=a.jpg><figcaption>호수 위의 빨간 배</figcaption></figure>",
        {"a": "호수 위의 빨간 배"},
        language="ko",
    ),
    Case(
        "Arabic",
        "<figure><img src=a.jpg><figcaption>قارب أحمر على البحيرة</figcaption></figure>",
        {"a": "قارب أحمر على البحيرة"},
        language="ar",
    ),
    Case(
        "Thai",
        "<figure><img src=a.jpg><figcaption>เรือสีแดงในทะเลสาบ</figcaption></figure>",
        {"a": "เรือสีแดงในทะเลสาบ"},
        language="th",
    ),
    Case(
        "Chinese",
        "<img src=a.jpg alt='湖上的一艘红色小船'>",
        {"a": "湖上的一艘红色小船"},
        language="zh",
    ),
    Case(
        "Japanese",
        "<img src=a.jpg alt='湖に浮かぶ赤いボート'>",
        {"a": "湖に浮かぶ赤いボート"},
        language="ja",
    ),
    # What gives no pair.
    Case("icon", "<img src=a.jpg class=icon alt='Open the settings'>", {}),
    Case("logo", "<img src=logo.jpg alt='Example company'>", {}, files={"/logo.jpg": "a"}),
    Case("menu", f"<nav><img src=a.jpg alt='{BOAT}'></nav>", {}),
    Case("footer", f"<footer><img src=a.jpg alt='{BOAT}'></footer>", {}),
    Case("advertisement", f"<div class=advertisement><img src=a.jpg alt='{BOAT}'></div>", {}),
    Case("shown as a dot", f"<img src=a.jpg width=1 height=1 alt='{BOAT}'>", {}),
    Case("template", f"<template><img src=a.jpg alt='{BOAT}'></template>", {}),
    Case("comment", f"<!-- <img src=a.jpg alt='{BOAT}'> -->", {}),
    Case("words for any image", "<img src=a.jpg alt=image>", {}),
    Case("file's name", "<img src=a.jpg alt='DSC_0042.JPG'>", {}),
    Case(
        "site's description",
        "",
        {},
        head="<meta property=og:image content=a.jpg><meta name=description content='News and views from all over the country'>",
    ),
)


def image_of(number: int, letter: str, path: str) -> bytes:
    """An image of this case alone, in the format that its name says."""
    suffix = path.rpartition(".")[2]
    format_ = suffix.upper() if suffix in ("webp", "avif", "png", "gif") else "JPEG"
    return make_image(400 + number, 320 + ord(letter) - ord("a"), format=format_)


def files_of(case: Case) -> dict[str, str]:
    return case.files or {f"/{letter}.jpg": letter for letter in case.texts or "a"}


def records_of(number: int, case: Case) -> Iterator[bytes]:
    """The page, its images, and what leads to them."""
    host = f"case{number}.example"
    inline = base64.b64encode(image_of(number, "a", "")).decode()
    page = (
        (
            f"<html lang={case.language}><head><title>Page</title>{case.head}</head><body><main>"
            f"{case.body}</main>{PROSE[case.language]}</body></html>"
        )
        .replace("$host", host)
        .replace("$inline", f"data:image/jpeg;base64,{inline}")
    )
    yield make_response(
        f"http://{host}/x/page.html".replace("/x/", "/x/" if "../" in page else "/"),
        page.encode(case.encoding),
        case.type,
    )
    for path, letter in files_of(case).items():
        path = path.replace("$host", host)
        url = path if "://" in path else f"http://{host}{path}"
        yield make_response(url, image_of(number, letter, path), "image/jpeg")
    if case.name == "redirect":
        yield make_response(
            f"http://{host}/moved.jpg", b"", "text/html", status="302 Found", Location="/there.jpg"
        )
    if case.name == "revisit":
        yield revisit(f"http://{host}/again.jpg", f"http://{host}/before.jpg")


def revisit(url: str, target: str) -> bytes:
    out = io.BytesIO()
    writer = WARCWriter(out, gzip=True)
    http = StatusAndHeaders("304 Not Modified", [], protocol="HTTP/1.1")
    writer.write_record(
        writer.create_revisit_record(url, "sha1:AAAA", target, "2024-01-01T00:00:00Z", http)
    )
    return out.getvalue()


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The text of each image that the job keeps, by image id."""
    folder = tmp_path_factory.mktemp("cases")
    warc = folder / "cases.warc.gz"
    warc.write_bytes(b"".join(r for n, case in enumerate(CASES) for r in records_of(n, case)))
    flags = ["--warc", str(warc), "--output", str(folder / "out"), "--language", "any"]
    flags += ["--max-images-per-text", str(10 * len(CASES))]  # texts recur here
    assert command.main([*flags, *NO_MODELS, "--workers", "1"]) == 0
    pairs = read_table(folder / "out", PAIRS)
    return dict(zip(pairs["image_id"].to_pylist(), pairs["text"].to_pylist(), strict=True))


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_a_page_gives_the_pairs_that_a_reader_takes(number: int, texts: dict[str, str]) -> None:
    case = CASES[number]
    images = {letter: path for path, letter in files_of(case).items()}
    images |= {letter: images.get(letter, "") for letter in case.texts}
    ids = {p: compute_image_id(image_of(number, p, path)) for p, path in images.items()}
    assert {p: texts[key] for p, key in ids.items() if key in texts} == case.texts
