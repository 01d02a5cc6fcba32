"""Writes the tables that the runs are trained on, each once."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from proof.arms import Arm
from worlds import Detector, World, make_scenes, oracles, write_noisy_pairs, write_world
from worlds.expressions import write_boxes
from worlds.scenes import Split

from vlmill.pipelines.hard_negatives import __main__ as hard_negatives
from vlmill.pipelines.nearest_images import __main__ as nearest_images
from vlmill.schemas.errors import InputError

NOISE = 0.3  # of the first stage's captions
CAPTIONS = 8  # of an image, where it has several
MORE_BOXES = 11  # around each thing, beside the tight one
LARGER = 2  # times as many pairs in the first stage
Oracles = dict[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class ArmTables:
    """The folders that an arm reads. ``images`` and ``regions`` have all its images."""

    pairs: str
    regions: str
    images: str
    negatives: str | None = None
    neighbours: str | None = None  # the nearest images of each
    boxes: str = ""  # expressions, choices and the things' own regions


@dataclass(frozen=True, kw_only=True)
class WorldTables:
    """A world on disk under ``folder``, and what of it some arms need beside."""

    folder: Path
    pairs: int
    held_out: int
    world: World = field(default_factory=World)  # what may occur

    def oracles(self) -> Oracles:
        """What matchers that see a part can reach on the held-out pairs."""
        return oracles(self.world, make_scenes(self.world, "test", self.held_out))

    @property
    def plain(self) -> Path:
        """The folder of the pairs as they are, with their images and regions."""
        return self.folder / "world"

    def write(self, arms: tuple[Arm, ...], known: dict[str, Any]) -> None:
        """Make what the arms need and is not there. Raises InputError if another world is."""
        write = partial(write_world, world=self.world, held_out=self.held_out, known=known)
        write(self.plain, pairs=self.pairs)
        kinds = {arm.tables for arm in arms}
        if "captions" in kinds:
            write(self.folder / "captions", pairs=self.pairs, each=CAPTIONS)
        if "many-boxes" in kinds:
            detector = Detector(extra_boxes=MORE_BOXES)
            write(self.folder / "many-boxes", pairs=self.pairs, detector=detector)
        if "staged" in kinds:
            large = self.folder / "large-world"
            write(large, pairs=self.pairs * (1 + LARGER))
            write_noisy_pairs(self.folder / "staged", large, first=self.pairs, share=NOISE)
        if "shuffled" in kinds:
            write_noisy_pairs(self.folder / "shuffled", self.plain, share=1.0)
        if any(arm.negatives for arm in arms):
            flags = ["--pairs", str(self.plain), "--output", str(self.folder / "negatives")]
            if hard_negatives.main(flags):
                raise InputError(f"--output {self.folder}: hard negatives failed, see above")

    def of(self, arm: Arm) -> ArmTables:
        """What an arm reads."""
        folders = {"staged": self.folder / "large-world"}
        folders |= {name: self.folder / name for name in ("captions", "many-boxes")}
        images = folders.get(arm.tables, self.plain)
        pairs = self.plain if arm.tables == "world" else self.folder / arm.tables
        return ArmTables(
            pairs=str(pairs),
            regions=str(images),
            images=str(images),
            negatives=str(self.folder / "negatives") if arm.negatives else None,
            neighbours=str(self.folder / "neighbours"),
            boxes=str(self.folder / "boxes"),
        )

    def write_boxes(self) -> None:
        """Writes what tasks with boxes ask of the plain world's images, if that is not done."""
        images: dict[Split, int] = {"train": self.pairs, "test": self.held_out}
        write_boxes(self.folder / "boxes", self.world, images=images)

    def write_neighbours(self) -> None:
        """Finds the nearest images of each by their regions, if that is not done."""
        flags = ["--regions", str(self.plain), "--pairs", str(self.plain)]
        if nearest_images.main([*flags, "--output", str(self.folder / "neighbours")]):
            raise InputError(f"--output {self.folder}: nearest images failed, see above")
