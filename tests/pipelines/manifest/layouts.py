"""Small files in the exact layouts of published data sets, with the traps that these have."""

import io
import json
import tarfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Image = Callable[..., bytes]
FLICKR = "http://farm3.staticflickr.com/2345"


def write(path: Path, content: bytes | str) -> None:
    """Writes a file, and the folders that it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, value: Any) -> None:
    """Writes a published JSON file."""
    write(path, json.dumps(value))


def cc(root: Path, image: Image) -> None:
    """CC3M under ViLBERT's and VL-BERT's names, its file as browsers store it."""
    urls = [f"http://example.org/img/{n}.jpg" for n in range(6)]
    lines = [
        f"a dog runs along the beach at sunset .\t{urls[0]}",
        f'"two\u00a0 men "look at it\t{urls[1]}',  # quotes are text
        "no url",
        f" \t{urls[3]}",
        f"a dog runs along the beach at sunset .\t{FLICKR}/77_ab_z.jpg",  # equal texts are none
        f"bell\x07 of a person\t{urls[5]}",
    ]
    train = "\n".join(lines).encode() + b"\na broken \xff line\thttp://example.org/b.jpg\n"
    write(root / "Train_GCC-training.tsv?_ga=2.191", train)
    write(root / "Validation_GCC-1.1.0-Validation.tsv", f"caption\turl\nactor\t{urls[0]}\n")
    write(root / "training" / str(zlib.crc32(urls[0].encode())), image(30, 20))
    write(root / "train_image/00000001.jpg", image(20, 30, seed=1))
    write(root / "train_image/00000005.jpg", b"<html>gone</html>")


def cc12m(root: Path, image: Image) -> None:
    """CC12M: the URL first, and a caption with a tab."""
    rows = ["http://a/a.jpg\t<PERSON> rides a red bike\tin the rain", "http://a/b.jpg"]
    write(root / "cc12m.tsv", "\n".join(rows) + "\n")
    write(root / "images" / "00000000.jpg", image(10, 10))


def sbu(root: Path, image: Image) -> None:
    """SBU's new file of three lists; a photo comes twice."""
    photos = [f"{FLICKR}/{n}_ab12cd34ef.jpg" for n in (2345, 2346, 2345)] + ["http://else/x.jpg"]
    captions = ["my cat on the sofa", "a line\u2028of text", "the cat again", "another host"]
    columns = {"image_urls": photos, "user_ids": ["1@N01"] * 4, "captions": captions}
    write_json(root / "sbu-captions-all.json", columns)
    write(root / "images/2345_ab12cd34ef.jpg", image(12, 10))


def coco(root: Path, image: Image) -> None:
    """COCO's official files of 2014."""
    for split, number in (("train2014", 9), ("val2014", 42)):
        name = f"COCO_{split}_{number:012d}.jpg"
        element = {
            "id": number,
            "file_name": name,
            "height": 20,
            "width": 30,
            "license": 3,
            "coco_url": f"http://images.cocodataset.org/{split}/{name}",
            "flickr_url": f"{FLICKR}/{number}00_ab.jpg",
        }
        annotations = [
            {"image_id": number, "id": 10 * number, "caption": " A red bus\n stands near a tree."},
            {"image_id": number, "id": 10 * number + 1, "caption": "A red bus stands near a tree."},
            {"image_id": number, "id": 10 * number, "caption": "A red bus stands near a tree."},
            {"image_id": number, "id": 10 * number, "caption": "other words"},
            {"image_id": number, "id": 10 * number + 2, "caption": "\n"},
            {"image_id": 777, "id": 10 * number + 3, "caption": "of no image"},
        ]
        licenses = [{"id": 3, "url": "http://creativecommons.org/licenses/by-nc-nd/2.0/"}]
        content = {"info": {}, "images": [element], "licenses": licenses, "type": "captions"}
        write_json(
            root / f"annotations/captions_{split}.json", content | {"annotations": annotations}
        )
        write(root / split / name, image(30, 20, seed=number))


