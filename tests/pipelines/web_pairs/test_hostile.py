"""Archives with images that cost too much: each is a reject, and the job goes on."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tests.factories import NO_MODELS
from worlds.hostile_images import IMAGES

from vlmill.pipelines.web_pairs import __main__ as command
from vlmill.runtime.files.reading import read_table
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import PAIRS, REJECTS

Make = Callable[..., bytes]
Pack = Callable[[Path, Sequence[tuple[str, bytes, str]]], Path]
SITE = "http://site.example/"
MOST_BYTES = 1 << 20
ACCEPTED = ("JPEG", "PNG", "GIF", "WebP", "AVIF")  # formats that the job takes
PAGE = (
    "<html lang=en><body><main><img src=/good.jpg alt='A black cat on a mat'></main><p>This is a "
    "page in plain English with enough words in it for anybody to see that it is, and it goes on "
    "for a while about nothing in particular.</p>"
)


def test_hostile_images_are_rejects_of_a_job_in_processes(
    image: Make, archive: Pack, tmp_path: Path
) -> None:
    responses, reasons = [], {}
    for number, (name, hostile) in enumerate(IMAGES.items()):
        if name.partition(",")[0] not in ACCEPTED or hostile.reason is None:
            continue
        data = hostile.make()
        if len(data) < MOST_BYTES:
            url = f"{SITE}{number}.jpg"
            responses.append((url, data, "image/jpeg"))
            reasons[url] = hostile.reason
    assert Reason.TOO_EXPENSIVE in reasons.values()
    # Each is on the page, so that those with a harmless header are decoded.
    shown = "".join(
        f"<img src={url} alt='A red boat, {chr(97 + n % 26)}{n}, on the lake'>"
        for n, url in enumerate(reasons)
    )
    good = [
        (f"{SITE}a.html", (PAGE + shown).encode(), "text/html"),
        (f"{SITE}good.jpg", image(320, 310), "image/jpeg"),
    ]
    for number in range(2):  # a process each, which starts the one that decodes
        archive(tmp_path / f"{number}.warc.gz", [*responses[number::2], *good[number::2]])
    output = tmp_path / "out"
    warcs = str(tmp_path / "*.warc.gz")
    flags = ["--warc", warcs, "--output", str(output), "--workers", "2", *NO_MODELS]
    assert command.main(flags) == 0
    assert read_table(output, PAIRS).num_rows == 1
    rejects = read_table(output, REJECTS).to_pylist()
    found = {row["key"]: row["reason"] for row in rejects if row["stage"] in ("pictures", "decode")}
    assert found.keys() == reasons.keys()
    # A header that rules an image out is enough: its parts are not counted then.
    by_size = (Reason.TOO_SMALL, Reason.TOO_LARGE)
    assert all(found[url] in (reason, *by_size) for url, reason in reasons.items())
    assert Reason.TOO_EXPENSIVE in found.values()
