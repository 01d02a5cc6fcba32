"""Reads Karpathy's split files: ``dataset_coco.json``, ``dataset_flickr30k.json``."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vlmill.pipelines.manifest.cleaning import Claims, note_repairs, validate_text, whole_number
from vlmill.pipelines.manifest.entries import IMAGE_STAGE, Entry, Expected, ListedImage, Reading
from vlmill.pipelines.manifest.reading.sources import Source
from vlmill.pipelines.manifest.reading.streams import JsonLists
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import PAIRS

ARCHIVE = "caption_datasets.zip"  # folders of the published files
FOLD = 1_000  # test images
KNOWN = {
    "": frozenset(("dataset", "images")),
    "images": frozenset(
        ("filename", "filepath", "cocoid", "imgid", "sentids", "sentences", "split")
    ),
}
SENTENCE = frozenset(("tokens", "raw", "imgid", "sentid"))


@dataclass(frozen=True, kw_only=True)
class SplitFile:
    """Holds a split file and the names of its images.

    ``groups`` merges splits that are counted together; ``folds``: test pairs record their block of
    a thousand images.
    """

    source: Source
    name: str
    pair_prefix: str
    groups: Mapping[str, str]
    image: Callable[[Mapping[str, Any]], ListedImage | Drop]
    folds: bool


def karpathy_reading(
    file: SplitFile,
    *,
    captions: Mapping[str, int],
    images: int,
    folders: tuple[str, ...],
    messages: tuple[str, ...] = (),
) -> Reading:
    """Opens a split file with the published number of ``captions`` in each group."""
    expected = {
        f"{file.source.name} {group}": Expected(rows=rows, source=ARCHIVE)
        for group, rows in captions.items()
    }
    return Reading(
        sources=(file.source,),
        entries=lambda: karpathy_entries(file),
        expected={**expected, IMAGE_STAGE: Expected(rows=images, source=ARCHIVE)},
        image_folders=folders,
        messages=messages,
    )


def karpathy_entries(file: SplitFile) -> Iterator[Entry]:
    """Yields an entry for each sentence of each image."""
    claims, num_test = Claims(), 0
    for number, element in enumerate(JsonLists(source=file.source, known=KNOWN).elements("images")):
        key = f"{file.source.name}:{number}"
        fault = _fault(element)
        image = Drop(Reason.BAD_ROW, fault) if fault else file.image(element)
        if isinstance(image, Drop):
            yield Entry(key=key, group=f"{file.source.name} ?", rows=image)
            continue
        split = element["split"]
        fold = num_test // FOLD if file.folds and split == "test" else None
        num_test += split == "test"
        group = f"{file.source.name} {file.groups.get(split, split)}"
        for index, sentence in enumerate(element["sentences"]):
            if isinstance(sentence, dict):
                file.source.remarks.check(sentence, SENTENCE)
            caption = (f"{key}.{index}", index, sentence)
            yield _entry(file, group, caption, image, split, fold, claims)


def _fault(image: object) -> str | None:
    if not isinstance(image, dict):
        return f"a {type(image).__name__}, expected an object"
    required = {"filename": str, "split": str, "sentences": list}
    wrong = [n for n, kind in required.items() if not isinstance(image.get(n), kind)]
    return f"an image without {', '.join(wrong)}" if wrong else None


def _entry(
    file: SplitFile,
    group: str,
    caption: tuple[str, int, object],
    image: ListedImage,
    split: str,
    fold: int | None,
    claims: Claims,
) -> Entry:
    key, index, sentence = caption
    number = whole_number(sentence.get("sentid")) if isinstance(sentence, dict) else None
    raw = sentence.get("raw") if isinstance(sentence, dict) else None
    if number is None:
        return Entry(key=key, group=group, rows=Drop(Reason.BAD_ROW, "a sentence without sentid"))
    text = validate_text(raw)
    drop = text if isinstance(text, Drop) else claims.claim(number, f"{image.image_id}\0{text}")
    if drop is not None:
        return Entry(key=key, group=group, rows=drop)
    assert isinstance(text, str)
    pair = {
        "pair_id": f"{file.pair_prefix}/{number}",
        "image_id": image.image_id,
        "text": text,
        "language": "en",
        "source": file.name,
        "split": split,
        "text_source": "human",
        "fold": fold,
        "caption_no": index if fold is not None else None,
    }
    notes = note_repairs(text, str(raw))
    return Entry(key=key, group=group, rows=((PAIRS, pair),), images=(image,), notes=notes)
