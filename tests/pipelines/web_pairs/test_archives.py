"""Archives where they lie: in lists, on the web, in buckets, and the records of an index alone."""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.factories import NO_MODELS
from tests.object_stores import upload_folder
from tests.pipelines.conftest import make_image, write_archive
from tests.web import LOCAL, FileServer, file_server
from warcio.archiveiterator import ArchiveIterator

from vlmill.pipelines.web_pairs import __main__ as command
from vlmill.pipelines.web_pairs.archives import resolve_path
from vlmill.pipelines.web_pairs.job import SHARD_BYTES, choose_shards
from vlmill.pipelines.web_pairs.sources import SourceFile
from vlmill.runtime.console.lineage import check_state
from vlmill.runtime.files.manifest import read_manifest, verify_folder
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.net import remote_file as ranged
from vlmill.schemas.tables import IMAGES, PAIRS, REJECTS

SITE = "http://site.example/"
ANIMALS = ("cat", "dog", "hen")
PROSE = (
    "This is a page in plain English with enough words in it for anybody to see that it is, and it "
    "goes on for a while about nothing in particular."
)
ONE = ("--workers", "1")
Ids = dict[str, list[str]]


def responses_of(name: str, seed: int) -> list[tuple[str, bytes, str]]:
    page = f"<html lang=en><title>{name}</title><img src={name}.jpg alt='A {name} on the mat'>"
    return [
        (f"{SITE}{name}.html", f"{page}<p>{PROSE}</p>".encode(), "text/html"),
        (f"{SITE}{name}.jpg", make_image(400, 320, seed=seed), "image/jpeg"),
    ]


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three archives of a page and its image, where Common Crawl has them."""
    folder = tmp_path_factory.mktemp("crawl") / "crawl-data" / "warc"
    folder.mkdir(parents=True)
    for seed, name in enumerate(ANIMALS):
        write_archive(folder / f"{name}.warc.gz", responses_of(name, seed))
    return folder.parents[1]


@pytest.fixture
def server(crawl: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setattr(ranged, "BACKOFF_S", 0.001)
    with file_server() as served:
        for path in crawl.rglob("*.gz"):
            served.files[f"/{path.relative_to(crawl)}"] = path.read_bytes()
        yield served


def run(output: Path, *flags: str, status: int = 0) -> Path:
    assert command.main(["--output", str(output), *flags, *NO_MODELS, *ONE]) == status
    return output


def ids(folder: Path) -> Ids:
    assert verify_folder(folder) == []
    assert read_table(folder, REJECTS).num_rows == 0
    return {t.name: read_table(folder, t).column(0).to_pylist() for t in (PAIRS, IMAGES)}


@pytest.fixture(scope="module")
def whole(crawl: Path, tmp_path_factory: pytest.TempPathFactory) -> Ids:
    """The rows of the three archives as local files."""
    rows = ids(run(tmp_path_factory.mktemp("w") / "out", "--warc", f"{crawl}/*/*/*.gz"))
    assert [len(each) for each in rows.values()] == [3, 3]
    return rows


def paths_list(path: Path, names: Sequence[str] = ANIMALS, head: str = "") -> Path:
    text = "".join(f"{head}crawl-data/warc/{name}.warc.gz\n" for name in names)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["warc.paths", "warc.paths.gz"])
def test_a_list_of_archives(name: str, crawl: Path, whole: Ids, tmp_path: Path) -> None:
    paths = paths_list(tmp_path / name, [*ANIMALS, "cat"])
    out = run(tmp_path / "out", "--warc", f"@{paths}", "--base", str(crawl))
    assert ids(out) == whole
    (entry,) = read_manifest(out)["inputs"]
    assert (entry.flag, entry.files) == ("--warc", 1)
    assert check_state(entry, entry.path) == ("ok", "")


def test_a_list_on_the_web_of_archives_on_the_web(
    server: FileServer, whole: Ids, tmp_path: Path
) -> None:
    server.files["/warc.paths.gz"] = paths_list(tmp_path / "warc.paths.gz").read_bytes()
    flags = ["--base", server.url, "--allow-address", LOCAL]
    assert ids(run(tmp_path / "out", "--warc", f"@{server.url}/warc.paths.gz", *flags)) == whole


def test_one_archive_on_the_web(server: FileServer, crawl: Path, tmp_path: Path) -> None:
    name = "crawl-data/warc/cat.warc.gz"
    local = ids(run(tmp_path / "local", "--warc", str(crawl / name)))
    flags = ["--warc", f"{server.url}/{name}", "--allow-address", LOCAL]
    server.troubles.extend(["", "503", "cut"])
    assert ids(run(tmp_path / "web", *flags)) == local


def test_a_bucket_that_anybody_may_read(
    server: FileServer, whole: Ids, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, content in list(server.files.items()):
        server.files[f"/bucket{path}"] = content
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    paths = paths_list(tmp_path / "paths", head="s3://bucket/")
    assert ids(run(tmp_path / "out", "--warc", f"@{paths}")) == whole


def index_of(crawl: Path, names: Sequence[str]) -> str:
    """Where each record of these names lies, as lines of CDXJ."""
    lines = []
    for path in sorted(crawl.rglob("*.gz")):
        with path.open("rb") as file:
            records = ArchiveIterator(file)
            for record in records:
                name = record.rec_headers.get_header("WARC-Target-URI").removeprefix(SITE)
                offset = records.get_record_offset()
                place = {"filename": str(path.relative_to(crawl)), "offset": str(offset)}
                place["length"] = str(records.get_record_length())
                if name in names:
                    lines.append(f"example,site)/ 2024 {json.dumps(place)}\n")
    return "".join(lines)


def test_an_index_of_all_records_gives_what_the_archives_give(
    server: FileServer, crawl: Path, whole: Ids, tmp_path: Path
) -> None:
    names = [f"{name}.{end}" for name in ANIMALS for end in ("html", "jpg")]
    (tmp_path / "cdx").write_text(index_of(crawl, names))
    flags = ["--index", str(tmp_path / "cdx"), "--base", str(crawl)]
    assert ids(run(tmp_path / "local", *flags)) == whole
    flags[-1] = server.url
    assert ids(run(tmp_path / "web", *flags, "--allow-address", LOCAL)) == whole


@pytest.mark.parametrize("place", ["web", "store"])
def test_an_index_may_lie_elsewhere(
    place: str,
    server: FileServer,
    bucket: str,
    crawl: Path,
    whole: Ids,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On the web one file; in a store those of a pattern."""
    names = [f"{name}.{end}" for name in ANIMALS for end in ("html", "jpg")]
    lines = index_of(crawl, names).splitlines(keepends=True)
    if place == "web":
        server.files["/cdx-00000.gz"] = gzip.compress("".join(lines).encode())
        index, missing = f"{server.url}/cdx-00000.gz", f"{server.url}/none.gz"
    else:
        (tmp_path / "parts").mkdir()
        for number, part in enumerate((lines[::2], lines[1::2])):
            (tmp_path / "parts" / f"cdx-{number}").write_text("".join(part))
        folder = upload_folder(tmp_path / "parts", bucket)
        index, missing = f"{folder}/cdx-*", f"{folder}/none-*"
    flags = ["--base", str(crawl), "--allow-address", LOCAL]
    assert ids(run(tmp_path / "out", "--index", index, *flags)) == whole
    run(tmp_path / "none", "--index", missing, *flags, status=1 if place == "web" else 2)
    assert missing in capsys.readouterr().err.splitlines()[-1]


