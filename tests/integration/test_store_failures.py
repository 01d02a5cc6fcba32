"""A store that cannot be read ends each command in one line, with nothing written."""

import importlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.factories import NO_MODELS
from tests.object_stores import forget_stores
from tests.runtime.files.test_stores import failing

COMMANDS = {
    "web_pairs": ["--warc", "{0}/*.warc.gz", *NO_MODELS],
    "hard_negatives": ["--pairs", "{0}/pairs"],
    "nearest_images": ["--regions", "{0}/regions"],
    "regions": ["--images", "{0}/images", "--arch", "tiny"],
    "tables": ["concat", "{0}/pairs"],
    "manifest": ["cc", "--input", "{0}/in"],
    "crawl": ["--urls", "{0}/urls.txt", "--contact", "me@example.org"],
}
FAILURES = {
    "no bucket": (2, "the bucket vlmill-nowhere does not exist; create it"),
    "no credentials": (2, "no credentials"),
    "500": (1, "the store has failed for"),
    "cut": (1, "the store has failed for"),
}


# Each command meets a store that answers 500, two of them the rest.
CASES = [
    (name, failure)
    for failure in FAILURES
    for name in (COMMANDS if failure == "500" else ("web_pairs", "hard_negatives"))
]


@pytest.fixture
def failure(
    request: pytest.FixtureRequest, s3: dict[str, str], bucket: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """What is wrong with the store."""
    with ExitStack() as stack:
        if request.param == "no credentials":
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                monkeypatch.delenv(name)
            # They are looked for, and not found.
            monkeypatch.setenv("AWS_PROFILE", "nobody")
            monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
            monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
            forget_stores()
        elif request.param != "no bucket":
            stack.enter_context(failing(monkeypatch, s3, request.param, patience="0"))
        yield request.param
    forget_stores()


@pytest.mark.parametrize(("name", "failure"), CASES, indirect=["failure"])
def test_a_command_says_so(
    name: str, failure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = importlib.import_module(f"vlmill.pipelines.{name}.__main__").main
    words = [word.format("s3://vlmill-nowhere/x") for word in COMMANDS[name]]
    status, said = FAILURES[failure]
    assert main([*words, "--output", str(tmp_path / "out")]) == status
    error = capsys.readouterr().err
    assert said in error and "s3://vlmill-nowhere/x" in error and "Traceback" not in error
    assert not (tmp_path / "out").exists() and not Path("s3:").exists()
