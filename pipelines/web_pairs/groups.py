"""Groups similar images: finds each group's leader, and the groups that are held out."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.pages.images import ArchivedImage
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.images.hashes import group_hashes
from vlmill.schemas.rejects import Reason

# For hashes in larger groups: the group's lowest hash, and its leader (see HashCount).
GROUPS = np.dtype([("hash", "<u8"), ("group", "<u8"), ("leader", "V32")])
RANK = np.dtype("V40")


class HashCount(NamedTuple):
    """Holds a perceptual hash, the number of ``images`` with it, and the first image's ``rank``.

    The rank is eight bytes that sort larger images first, and the 32 bytes of the image_id.
    """

    phash: int
    images: int
    rank: bytes


def make_groups(hash_counts: Iterable[HashCount]) -> tuple[npt.NDArray[np.void], dict[str, int]]:
    """Returns the table of groups of more than one image, by hash, and their counts.

    ``hash_counts`` are sorted by hash, each once. A group's leader is its largest image, and among
    equal sizes the one with the lowest id. Memory: 100 bytes a hash.
    """
    table = np.fromiter(
        hash_counts, dtype=np.dtype([("hash", "<u8"), ("pictures", "<i8"), ("rank", RANK)])
    )
    hashes, counts = table["hash"], table["pictures"]
    groups, number = np.unique(group_hashes(hashes), return_inverse=True)
    sizes = np.bincount(number, weights=counts, minlength=len(groups)).astype(np.int64)
    several = np.flatnonzero(sizes[number] > 1)
    leaders: dict[int, bytes] = {}
    for index in several.tolist():
        group, rank = int(number[index]), table["rank"][index].tobytes()
        leaders[group] = min(rank, leaders.get(group, rank))
    rows = np.empty(len(several), dtype=GROUPS)
    rows["hash"], rows["group"] = hashes[several], groups[number[several]]
    for row, group in enumerate(number[several].tolist()):
        rows["leader"][row] = np.void(leaders[group][8:])
    large = sizes[sizes > 1]
    return rows, {
        "near_duplicate_groups": len(large),
        "near_duplicates": int(large.sum()) - len(large),
    }


def groups_path(folder: Path) -> Path:
    """Returns the path of the table of groups."""
    return folder / "groups.npy"


@dataclass(frozen=True, kw_only=True)
class Membership:
    """Holds the group of an image, and whether the image leads it (as a single image does)."""

    group: int
    leads: bool


class Groups:
    """Looks up images in the memory-mapped table of groups."""

    def __init__(self, table: npt.NDArray[np.void]) -> None:
        self._table = table
        self._hashes = np.ascontiguousarray(table["hash"])

    @classmethod
    def read(cls, folder: Path) -> "Groups":
        """Opens the table that a run has written."""
        return cls(np.load(groups_path(folder), mmap_mode="r", allow_pickle=False))

    def find_membership(self, image: ArchivedImage) -> Membership:
        """Returns the group of an image; a single image has its own group."""
        assert image.phash is not None, "an image that has not been decoded"
        index = int(np.searchsorted(self._hashes, np.uint64(image.phash)))
        if index == len(self._hashes) or int(self._hashes[index]) != image.phash:
            return Membership(group=image.phash, leads=True)
        row = self._table[index]
        leads = row["leader"].tobytes() == bytes.fromhex(image.image_id)
        return Membership(group=int(row["group"]), leads=leads)


@lru_cache(maxsize=1 << 12)
def is_held_out(group: int, share: float) -> bool:
    """Returns whether a group is in the held-out ``share``, which depends only on its hash."""
    digest = hashlib.blake2b(group.to_bytes(8, "big"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * (1 << 64)


def assign_split(
    image: ArchivedImage, page_url: str, groups: Groups, rules: WebPairRules
) -> str | Drop:
    """Returns the split of an image's pair from a page, or why the pair is dropped."""
    membership = groups.find_membership(image)
    if rules.drop_near_duplicates and not membership.leads:
        detail = f"hash {image.phash:016x}: {image.url} on {page_url}"
        return Drop(Reason.NEAR_DUPLICATE, detail)
    return "val" if is_held_out(membership.group, rules.hold_out) else "train"