def test_a_shard_for_so_many_bytes_of_archives(tmp_path: Path) -> None:
    archives = [SourceFile("a.warc.gz", SHARD_BYTES), SourceFile("b.warc.gz", SHARD_BYTES // 2)]
    assert [choose_shards(tmp_path, archives[:n]) for n in range(3)] == [1, 1, 2]


def test_only_the_records_of_an_index_are_read(crawl: Path, whole: Ids, tmp_path: Path) -> None:
    (tmp_path / "cdx").write_text(index_of(crawl, ["cat.html", "cat.jpg", "dog.html"]))
    flags = ["--index", str(tmp_path / "cdx"), "--base", str(crawl)]
    out = run(tmp_path / "out", *flags)
    assert read_table(out, PAIRS).num_rows == 1
    rejects = [(row["stage"], row["reason"]) for row in read_table(out, REJECTS).to_pylist()]
    assert rejects == [("join", "missing_image")]
    funnel = {
        stage["stage"]: stage["in"] for stage in json.loads((out / "funnel.json").read_text())
    }
    assert (funnel["archives"], funnel["records"], funnel["pages"]) == (2, 3, 2)
    # Another index is another run.
    (tmp_path / "cdx").write_text(index_of(crawl, ["cat.html"]))
    run(out, *flags, status=2)


def test_records_that_are_not_where_the_index_says(crawl: Path, tmp_path: Path) -> None:
    place = {"filename": "crawl-data/warc/cat.warc.gz", "length": 300}
    lines = [json.dumps({**place, "offset": offset}) for offset in (7, 1 << 30)]
    lines.append(json.dumps({**place, "offset": 1, "length": 1 << 33}))
    (tmp_path / "cdx").write_text("\n".join(lines))
    out = run(tmp_path / "out", "--index", str(tmp_path / "cdx"), "--base", str(crawl), status=1)
    rejects = read_table(out, REJECTS).to_pylist()
    assert sorted(row["reason"] for row in rejects) == ["broken_archive"] * 2 + ["too_large"]


def test_a_server_that_stays_away_is_named_and_the_same_command_goes_on(
    server: FileServer, whole: Ids, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--warc", f"@{paths_list(tmp_path / 'paths')}", "--base", server.url]
    flags += ["--allow-address", LOCAL]
    # Three sizes, the first archive, and then nothing more.
    server.troubles.extend(["", "", "", "", *["500"] * ranged.TRIES])
    run(tmp_path / "out", *flags, status=1)
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("failed: ") and "dog.warc.gz: it answers 500" in said
    assert not list((tmp_path / "out").rglob(".tmp-*"))
    asked = len(server.asked)
    assert ids(run(tmp_path / "out", *flags)) == whole
    mined = [path for path, _ in server.asked[asked + len(ANIMALS) :]]
    assert not any("cat" in path for path in mined[:2])  # it has been mined


def test_an_outage_is_no_damage_of_the_archive(
    server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the middle of an archive that is larger than what is read at once."""
    noise = [(f"{SITE}{n}.jpg", make_image(900, 900, seed=n), "image/jpeg") for n in range(12)]
    content = write_archive(tmp_path / "a.warc.gz", noise).read_bytes()
    content += b"".join(content for _ in range(200_000 // len(content) + 1))
    server.files["/a.warc.gz"] = content
    server.troubles.extend(["", "", *["500"] * ranged.TRIES])
    flags = ["--warc", f"{server.url}/a.warc.gz", "--allow-address", LOCAL]
    run(tmp_path / "out", *flags, status=1)
    assert "a.warc.gz: it answers 500" in capsys.readouterr().err
    assert not list((tmp_path / "out" / "work" / "archives").iterdir())


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--warc", "@nothing"], "no such list"),
        (["--warc", "@empty"], "it is empty"),
        (["--warc", "@lost"], "lost.warc.gz does not exist; see --base"),
        (["--warc", "@bad.gz"], "give a list of archives"),
        (["--warc", "@zeros"], "line 1 is not a path"),
        (["--warc", "https://"], "not the address of a file"),
        (["--warc", "http://127.0.0.1:9/a"], "give a public address"),
        (["--warc", "a", "--allow-address", "all"], "--allow-address"),
        (["--index", "nothing"], "--index nothing: no file"),
        (["--index", "empty"], "no record"),
        (["--index", "empty", "--warc", "a"], "remove --warc"),
        ([], "give --warc GLOB, --index FILE, --wat GLOB or --table FILE"),
    ],
)
def test_mistakes_are_told_in_one_line(
    flags: list[str],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").write_bytes(b"")
    Path("lost").write_text("lost.warc.gz\n")
    Path("bad.gz").write_bytes(b"\x1f\x8b\x08 no gzip")
    Path("zeros").write_bytes(b"\0" * 10)
    assert command.main(["--output", "out", *flags, *NO_MODELS]) in (1, 2)
    said = capsys.readouterr().err
    assert named in said and said.count("\n") == 1 and not Path("out").exists()


def test_names_of_lists_lie_where_common_crawl_has_them() -> None:
    name, cc = "crawl-data/a.gz", "https://data.commoncrawl.org/crawl-data/a.gz"
    assert resolve_path(name, None, "lists/warc.paths") == cc
    assert resolve_path(name, "s3://commoncrawl/", "x") == f"s3://commoncrawl/{name}"
    assert resolve_path("a.gz", None, "lists/paths") == "lists/a.gz"
    assert resolve_path("a.gz", None, "paths") == "a.gz"
    assert resolve_path("/a.gz", "b", "c") == "/a.gz"
    assert resolve_path("https://x/a.gz", "b", "c") == "https://x/a.gz"
