"""Computes named statistics of a small image: colour, palette, edges, and text-like areas.

They separate photographs from drawings, charts, logos and screenshots, and images with much skin
from others; the rules are vlmill's. H x W pixels, with a long side of at most SIDE.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from vlmill.schemas.images.decode import to_rgb

MAX_PIXELS = 50_000_000  # of an image that a filter or a scorer looks at
SIDE = 96  # a text line still shows strokes; a statistic of 96 x 64 takes microseconds
FLAT = 2  # grey levels between neighbours that count as equal: JPEG noise in a plain area
STRONG = 24  # grey levels between neighbours that look like an edge
HUES = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink")
HUE_STARTS = np.array([0.04, 0.12, 0.19, 0.44, 0.54, 0.70, 0.80, 0.94])  # of a circle of 1

COLOUR = (
    *("red_mean", "green_mean", "blue_mean", "red_spread", "green_spread", "blue_spread"),
    *("brightness_mean", "brightness_spread", "brightness_low", "brightness_middle"),
    *("brightness_high", "dark_share", "light_share", "saturation_mean", "saturation_spread"),
    *("saturated_share", "grey_share", "colourfulness", "skin_share", "skin_share_of_middle"),
    *("skin_rows", "skin_columns", "warm_share"),
    *(f"{hue}_share" for hue in HUES),
)
PALETTE = (
    *("palette_size", "palette_entropy", "first_colour_share", "four_colours_share"),
    *("sixteen_colours_share", "white_share", "black_share", "border_share_of_one_colour"),
    *("same_as_right", "same_as_below", "brightness_entropy", "brightness_empty_levels"),
)
EDGES = (
    *("edge_mean", "edge_spread", "edge_share", "flat_share", "edge_peak", "across_over_down"),
    *("noise", "noise_of_flat", "upright_edges", "level_edges", "slanted_edges"),
    *("middle_edges", "border_edges", "detail_share"),
)
TEXT = (
    *("strokes_of_rows_mean", "strokes_of_rows_spread", "strokes_of_columns_mean"),
    *("strokes_of_columns_spread", "rows_of_many_strokes", "lines_like_text"),
    *("two_tone", "ink_share", "row_ink_spread", "column_ink_spread", "row_rhythm"),
)
SHAPE = ("width_over_height",)
GROUPS: dict[str, tuple[str, ...]] = {
    "colour": COLOUR,
    "palette": PALETTE,
    "edges": EDGES,
    "text_likeness": TEXT,
    "shape": SHAPE,
}
NAMES = tuple(name for names in GROUPS.values() for name in names)

Pixels = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float32]
Plane = npt.NDArray[np.float32]


def small_copy(image: Image.Image, side: int) -> Image.Image:
    """Returns an RGB copy of a decoded image at 1, 1/2, 1/4 or 1/8 of its size, with ``side``
    pixels or some more. Raises Rejected for pixels that are floating-point numbers.
    """
    rgb = to_rgb(image)
    factor = next((n for n in (8, 4, 2) if min(rgb.size) >= n * side), 1)
    return rgb.reduce(factor) if factor > 1 else rgb


def shrunk(image: Image.Image) -> Pixels:
    """Returns an image as RGB uint8 [H, W, 3] whose long side has at most SIDE pixels."""
    small = image.copy()
    small.thumbnail((SIDE, SIDE), resample=Image.Resampling.BILINEAR, reducing_gap=2.0)
    return np.asarray(small)


def image_statistics(pixels: Pixels) -> Values:
    """Computes the statistics in the order of NAMES, float32; undefined ones are NaN.

    ``pixels`` are uint8 RGB [H, W, 3] as :func:`shrunk` returns them.
    """
    height, width = pixels.shape[:2]
    # Plane by plane: along an axis of three, numpy takes five times as long.
    rgb = np.ascontiguousarray(pixels.transpose(2, 0, 1)).astype(np.float32)
    grey = 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]
    values = [
        *_colour(rgb, grey),
        *_palette(rgb.astype(np.uint16), grey),
        *_edges(grey),
        *_text(grey),
        width / height,
    ]
    return np.array(values, dtype=np.float32)


def _colour(rgb: Plane, grey: Plane) -> Sequence[float]:
    red, green, blue = rgb
    highest = np.maximum(np.maximum(red, green), blue)
    chroma = highest - np.minimum(np.minimum(red, green), blue)
    saturation = chroma / np.maximum(highest, 1)
    vivid = (saturation > 0.25) & (highest > 50)
    skin = _skin(red, green, blue)
    middle = skin[skin.shape[0] // 4 : -(skin.shape[0] // 4) or None]
    middle = middle[:, skin.shape[1] // 4 : -(skin.shape[1] // 4) or None]
    difference, yellow = red - green, (red + green) / 2 - blue
    colourfulness = np.hypot(difference.std(), yellow.std()) + 0.3 * np.hypot(
        difference.mean(), yellow.mean()
    )
    planes = rgb.reshape(3, -1)
    return [
        *planes.mean(axis=1),
        *planes.std(axis=1),
        grey.mean(),
        grey.std(),
        *_percentiles(grey, (5, 50, 95)),
        np.mean(grey < 40),
        np.mean(grey > 215),
        saturation.mean(),
        saturation.std(),
        np.mean(saturation > 0.5),
        np.mean(chroma < 12),
        colourfulness,
        skin.mean(),
        middle.mean(),
        np.mean(skin.mean(axis=1) > 0.3),
        np.mean(skin.mean(axis=0) > 0.3),
        np.mean(vivid & (red > blue)),
        *_hue_shares(rgb, highest, chroma, vivid),
    ]


def _skin(red: Plane, green: Plane, blue: Plane) -> npt.NDArray[np.bool_]:
    """Returns where pixels have a light to dark skin colour: a wedge of red over blue."""
    total = np.maximum(red + green + blue, 1)
    red_part, green_part = red / total, green / total
    skin: npt.NDArray[np.bool_] = (
        (red > 60)
        & (red_part > 0.36)
        & (red_part < 0.58)
        & (green_part > 0.26)
        & (green_part < 0.36)
        & (red > green)
        & (green > 0.8 * blue)
    )
    return skin


def _hue_shares(
    rgb: Plane, highest: Plane, chroma: Plane, vivid: npt.NDArray[np.bool_]
) -> Sequence[float]:
    """Returns the shares of all pixels that are vivid and have each of HUES."""
    if not vivid.any():
        return [0.0] * len(HUES)
    (red, green, blue), top, spread = rgb[:, vivid], highest[vivid], chroma[vivid]
    hue = np.where(
        top == red,
        (green - blue) / spread,
        np.where(top == green, 2 + (blue - red) / spread, 4 + (red - green) / spread),
    )
    numbers = np.searchsorted(HUE_STARTS, (hue / 6) % 1, side="right") % len(HUES)
    counts = np.bincount(numbers, minlength=len(HUES))
    shares: list[float] = (counts / vivid.size).tolist()
    return shares


def _percentiles(plane: Plane, percents: Sequence[int]) -> Sequence[float]:
    ordered = np.sort(plane, axis=None)
    return [ordered[(len(ordered) - 1) * percent // 100] for percent in percents]


def _palette(rgb: npt.NDArray[np.uint16], grey: Plane) -> Sequence[float]:
    red, green, blue = rgb
    codes = (red >> 4 << 8) | (green >> 4 << 4) | (blue >> 4)
    counts = np.bincount(codes.ravel(), minlength=4096)
    counts = np.sort(counts[counts > 0])[::-1] / codes.size
    border = np.concatenate([codes[0], codes[-1], codes[:, 0], codes[:, -1]])
    levels = np.bincount(grey.astype(np.uint8).ravel(), minlength=256) / grey.size
    return [
        np.log2(1 + len(counts)),
        _entropy(counts),
        counts[0],
        counts[:4].sum(),
        counts[:16].sum(),
        np.mean((red > 240) & (green > 240) & (blue > 240)),
        np.mean((red < 16) & (green < 16) & (blue < 16)),
        np.bincount(border).max() / len(border),
        _share_of_equal(codes[:, 1:], codes[:, :-1]),
        _share_of_equal(codes[1:], codes[:-1]),
        _entropy(levels),
        np.mean(levels == 0),
    ]


def _entropy(shares: npt.NDArray[np.float64]) -> float:
    present = shares[shares > 0]
    return float(-(present * np.log2(present)).sum())


def _share_of_equal(first: npt.NDArray[np.uint16], second: npt.NDArray[np.uint16]) -> float:
    return float(np.mean(first == second)) if first.size else np.nan


def _edges(grey: Plane) -> Sequence[float]:
    if min(grey.shape) < 3:
        return [np.nan] * len(EDGES)
    across = np.abs(grey[1:-1, 2:] - grey[1:-1, :-2])
    down = np.abs(grey[2:, 1:-1] - grey[:-2, 1:-1])
    edge = np.maximum(across, down)
    noise = np.abs(
        4 * grey[1:-1, 1:-1] - grey[1:-1, 2:] - grey[1:-1, :-2] - grey[2:, 1:-1] - grey[:-2, 1:-1]
    )
    strong, flat = edge > STRONG, edge <= FLAT
    number = max(1, int(np.count_nonzero(strong)))
    height, width = edge.shape
    middle = strong[height // 4 : height - height // 4, width // 4 : width - width // 4]
    inside = np.count_nonzero(middle)
    return [
        edge.mean(),
        edge.std(),
        strong.mean(),
        flat.mean(),
        edge.max(),
        across.mean() / max(float(down.mean()), 0.1),
        noise.mean(),
        noise[flat].mean() if flat.any() else np.nan,
        np.count_nonzero(strong & (across > 4 * down)) / number,
        np.count_nonzero(strong & (down > 4 * across)) / number,
        np.count_nonzero(strong & (across < 2 * down) & (down < 2 * across)) / number,
        inside / max(1, middle.size),
        (np.count_nonzero(strong) - inside) / max(1, strong.size - middle.size),
        np.mean(noise > STRONG),
    ]


def _text(grey: Plane) -> Sequence[float]:
    """Measures text-like rows: many strokes, alternating with empty rows, in two tones."""
    if min(grey.shape) < 3:
        return [np.nan] * len(TEXT)
    rows = np.count_nonzero(np.abs(np.diff(grey, axis=1)) > STRONG, axis=1) / grey.shape[1]
    columns = np.count_nonzero(np.abs(np.diff(grey, axis=0)) > STRONG, axis=0) / grey.shape[0]
    split, separation = _two_tones(grey)
    ink = grey < split
    if ink.mean() > 0.5:  # light letters on a dark background
        ink = ~ink
    row_ink = ink.mean(axis=1)
    busy = rows > 0.2
    return [
        rows.mean(),
        rows.std(),
        columns.mean(),
        columns.std(),
        busy.mean(),
        np.count_nonzero(busy[1:] != busy[:-1]) / len(busy),
        separation,
        ink.mean(),
        row_ink.std(),
        ink.mean(axis=0).std(),
        _rhythm(row_ink),
    ]


def _two_tones(grey: Plane) -> tuple[float, float]:
    """Returns the grey level between dark and light (Otsu), and their share of the variance."""
    levels = np.bincount((grey / 4).astype(np.uint8).ravel(), minlength=64) / grey.size
    indices = np.arange(64)
    weight, moment = levels.cumsum(), (levels * indices).cumsum()
    between = (moment[-1] * weight - moment) ** 2 / np.maximum(weight * (1 - weight), 1e-9)
    best = int(between.argmax())
    variance = float((levels * (indices - moment[-1]) ** 2).sum())
    return 4.0 * (best + 1), float(between[best]) / variance if variance > 0 else 0.0


def _rhythm(profile: npt.NDArray[np.float64]) -> float:
    """Returns how well the profile repeats itself: the highest autocorrelation 3 to 16 rows on."""
    centred = profile - profile.mean()
    power = float(centred @ centred)
    if power < 1e-9 or len(profile) < 20:
        return 0.0
    return max(float(centred[lag:] @ centred[:-lag]) for lag in range(3, 17)) / power
