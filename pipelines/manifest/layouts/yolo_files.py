"""YOLO's annotated boxes: a text file a picture, a line an object, in fractions of the picture."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.manifest.layouts.box_files import Annotated, Thing, numbers, split_of
from vlmill.schemas.errors import InputError
from vlmill.schemas.names import PICTURE_ENDINGS

YOLO_NAMES = ("data.yaml", "dataset.yaml", "classes.txt", "obj.names")


def yolo_names(root: Path) -> list[str]:
    """Returns the classes of a YOLO folder, by its ``data.yaml`` or ``classes.txt``.

    Raises InputError where neither is there or names none.
    """
    for name in YOLO_NAMES:
        path = root / name
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".yaml":
            return [line.strip().lower() for line in text.splitlines() if line.strip()]
        try:
            names = yaml.safe_load(text)["names"]
        except (yaml.YAMLError, KeyError, TypeError) as error:
            raise InputError(f"{path}: no list of names ({error})") from None
        listed = (
            [names[number] for number in sorted(names)] if isinstance(names, Mapping) else names
        )
        return [str(one).lower() for one in listed]
    raise InputError(f"--input {root}: none of {', '.join(YOLO_NAMES)}, which name YOLO's classes")


def yolo_picture(path: Path, root: Path, names: list[str]) -> Annotated:
    """Reads a YOLO file: a line an object, its class and, in fractions, centre, width and height
    or a polygon.
    """
    name = picture_of_labels(path, root)
    annotated = Annotated(
        key=path.relative_to(root).as_posix(),
        file_name=name,
        split=split_of(name.rpartition("/")[0]),
    )
    things = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split()
        if not fields:
            continue
        number = int(fields[0]) if fields[0].isdecimal() else -1
        name = names[number] if 0 <= number < len(names) else ""
        things.append(Thing(box=yolo_box(fields[1:]), name=name, fractions=True))
    annotated.things = things
    return annotated


def yolo_box(fields: list[str]) -> tuple[float, float, float, float] | Drop:
    """Returns the corners of a centre with width and height (and a score), or of a polygon."""
    if len(fields) > 5 and len(fields) % 2 == 0:
        try:
            values = [float(field) for field in fields]
        except ValueError:
            return numbers(fields)  # which says what is no number
        xs, ys = values[::2], values[1::2]
        return numbers([min(xs), min(ys), max(xs), max(ys)])
    centre = numbers(fields[:4] if len(fields) in (4, 5) else fields)
    if isinstance(centre, Drop):
        return centre
    x, y, width, height = centre
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def yolo_backgrounds(root: Path, texts: Sequence[Path]) -> Iterator[Annotated]:
    """Yields the pictures beside YOLO's files that have none: there is nothing in them."""
    known = {picture_of_labels(path, root) for path in texts}
    for folder in sorted({Path(name).parent for name in known}):
        for path in sorted((root / folder).glob("*")):
            name = (folder / path.stem).as_posix()
            if path.suffix.lower() in PICTURE_ENDINGS and name not in known:
                split = split_of(folder.as_posix())
                yield Annotated(key=f"{name}{path.suffix}", file_name=name, split=split)


def picture_of_labels(path: Path, root: Path) -> str:
    """Returns the picture of a YOLO file without its ending: where ``labels`` is ``images``."""
    parts = path.relative_to(root).with_suffix("").parts
    return "/".join("images" if part == "labels" else part for part in parts)
