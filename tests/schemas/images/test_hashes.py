import io

import numpy as np
import pytest
from PIL import Image

from vlmill.schemas.images.hashes import (
    NEAR,
    Hashes,
    Neighbours,
    bands,
    group_hashes,
    near_pairs,
    perceptual_hash,
)


def image(seed: int) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((320, 240), Image.Resampling.BICUBIC)


def apart(one: Image.Image, other: Image.Image) -> int:
    return (perceptual_hash(one) ^ perceptual_hash(other)).bit_count()


def test_a_image_and_its_copies_are_near_others_are_not() -> None:
    one = image(1)
    assert apart(one, one.resize((640, 480))) <= NEAR
    out = io.BytesIO()
    one.save(out, "JPEG", quality=50)
    assert apart(one, Image.open(out)) <= NEAR
    assert apart(one, one.point(lambda value: value * 0.9)) <= NEAR
    assert min([apart(one, image(seed)) for seed in range(2, 12)]) > 2 * NEAR


def test_modes_and_plain_images_have_hashes() -> None:
    for mode in ("L", "P", "RGBA", "CMYK", "1"):
        assert 0 <= perceptual_hash(image(3).convert(mode)) < 1 << 64
    assert apart(Image.new("RGB", (40, 40), "white"), Image.new("RGB", (9, 99), "white")) == 0


def random_hashes(count: int) -> Hashes:
    """Hashes of which some lie 1 to 6 bits from others."""
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 1 << 63, count, dtype=np.uint64)
    near = [
        h ^ np.uint64(sum(1 << int(b) for b in rng.choice(64, 1 + i % 6, replace=False)))
        for i, h in enumerate(hashes[: count // 2])
    ]
    return np.unique(np.concatenate([hashes, np.array(near, dtype=np.uint64)]))


@pytest.mark.parametrize("distance", [0, 1, 4, 7])
def test_near_pairs_are_those_that_comparing_all_finds(distance: int) -> None:
    hashes = random_hashes(200)
    pairs = {
        (int(a), int(b))
        for first, second in near_pairs(hashes, distance)
        for a, b in zip(first, second, strict=True)
    }
    every = np.bitwise_count(hashes[:, None] ^ hashes[None])
    expected = {(int(a), int(b)) for a, b in np.argwhere(every <= distance) if a != b}
    assert {tuple(sorted(pair)) for pair in pairs} == {tuple(sorted(pair)) for pair in expected}


def test_groups_are_what_chains_connect() -> None:
    far = 0xFFFF << 40
    chain = np.array([0, 0b111, 0b111111, far, far | 1], dtype=np.uint64)
    groups = group_hashes(chain, 3)
    assert groups.tolist() == [0, 0, 0, far, far]
    shuffled = np.array([4, 0, 3, 2, 1])
    assert group_hashes(chain[shuffled], 3).tolist() == groups[shuffled].tolist()
    assert group_hashes(np.empty(0, dtype=np.uint64)).tolist() == []


@pytest.mark.parametrize("distance", [0, 4])
def test_neighbours_are_found(distance: int) -> None:
    hashes = random_hashes(100)
    neighbours = Neighbours(hashes[::2], distance)
    for phash in hashes.tolist():
        near = min((phash ^ other).bit_count() for other in hashes[::2].tolist()) <= distance
        assert neighbours.near(phash) == near


def test_bands_cover_all_bits_once() -> None:
    for distance in range(17):
        masks = [mask << shift for shift, mask in bands(distance)]
        assert sum(masks) == (1 << 64) - 1 and len(masks) == distance + 1
