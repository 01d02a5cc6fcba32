"""Mutated images, pages, archives, tables and checkpoints: no crash, and each is accounted for.

``--mutations N`` (100; make test-long: 1000) of each kind. A failure names the number of the input:
``mutate(data, name, number)`` of tests/mutations.py makes it again.
"""

import gzip
import io
import json
import pickle
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from fastwarc.stream_io import ZstdWriter
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from safetensors.torch import save
from tests.factories import NO_MODELS, Tables, write_images
from tests.factories import caption as sentence
from tests.mutations import CHANGES, Change, mutate, mutations, nested
from tests.pipelines.conftest import make_response

from vlmill.extract.config import InputLimits
from vlmill.extract.images.decode import decode as extraction_pixels
from vlmill.extract.images.discovery import Skipped
from vlmill.extract.images.tar import BrokenArchive as BrokenTar
from vlmill.extract.images.tar import members, read_member
from vlmill.models.convert.files import read_state
from vlmill.models.convert.plain_pickle import BadPickle, loads
from vlmill.pipelines.manifest.__main__ import main as manifest
from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.archives.reading import BrokenArchive, Record, read_archive, read_bodies
from vlmill.pipelines.web.choice.choose import choose
from vlmill.pipelines.web.choice.joined_page import JoinedPage
from vlmill.pipelines.web.choice.site_content import count_site_content
from vlmill.pipelines.web.pages.images import ImageFacts, examine_image
from vlmill.pipelines.web_pairs.__main__ import main as web_pairs
from vlmill.pipelines.web_pairs.page_reader import decode_source, read_page
from vlmill.runtime.files.reading import iter_batches, read_table
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.regions import RegionReader
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason, Rejected, reject
from vlmill.schemas.tables import PAIRS, REJECTS
from vlmill.train.loading.images.crop import decode as training_pixels

pytestmark = pytest.mark.slow
FORMATS = ("JPEG", "PNG", "GIF", "WEBP")
RULES = WebPairRules(min_side_px=30)
LIMITS = InputLimits()
PAGE = f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{sentence(1)}</title>
<meta property="og:image" content="/og.jpg"><base href="http://a.example/b/"></head><body>
<nav><ul><li><a href="/">Home</a><img src="logo.png" width=40 height=40></ul></nav><article>
<h1>{sentence(2)}</h1><p>{sentence(3)}. {sentence(4)} on a summer day &amp; night.</p>
<figure><picture><source srcset="a.webp 2x, b.webp 480w"><img src="a.jpg" width="640"
 height="480" alt="{sentence(5)} at noon" title="A title"></picture>
<figcaption>{sentence(6)}</figcaption></figure>
<table><tr><td><a href="large.jpg"><img data-src="small.jpg" style="width: 200px"></a></table>
<table><tr><td><img src=1.jpg><td><img src=2.jpg><tr><td id=one>{sentence(7)}<td>Two</table>
<div style="background: url('painted.jpg')" aria-labelledby="one two"></div>
<svg><title>{sentence(8)}</title><image href="drawn.png"/></svg>
</article><footer><img src='data:image/gif;base64,R0lGODlhAQ=='></footer></body></html>""".encode()
PAGE_CHANGES: tuple[Change, ...] = (
    *CHANGES,
    nested([b"<div>", b"<b><p>", b"<table><tr><td>", b"<a href=x>", b"<svg>", b"<!--", b"<img "]),
    nested([b"&amp", b"&#x110000;", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\0", b"</article>"]),
)
PICKLE_CHANGES: tuple[Change, ...] = (
    *CHANGES,
    nested([b"(", b"]", b"}", b"l.", b"\x85", b"\x94", b"2", b"h\0", b"\x93", b"R", b"b"]),
)


@pytest.fixture
def count(request: pytest.FixtureRequest) -> int:
    number: int = request.config.getoption("--mutations")
    return number


def image_of(format: str) -> bytes:
    """A small image of noise, with orientation where the format knows one."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 52, 3), dtype=np.uint8)
    exif, out = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    options: dict[str, Any] = {} if format == "GIF" else {"exif": exif}
    if format == "PNG":  # most of what stands in its pixels' stream is covered by another sum
        options["pnginfo"] = PngInfo()
        options["pnginfo"].add_text("Comment", "A comment of some length. " * 600)
    Image.fromarray(pixels).save(out, format, **options)
    return out.getvalue()