def karpathy_image(number: int, name: str, split: str, **more: Any) -> dict[str, Any]:
    """An image of Karpathy's files, with two sentences."""
    sentences = [
        {"tokens": ["a", "bus"], "raw": f"A bus, {k}.", "imgid": number, "sentid": 5 * number + k}
        for k in range(2)
    ]
    ids = [sentence["sentid"] for sentence in sentences]
    image = {"filename": name, "imgid": number, "split": split, "sentids": ids}
    return image | {"sentences": sentences} | more


def coco_karpathy(root: Path, image: Image) -> None:
    """Karpathy's file of COCO: imgid is no COCO id."""
    splits = ("train", "restval", "val", "test", "test")
    images = []
    for number, split in enumerate(splits):
        folder = "train2014" if split == "train" else "val2014"
        name = f"COCO_{folder}_{100 + number:012d}.jpg"
        more = {"filepath": folder, "cocoid": 100 + number}
        images.append(karpathy_image(number, name, split, **more))
        write(root / folder / name, image(10 + number, 10, seed=number))
    write_json(root / "dataset_coco.json", {"dataset": "coco", "images": images})


def flickr30k(root: Path, image: Image) -> None:
    """Karpathy's file of Flickr30k."""
    names = {"1000092795.jpg": "train", "10002456.jpg": "val", "1000268201.jpg": "test"}
    images = [karpathy_image(n, name, split) for n, (name, split) in enumerate(names.items())]
    write_json(root / "dataset_flickr30k.json", {"images": images, "dataset": "flickr30k"})
    for seed, name in enumerate(names):
        write(root / "flickr30k-images" / name, image(14, 11, seed=seed))


def vg(root: Path, image: Image) -> None:
    """Visual Genome: two folders, old and new names of the id, boxes that lie outside."""
    images = [
        {
            "image_id": 7,
            "url": "https://x.org/VG_100K_2/7.jpg",
            "width": 80,
            "height": 60,
            "coco_id": 42,
            "flickr_id": 123,
        },
        {
            "id": 8,
            "url": "https://x.org/VG_100K/8.jpg",
            "width": 30,
            "height": 20,
            "coco_id": None,
            "flickr_id": None,
        },
    ]
    box = {"x": 4, "y": 5, "width": 20, "height": 50}

    def region(number: int, phrase: str, image_id: int = 7, **other: int) -> dict[str, Any]:
        return {"region_id": number, "image_id": image_id, "phrase": phrase, **box, **other}

    regions = [
        {"id": 7, "regions": [
            region(12, "a tall clock"),
            region(11, "a tall  clock", x=-3, width=10),
            region(13, "far away", y=-90),
            region(14, ""),
            region(12, "a tall clock"),
        ]},
        {"id": 8, "regions": [region(21, "a tall clock", image_id=8, width=900)]},
        {"id": 9, "regions": [region(31, "of no image", image_id=9)]},
    ]  # fmt: skip
    write_json(root / "image_data.json", images)
    write_json(root / "region_descriptions.json", regions)
    write(root / "VG_100K_2/7.jpg", image(80, 60))
    write(root / "VG_100K/8.jpg", image(30, 20, seed=1))


def lait(root: Path, image: Image) -> None:
    """Our own columns of LAIT."""
    header = "image\ttext\ttext_source\tscore\tpage_url\timage_url\tmore"
    row = "a/1.jpg\tA red kite over a field\talt\t0.83\thttp://p\thttp://p/1.jpg\t-"
    rows = [header, row, row.replace("0.83", "much"), row.replace("a/1", "a/2")]
    write(root / "lait.tsv", "\n".join(rows) + "\n")
    write(root / "a/1.jpg", image(20, 20))


def tao(root: Path, image: Image) -> None:
    """Item titles in Chinese."""
    rows = [
        "item_id\ttitle\timage\tcategory",
        "900001\t夏季 棉 连衣裙 女\timg/900001.jpg\tdress",
        "900002\tsummer dress\timg/900002.jpg\tdress",
        "900003\t" + "连衣裙女夏季新款" * 8 + "\thttp://a/3.jpg\tdress",
        "900004\t夏季赌博\timg/900001.jpg\tdress",
    ]
    write(root / "items.tsv", "\ufeff" + "\r\n".join(rows) + "\r\n")
    write(root / "img/900001.jpg", image(20, 20))


