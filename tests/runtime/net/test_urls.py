import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vlmill.runtime.net.urls import join_key, resolve, resolve_any

PAGE = "http://example.org/a/b/page.html"


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("cat.jpg", "http://example.org/a/b/cat.jpg"),
        ("../cat.jpg", "http://example.org/a/cat.jpg"),
        ("../../../../cat.jpg", "http://example.org/cat.jpg"),
        ("/cat.jpg#part", "http://example.org/cat.jpg"),
        ("//cdn.example.org/cat.jpg", "http://cdn.example.org/cat.jpg"),
        ("HTTP://EXAMPLE.org:80/./x/../cat.jpg", "http://example.org/cat.jpg"),
        ("https://example.org:8443/cat.jpg?w=1", "https://example.org:8443/cat.jpg?w=1"),
        ("my cat.jpg", "http://example.org/a/b/my%20cat.jpg"),
        ("caf%c3%a9.jpg", "http://example.org/a/b/caf%C3%A9.jpg"),
        ("café.jpg", "http://example.org/a/b/caf%C3%A9.jpg"),
        ("http://bücher.example/x.jpg", "http://xn--bcher-kva.example/x.jpg"),
        ("c\nat.jpg", "http://example.org/a/b/cat.jpg"),
        ("a:b.jpg", None),
        ("data:image/png;base64,AAAA", None),
        ("javascript:alert(1)", None),
        ("ftp://example.org/cat.jpg", None),
        ("http://[::1", None),
        ("http://example.org:99999/", None),
        ("", None),
        ("x" * 5000, None),
    ],
)
def test_resolves_like_a_browser(reference: str, expected: str | None) -> None:
    assert resolve(PAGE, reference) == expected


@given(st.text(st.characters(), max_size=60))
@example("\ud800")
@example("a?b\udfffc")
def test_resolved_urls_are_ascii_and_stay_as_they_are(reference: str) -> None:
    url = resolve(PAGE, reference)
    if url is not None:
        assert url.isascii() and url.startswith(("http://", "https://")) and " " not in url
        assert resolve(PAGE, url) == url


def test_http_and_https_join() -> None:
    assert join_key("http://a.org/x") == join_key("https://a.org/x") != join_key("http://a.org/y")


@pytest.mark.parametrize(
    ("host", "ascii_host"),
    [
        ("bücher.de", "xn--bcher-kva.de"),
        ("BÜCHER.DE", "xn--bcher-kva.de"),
        ("straße.de", "xn--strae-oqa.de"),  # another site than strasse.de
        ("i❤.ws", "xn--i-7iq.ws"),  # of IDNA 2003 alone
        ("例え。テスト", "xn--r8jz45g.xn--zckzah"),
        ("１２７.0.0.1", "127.0.0.1"),
        ("é" * 64 + ".de", None),
        ("\u202e.de", None),
    ],
)
def test_international_hosts(host: str, ascii_host: str | None) -> None:
    assert resolve("", f"http://{host}/a") == (ascii_host and f"http://{ascii_host}/a")


@given(
    st.sampled_from((PAGE, "http://a.org", "https://a.org:81/x/?q", "mailto:x", "http://É.org/é/")),
    st.lists(
        st.sampled_from(
            ("http://b.org", "https:", "/", "a", ".", "..", "~b-1_", "x.jpg", "B", "é")
        ),
        max_size=6,
    ).map("".join),
)
def test_the_fast_way_gives_what_the_whole_rule_gives(base: str, reference: str) -> None:
    assert resolve(base, reference) == resolve_any(base, reference)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://www.a.org/b.jpg", "https://a.org/b.jpg"),
        ("http://a.org/b%2Cc~d.jpg", "http://a.org/b,c%7Ed.jpg"),
        ("http://a.org/b.jpg?v=17&t=2", "http://a.org/b.jpg"),
    ],
)
def test_forms_of_one_image_join(one: str, other: str) -> None:
    assert join_key(one) == join_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://a.org/b.jpg?w=17", "http://a.org/b.jpg"),
        ("http://a.org/show.php?v=17", "http://a.org/show.php?v=18"),
        ("http://a.org/b%2Fc.jpg", "http://a.org/b/c.jpg"),
        ("http://a.org/b.jpg", "http://b.org/b.jpg"),
    ],
)
def test_different_images_do_not_join(one: str, other: str) -> None:
    assert join_key(one) != join_key(other)