def with_checksums(png: bytes) -> bytes:
    """Gives a PNG's chunks the sums of what they hold, by which changed ones would be refused."""
    at, parts = 8, [png[:8]]
    while at + 12 <= len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        body = png[at + 4 : at + 8 + length]
        parts += [png[at : at + 4], body, struct.pack(">I", zlib.crc32(body))]
        at += 12 + length
    return b"".join(parts)


@pytest.mark.parametrize("format", FORMATS)
def test_images_are_read_alike_by_mining_extraction_and_training(format: str, count: int) -> None:
    """An image, or a reason; and what is mined has the same size everywhere."""
    mined = 0
    for number, data in mutations(image_of(format), format, count):
        if format == "PNG" and number % 2:
            data = with_checksums(data)
        facts = examine_image(data, min_side_px=30, max_pixels=LIMITS.max_pixels)
        sizes: list[tuple[int, int] | None] = []
        try:
            height, width, _ = extraction_pixels(data, LIMITS).shape
            sizes.append((width, height))
        except Rejected as why:
            assert isinstance(why.reason, Reason)
            sizes.append(None)
        try:
            sizes.append(training_pixels(data, "image").size)
        except InputError as error:
            assert str(error).startswith("--images: image cannot be decoded"), number
            sizes.append(None)
        if not isinstance(facts, Drop):
            mined += 1
            assert sizes == [(facts.width, facts.height)] * 2, number
        else:
            assert_writable("pictures", str(number), facts)
            assert sizes[0] in (None, sizes[1]), number  # training's bound is the higher one
    assert 0 < mined < count


def assert_writable(stage: str, key: str, drop: Drop) -> None:
    """A drop becomes a row of rejects."""
    row = reject(stage, key, drop.reason, drop.detail)
    assert pa.Table.from_pylist([row], schema=REJECTS.schema).num_rows == 1


def test_pages_give_candidates_or_reasons(count: int) -> None:
    texts = 0
    for number, body in mutations(PAGE, "page", count, PAGE_CHANGES):
        record = Record(
            archive="a", offset=0, url="http://a.example/", kind="page", charset=None, body=body
        )
        source = decode_source(record, RULES)
        page = source if isinstance(source, Drop) else read_page(source, record.url, RULES)
        if isinstance(page, Drop):
            assert_writable("pages", str(number), page)
            continue
        orders = [image.order for image in page.images]
        shown = [
            ImageFacts(image_id=f"{order}", width=800, height=600, format="jpeg")
            for order in orders
        ]
        joined = JoinedPage(page, dict(zip(orders, shown, strict=True)))
        choices = choose(joined, count_site_content([joined], RULES), RULES)
        assert len(choices) == len(page.images) <= RULES.max_images_per_page, number
        for image, choice in zip(page.images, choices, strict=True):
            if isinstance(choice, Drop):
                assert_writable("dominant", f"{page.url} {image.src}", choice)
            else:  # encoding fails for lone surrogates
                texts += sum(len(scored.text.encode()) > 0 for scored in choice)
    assert texts > count


def responses(site: str) -> list[bytes]:
    """Records of an archive, each compressed by itself, as crawlers write them."""
    page = PAGE.replace(b"http://a.example", site.encode())
    return [
        make_response(f"{site}/page.html", page, "text/html"),
        make_response(f"{site}/b/a.jpg", image_of("JPEG"), "image/jpeg"),
        make_response(f"{site}/zipped", gzip.compress(page), "text/html", Content_Encoding="gzip"),
        make_response(f"{site}/gone", b"", "text/html", status="404 Not Found"),
    ]


def arc_record(number: int, record: bytes) -> bytes:
    """The same response in an ARC file."""
    block = gzip.decompress(record).split(b"\r\n\r\n", 1)[1]
    line = b"http://a.example/%d 10.0.0.1 20010101000000 text/html %d\n" % (number, len(block))
    return gzip.compress(line + block)


