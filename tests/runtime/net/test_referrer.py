"""What a request says of the page that it comes from."""

import pytest

from vlmill.runtime.net.exchange import referrer_for

PAGE = "https://a.org/dir/page?q=1"


@pytest.mark.parametrize(
    ("url", "page", "referrer"),
    [
        ("https://a.org/a.jpg", PAGE, PAGE),
        ("https://b.org/a.jpg", PAGE, "https://a.org/"),
        ("http://a.org/a.jpg", PAGE, None),
        ("https://a.org/a.jpg", "http://a.org/page", "http://a.org/"),
        ("https://a.org/a.jpg", None, None),
    ],
)
def test_the_referrer_is_that_of_browsers(url: str, page: str | None, referrer: str | None) -> None:
    assert referrer_for(url, page) == referrer