def text(root: Path, _: Image) -> None:
    """VL-BERT's and VLMo's corpora."""
    write(root / "wiki.doc", "the old house\n\nnobody lived there .\n" + "x" * 10_001 + "\n")
    write(root / "bc1g.doc", "a line\u2028that goes on\n")
    write(root / "wikibk.0.txt", "one sample\n")


def tar_of(members: Mapping[str, bytes]) -> bytes:
    """A tar of these members, in their order."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def imagenet22k(root: Path, image: Image) -> None:
    """Folders of synsets; an extension that lies, a damaged file."""
    write(root / "n01440764/n01440764_10026.JPEG", image(12, 10, format="PNG"))
    write(root / "n01440764/n01440764_9.JPEG", b"damaged")
    write(root / "n01443537/n01443537_1.JPEG", image(11, 10, seed=3))


def webdataset(root: Path, image: Image) -> None:
    """img2dataset's shard: padded images, a key that comes back, names that are no samples."""
    about = {"url": "http://a/1.jpg", "caption": "a dog", "key": "000000000", "status": "success",
             "width": 16, "height": 16, "original_width": 64, "original_height": 48}  # fmt: skip
    members = {
        "__index": b"",
        "000000000.jpg": image(16, 16),
        "000000000.txt": b"a dog\nruns",
        "000000000.json": json.dumps(about).encode(),
        "000000001.jpg": b"no picture",
        "000000001.txt": b"a cat",
        "000000002.txt": b"no picture at all",
        "sub/000000003.png": image(8, 8, seed=4, format="PNG"),
        "sub/000000003.json": b'{"caption": "from its metadata"}',
    }
    again = {"000000000.jpg": image(16, 16), "000000000.txt": b"another text"}
    write(root / "00000.tar", tar_of(members))
    write(root / "00001.tar", tar_of(again))
    write_json(root / "00000_stats.json", {"count": 5, "successes": 4})


def hf(root: Path, image: Image) -> None:
    """Parquet of Hugging Face's datasets: bytes, a path, a path of another machine."""
    rows = [
        {"image": {"bytes": image(9, 9), "path": "1.jpg"}, "caption": ["a dog", "a dog runs"]},
        {"image": {"path": "pics/2.jpg", "bytes": None}, "caption": ["two"]},
        {"image": {"path": "/home/me/3.jpg", "bytes": None}, "caption": [""]},
    ]
    root.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), root / "train-00000-of-00001.parquet")
    write(root / "pics/2.jpg", image(9, 8, seed=2))


def coco_json(root: Path, image: Image) -> None:
    """COCO's layout with ids that are texts and folders in file names."""
    images = [{"id": "x1", "file_name": "a/1.jpg", "width": 10, "height": 10}]
    annotations = [
        {"id": "c1", "image_id": "x1", "caption": "a dog"},
        {"id": "c1", "image_id": "x1", "caption": "a cat"},
        {"id": "c1", "image_id": "x1", "caption": "a dog"},
    ]
    write_json(root / "mine.json", {"images": images, "annotations": annotations})
    write(root / "images/a/1.jpg", image(10, 10))


def laion(root: Path, _: Image) -> None:
    """Parquet of URLs; NaN where nothing was measured."""
    rows = [
        {"URL": f"{FLICKR}/99_x.jpg", "TEXT": "A kite ", "similarity": 0.31, "LANGUAGE": "en"},
        {"URL": "http://a/2.jpg", "TEXT": None, "similarity": 0.3, "LANGUAGE": ""},
        {"URL": None, "TEXT": "a kite", "similarity": 0.3, "LANGUAGE": None},
        {"URL": "http://a/3.jpg", "TEXT": "two", "similarity": float("nan"), "LANGUAGE": None},
    ]
    root.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), root / "part-00000.parquet")


LAYOUTS: dict[str, Callable[[Path, Image], None]] = {
    "cc": cc,
    "cc12m": cc12m,
    "sbu": sbu,
    "coco": coco,
    "coco-karpathy": coco_karpathy,
    "flickr30k": flickr30k,
    "vg": vg,
    "lait": lait,
    "tao": tao,
    "text": text,
    "imagenet22k": imagenet22k,
    "webdataset": webdataset,
    "hf": hf,
    "coco-json": coco_json,
    "laion": laion,
}
