import numpy as np
import pytest
from PIL import Image
from tests.pipelines.filters.generated import chart, photograph, skin

from vlmill.pipelines.filters.statistics import (
    GROUPS,
    NAMES,
    SIDE,
    image_statistics,
    shrunk,
    small_copy,
)
from vlmill.schemas.rejects import Rejected


def named(pixels: np.ndarray) -> dict[str, float]:
    return dict(zip(NAMES, image_statistics(pixels).tolist(), strict=True))


def plain(colour: tuple[int, int, int], height: int = 12, width: int = 24) -> np.ndarray:
    return np.full((height, width, 3), colour, dtype=np.uint8)


def test_names_are_of_one_group_each() -> None:
    assert len(set(NAMES)) == len(NAMES) == sum(map(len, GROUPS.values())) == 69


def test_a_plain_image_by_hand() -> None:
    values = named(plain((255, 0, 0)))
    assert values["red_mean"] == 255 and values["green_mean"] == values["red_spread"] == 0
    assert values["red_share"] == 1 and values["blue_share"] == 0
    assert values["saturation_mean"] == pytest.approx(1) and values["grey_share"] == 0
    assert values["palette_size"] == 1 and values["palette_entropy"] == 0
    assert values["first_colour_share"] == values["border_share_of_one_colour"] == 1
    assert values["edge_share"] == 0 and values["flat_share"] == 1
    assert values["width_over_height"] == 2


@pytest.mark.parametrize(
    ("colour", "hue"),
    [
        ((255, 0, 0), "red"),
        ((255, 128, 0), "orange"),
        ((255, 240, 0), "yellow"),
        ((0, 200, 0), "green"),
        ((0, 255, 255), "cyan"),
        ((0, 0, 255), "blue"),
        ((140, 0, 255), "purple"),
        ((255, 0, 180), "pink"),
    ],
)
def test_hues(colour: tuple[int, int, int], hue: str) -> None:
    shares = {name: share for name, share in named(plain(colour)).items() if share == 1}
    assert f"{hue}_share" in shares


def test_stripes_are_upright_edges() -> None:
    stripes = plain((255, 255, 255), 40, 40)
    stripes[:, ::4] = stripes[:, 1::4] = 0
    values = named(stripes)
    assert values["upright_edges"] == 1 and values["level_edges"] == 0
    assert values["two_tone"] == pytest.approx(1) and values["ink_share"] == 0.5
    assert values["strokes_of_rows_mean"] == pytest.approx(19 / 40)
    assert named(stripes.transpose(1, 0, 2))["level_edges"] == 1


def test_kinds_of_images_differ_where_they_should() -> None:
    rng = np.random.default_rng(0)
    photographs = [named(photograph(rng)) for _ in range(10)]
    charts = [named(chart(rng)) for _ in range(10)]
    bodies = [named(skin(rng)) for _ in range(10)]
    assert min(p["palette_entropy"] for p in photographs) > max(
        c["palette_entropy"] for c in charts
    )
    assert max(p["flat_share"] for p in photographs) < min(c["flat_share"] for c in charts)
    assert np.mean([b["skin_share"] for b in bodies]) > 0.3 + np.mean(
        [p["skin_share"] for p in photographs]
    )


@pytest.mark.parametrize("size", [(1, 1), (1, 30), (2, 2), (30, 1), (3, 3)])
def test_tiny_images_have_statistics(size: tuple[int, int]) -> None:
    values = image_statistics(np.zeros((*size, 3), dtype=np.uint8))
    assert values.shape == (len(NAMES),) and not np.isinf(values).any()


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "CMYK", "1", "I;16"])
def test_small_copy_is_rgb_of_the_side_or_some_more(mode: str) -> None:
    small = small_copy(Image.new("L", (900, 600), 200).convert(mode), SIDE)
    assert (small.mode, small.size) == ("RGB", (225, 150))
    assert shrunk(small).shape == (64, SIDE, 3)


def test_small_image_is_copied_at_its_size() -> None:
    assert small_copy(Image.new("RGB", (20, 300)), SIDE).size == (20, 300)


def test_pixels_of_unknown_range_are_rejected() -> None:
    with pytest.raises(Rejected, match="floating-point"):
        small_copy(Image.new("F", (8, 8)), SIDE)
