"""Names of weights: what each part means, and what is refused."""

import pytest

from vlmill.runtime.weights.names import (
    HubLocation,
    WebLocation,
    is_named,
    parse_name,
    parse_repository,
)
from vlmill.schemas.errors import InputError

DIGEST = "Ab" * 32


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("hf://a/b", HubLocation(repo="a/b")),
        ("hf://a/b@v1", HubLocation(repo="a/b", revision="v1")),
        ("hf://a/b/c.pth", HubLocation(repo="a/b", path="c.pth")),
        (
            "hf://a/b/d/c.pth@refs/pr/1",
            HubLocation(repo="a/b", path="d/c.pth", revision="refs/pr/1"),
        ),
        (f"hf://a/b#sha256={DIGEST}", HubLocation(repo="a/b", sha256=DIGEST.lower())),
        ("https://h/c.pth?dl=1", WebLocation(url="https://h/c.pth?dl=1")),
        (f"http://h/c#sha256={DIGEST}", WebLocation(url="http://h/c", sha256=DIGEST.lower())),
    ],
)
def test_a_name_has_parts(text: str, location: HubLocation | WebLocation) -> None:
    assert is_named(text) and parse_name(text) == location


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf://a", "expected hf://OWNER/NAME"),
        ("hf://a/b/../c", "expected hf://OWNER/NAME"),
        ("hf://a/b//c", "expected hf://OWNER/NAME"),
        ("hf://a/b@", "expected hf://OWNER/NAME"),
        ("hf://a/b#sha256=12", "64 hexadecimal digits"),
        ("hf://a/b#md5=12", "64 hexadecimal digits"),
        ("https://host", "the address of a file"),
        ("https:///x", "the address of a file"),
        ("http://host/x", "does not protect a download"),
    ],
)
def test_other_texts_are_refused(text: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected) as error:
        parse_name(text)
    assert text in str(error.value)


def test_a_repository_has_no_file() -> None:
    assert parse_repository("hf://a/b@v1").revision == "v1"
    with pytest.raises(InputError, match="OWNER/NAME alone"):
        parse_repository("hf://a/b/c")


@pytest.mark.parametrize("text", ["a/b", "s3://bucket/key", "hf:/a/b", "", None])
def test_paths_are_no_names(text: str | None) -> None:
    assert not is_named(text)
