"""Reads YOLO's boxes: a text file per image, a line per object, in fractions of the image."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from vlmill.pipelines.manifest.layouts.box_files import (
    AnnotatedImage,
    AnnotatedObject,
    digits,
    find_split,
    numbers,
)
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.names import IMAGE_ENDINGS

YOLO_NAMES = ("data.yaml", "dataset.yaml", "classes.txt", "obj.names")
MAX_NAMES = 1 << 22  # bytes


def yolo_names(root: Path) -> dict[int, str]:
    """Returns the classes of a YOLO folder by number, from its ``data.yaml`` or ``classes.txt``.

    Raises InputError if neither exists or names a class.
    """
    for name in YOLO_NAMES:
        path = root / name
        if not path.is_file():
            continue
        text = names_text(path)
        if path.suffix != ".yaml":
            lines = (line.strip().lower() for line in text.splitlines())
            return dict(enumerate(line for line in lines if line))
        try:
            names = yaml.safe_load(text)["names"]
        except (yaml.YAMLError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not a list of names ({error})") from None
        numbered = names if isinstance(names, Mapping) else dict(enumerate(as_list(names)))
        if not numbered or not all(
            isinstance(number, int) and isinstance(class_name, str | int | float)
            for number, class_name in numbered.items()
        ):
            raise InputError(
                f"{path}: names is neither a list of classes nor a mapping of numbers to names"
            )
        return {number: str(numbered[number]).lower() for number in sorted(numbered)}
    raise InputError(
        f"--input {root}: none of {', '.join(YOLO_NAMES)}, the files with YOLO's classes"
    )


def as_list(value: object) -> list[object]:
    """Returns a list unchanged, and an empty list for anything else."""
    return value if isinstance(value, list) else []


def names_text(path: Path) -> str:
    """Returns a file of names as text. Raises InputError if it is too large or not UTF-8."""
    if path.stat().st_size > MAX_NAMES:
        raise InputError(f"{path}: over {MAX_NAMES >> 20} MB; expected a list of classes")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 ({error}); save it as UTF-8") from None


def yolo_image(path: Path, root: Path, names: Mapping[int, str]) -> AnnotatedImage:
    """Reads a YOLO file: per line a class and, as fractions, a centre and size, or a polygon."""
    name = image_of_labels(path, root)
    annotated = AnnotatedImage(
        key=path.relative_to(root).as_posix(),
        file_name=name,
        split=find_split(name.rpartition("/")[0]),
    )
    objects = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split()
        if not fields:
            continue
        number = digits(fields[0])
        name = "" if number is None else names.get(number, "")
        objects.append(AnnotatedObject(box=yolo_box(fields[1:]), name=name, fractions=True))
    annotated.objects = objects
    return annotated


def yolo_box(fields: list[str]) -> tuple[float, float, float, float] | Drop:
    """Returns the corners of a centre with width and height (and a score), or of a polygon."""
    if len(fields) > 5 and len(fields) % 2 == 0:
        try:
            values = [float(field) for field in fields]
        except ValueError:
            return numbers(fields)  # the Drop names the invalid number
        xs, ys = values[::2], values[1::2]
        return numbers([min(xs), min(ys), max(xs), max(ys)])
    centre = numbers(fields[:4] if len(fields) in (4, 5) else fields)
    if isinstance(centre, Drop):
        return centre
    x, y, width, height = centre
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def yolo_backgrounds(root: Path, texts: Sequence[Path]) -> Iterator[AnnotatedImage]:
    """Yields the images in YOLO's folders that have no file of boxes; they are negatives."""
    known = {image_of_labels(path, root) for path in texts}
    for folder in sorted({Path(name).parent for name in known}):
        for path in sorted((root / folder).glob("*")):
            name = (folder / path.stem).as_posix()
            if path.suffix.lower() in IMAGE_ENDINGS and name not in known:
                split = find_split(folder.as_posix())
                yield AnnotatedImage(key=f"{name}{path.suffix}", file_name=name, split=split)


def image_of_labels(path: Path, root: Path) -> str:
    """Returns a YOLO file's image path without ending: the folder ``labels`` becomes ``images``."""
    parts = path.relative_to(root).with_suffix("").parts
    return "/".join("images" if part == "labels" else part for part in parts)