def zstd_frame(record: bytes) -> bytes:
    out = io.BytesIO()
    writer = ZstdWriter(out)
    writer.write(gzip.decompress(record))
    writer.finish()
    writer.flush()
    return out.getvalue()


def wacz(records: list[bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        packed.writestr("archive/data.warc.gz", b"".join(records[:2]))
        packed.writestr("archive/more.warc.gz", b"".join(records[2:]))
    return out.getvalue()


ARCHIVES: dict[str, Callable[[list[bytes]], bytes]] = {
    "gzip": b"".join,
    "plain": lambda records: b"".join(map(gzip.decompress, records)),
    "one member": lambda records: gzip.compress(b"".join(map(gzip.decompress, records))),
    "zstd": lambda records: b"".join(map(zstd_frame, records)),
    "arc": lambda records: b"".join(arc_record(n, record) for n, record in enumerate(records)),
    "wacz": wacz,
}


def mutated_archive(number: int, form: str = "gzip", site: str = "http://a.example") -> bytes:
    """Damages the archive's bytes, or the text of one record below whole compression."""
    records = responses(site)
    rng = random.Random(f"{form} {number}")
    if rng.random() < 0.5:
        return mutate(ARCHIVES[form](records), "archive", number)
    at = rng.randrange(len(records))
    records[at] = gzip.compress(mutate(gzip.decompress(records[at]), "record", number))
    try:
        return ARCHIVES[form](records)
    except IndexError:  # a record without a head is none that an ARC file could have
        return b""


@pytest.mark.parametrize("form", ARCHIVES)
def test_archives_are_read_to_where_they_break(form: str, count: int) -> None:
    """Each record is content or a reason, and content is there again at its offset."""
    records = broken = 0
    for number in range(count):
        file, bodies = io.BytesIO(mutated_archive(number, form)), dict[int, bytes]()
        try:
            for key, record in read_archive(file, "a.warc.gz", max_bytes=1 << 20):
                records += 1
                if isinstance(record, Drop):
                    assert_writable("records", key, record)
                elif record.body:
                    assert len(record.body) <= 1 << 20, number
                    bodies[record.offset] = record.body
        except BrokenArchive as error:
            broken += 1
            assert_writable("archives", str(number), Drop(Reason.BROKEN_ARCHIVE, str(error)))
        again = list(read_bodies(file, sorted(bodies), max_bytes=1 << 20))
        assert again == [bodies[offset] for offset in sorted(bodies)], number
    assert records > count and broken < count


def test_tar_archives_are_read_to_where_they_break(count: int, tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for format in FORMATS:
            entry = tarfile.TarInfo(f"folder/{format}.{format.lower()}")
            entry.size = len(image_of(format))
            tar.addfile(entry, io.BytesIO(image_of(format)))
    path, whole, broken = tmp_path / "a.tar", 0, 0
    for number, data in mutations(out.getvalue(), "tar", count):
        path.write_bytes(data)
        try:
            for member in members(path, Skipped()):
                whole += len(read_member(path, member.offset, member.size)) == member.size
        except (BrokenTar, InputError) as error:
            broken += 1
            assert_writable("pictures", str(number), Drop(Reason.BROKEN_ARCHIVE, str(error)))
    assert whole > count and 0 < broken < count


def test_web_pairs_accounts_for_every_archive(count: int, tmp_path: Path) -> None:
    """The whole job: in = out + rejects in each stage, and every archive is in the first."""
    for number in range(count // 4):
        form = list(ARCHIVES)[number % len(ARCHIVES)]
        # Each of a site of its own: an image that every page of a site shows belongs to the site.
        data = mutated_archive(number, form, f"http://a{number}.example")
        (tmp_path / f"{number}.warc.gz").write_bytes(data)
    output = tmp_path / "out"
    flags = ["--warc", str(tmp_path / "*.warc.gz"), "--output", str(output), "--min-side", "30"]
    assert web_pairs([*flags, *NO_MODELS]) == 0
    assert read_table(output, PAIRS).num_rows > 0
    funnel = json.loads((output / "funnel.json").read_text())
    assert funnel[0]["in"] == count // 4
    for stage in funnel:
        assert stage["in"] == stage["out"] + sum(stage["rejects"].values()), stage["stage"]
    rows = read_table(output, REJECTS).num_rows
    assert rows == sum(sum(stage["rejects"].values()) for stage in funnel) > 0


def test_manifest_accounts_for_every_image(count: int, tmp_path: Path) -> None:
    images = tmp_path / "pictures"
    images.mkdir()
    lines = ["image,text"]
    for number in range(count):
        data = mutate(image_of(FORMATS[number % 4]), "own", number)
        (images / f"{number}.jpg").write_bytes(data)
        lines.append(f"{number}.jpg,{sentence(number % 500)} {number}")
    (tmp_path / "own.csv").write_text("\n".join(lines) + "\n")
    output = tmp_path / "out"
    flags = ["own", "--input", str(tmp_path / "own.csv"), "--text-column", "text"]
    flags += ["--image-column", "image", "--image-root", str(images), "--output", str(output)]
    assert manifest(flags) == 0
    pairs, rejects = read_table(output, PAIRS), read_table(output, REJECTS)
    assert pairs.num_rows > 0 and rejects.num_rows > 0
    assert pairs.num_rows + rejects.num_rows == count


def read_tables(folder: Path, kind: str) -> None:
    """All that commands read of a table of this kind."""
    if kind == "pairs":
        for batch in iter_batches(folder, PAIRS, flag="--pairs"):
            batch.to_pylist()
    elif kind == "regions":
        reader = RegionReader(folder)
        for row in reader:
            assert row.boxes.shape == (len(row.boxes), 4)
    else:
        images = ImageReader(folder)
        for number in range(len(images)):
            images.read_bytes(number)


@pytest.mark.parametrize("kind", ["pairs", "regions", "images"])
def test_tables_are_read_or_refused_in_one_line(kind: str, count: int, tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.write(6)
    write_images(tmp_path / "images", 6)
    (path,) = (tmp_path / kind).glob("*.parquet")
    data, refused = path.read_bytes(), 0
    (tmp_path / kind / "_manifest.json").unlink(missing_ok=True)
    for number, changed in mutations(data, kind, count):
        path.write_bytes(changed)
        try:
            read_tables(tmp_path / kind, kind)
        except InputError as error:
            refused += 1
            assert "\n" not in str(error), number
    assert 0 < refused <= count


def checkpoints() -> dict[str, bytes]:
    """The same small state dict in every layout that published files have."""
    state = {"layer.weight": torch.arange(6.0).reshape(2, 3), "layer.bias": torch.zeros(2)}
    arrays = {name: tensor.numpy() for name, tensor in state.items()}
    new, old = io.BytesIO(), io.BytesIO()
    torch.save({"state_dict": state}, new)
    torch.save({"model": state}, old, _use_new_zipfile_serialization=False)
    return {
        "safetensors": save(state),
        "zip": new.getvalue(),
        "old": old.getvalue(),
        "arrays": pickle.dumps({"model": arrays, "matching_heuristics": True}, 2),
    }


@pytest.mark.parametrize("layout", checkpoints())
def test_checkpoints_are_read_or_refused(layout: str, count: int, tmp_path: Path) -> None:
    path, refused = tmp_path / "weights", 0
    changes = CHANGES if layout == "safetensors" else PICKLE_CHANGES
    for number, changed in mutations(checkpoints()[layout], layout, count, changes):
        path.write_bytes(changed)
        try:
            state = read_state(path)
        except ValueError as error:
            refused += 1
            assert str(error).startswith(str(path)), number
        else:
            assert all(isinstance(tensor, torch.Tensor) for tensor in state.values()), number
    assert 0 < refused <= count


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_are_plain_or_refused(protocol: int, count: int) -> None:
    record = {
        "image_id": b"7",
        "boxes": np.eye(4),
        "names": ["a", ("b", 1.5, None)],
        "wide": 1 << 70,
    }
    data = pickle.dumps(record, protocol)
    refused = 0
    for _, changed in mutations(data, f"pickle {protocol}", count, PICKLE_CHANGES):
        try:
            loads(changed)
        except BadPickle:
            refused += 1
    assert 0 < refused <= count
