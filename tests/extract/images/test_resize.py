"""Decoding of good and bad images, and the original detector's resize."""

import dataclasses
import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file

from vlmill.extract.config import InputLimits
from vlmill.extract.detect.rows import Query
from vlmill.extract.detect.transfer import compute_measures, make_frames, upload_batch
from vlmill.extract.images.decode import decode
from vlmill.extract.images.resize import (
    NetworkInput,
    PixelInput,
    lighter_input,
    network_input,
    resize_bilinear,
    resize_factor,
    shortest_edge,
    truncated_edge,
)
from vlmill.models.detector.config import (
    CONVENTIONS,
    DetectorConfig,
    detectron2_fpn,
    hf_frcnn,
    vqa_maskrcnn,
)
from vlmill.schemas.rejects import Reason, Rejected

OPS = load_file(Path(__file__).parents[2] / "golden/frcnn/ops/cases.safetensors")
MEAN = (102.9801, 115.9465, 122.7717)
LIMITS = InputLimits()
RED, RED_BGR = (255, 0, 0), [0, 0, 255]


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def gradient(mode: str = "RGB") -> Image.Image:
    rows = np.arange(24, dtype=np.uint8)[:, None, None] * 10
    pixels = np.broadcast_to(rows, (24, 32, 3)).copy()
    pixels[:, :, 0] = np.arange(32) * 8
    return Image.fromarray(pixels).convert(mode)


@pytest.mark.parametrize("name", ["down", "up", "int"])
def test_resize_equals_opencv(name: str) -> None:
    image = OPS[f"resize_{name}.in.image"].float() - torch.tensor(MEAN)
    resized = resize_bilinear(image, OPS[f"resize_{name}.in.scale"].item())
    recorded = OPS[f"resize_{name}.out.cv2_float_minus_mean"]
    torch.testing.assert_close(resized, recorded, atol=1e-3, rtol=0)


@pytest.mark.parametrize("factor", [0.3, 0.77, 1.0, 1.6])
def test_pixels_are_resized_as_their_differences_from_the_mean(factor: float) -> None:
    """Bit for bit, though only the rows that count become float32."""
    pixels = torch.randint(0, 256, (71, 53, 3), dtype=torch.uint8)
    mean = torch.tensor(MEAN)
    assert torch.equal(
        resize_bilinear(pixels, factor, mean), resize_bilinear(pixels.float() - mean, factor)
    )


@pytest.mark.parametrize(
    ("height", "width", "factor"),
    [(480, 640, 1.25), (640, 480, 1.25), (300, 900, 1000 / 900), (1200, 1200, 0.5)],
)
def test_resize_factor_by_hand(height: int, width: int, factor: float) -> None:
    assert resize_factor(height, width, 600, 1000) == factor


@settings(deadline=None, max_examples=100)
@given(height=st.integers(1, 3000), width=st.integers(1, 3000))
def test_the_resized_sides_keep_their_bounds(height: int, width: int) -> None:
    factor = resize_factor(height, width, 600, 1000)
    short, long = sorted((round(height * factor), round(width * factor)))
    assert long <= 1000
    assert short == 600 or long == 1000


def test_pixels_come_blue_green_red() -> None:
    assert decode(encoded(Image.new("RGB", (4, 3), RED), "PNG"), LIMITS)[0, 0].tolist() == RED_BGR


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("L", "JPEG"), ("CMYK", "JPEG"), ("P", "PNG"), ("P", "GIF"), ("LA", "PNG"), ("1", "PNG")],
)
def test_other_modes_become_three_channels(mode: str, kind: str) -> None:
    pixels = decode(encoded(gradient().convert(mode), kind), LIMITS)
    assert pixels.shape == (24, 32, 3)
    assert pixels.dtype == np.uint8
    assert int(pixels.max()) - int(pixels.min()) > 100


def test_cmyk_keeps_its_colour() -> None:
    pixels = decode(encoded(Image.new("RGB", (16, 16), RED).convert("CMYK"), "JPEG"), LIMITS)
    np.testing.assert_allclose(pixels[8, 8], RED_BGR, atol=6)


def test_sixteen_bits_are_cut_to_the_upper_eight() -> None:
    values = np.array([[0, 255, 256, 65535]], dtype=np.uint16)
    pixels = decode(encoded(Image.fromarray(values), "PNG"), LIMITS)
    assert pixels[0, :, 0].tolist() == [0, 0, 1, 255]


def test_alpha_is_dropped_not_blended() -> None:
    clear = encoded(Image.new("RGBA", (4, 4), (*RED, 0)), "PNG")
    assert decode(clear, LIMITS)[0, 0].tolist() == RED_BGR
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, *RED])
    assert decode(encoded(palette, "PNG", transparency=1), LIMITS)[0, 0].tolist() == RED_BGR


def test_the_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (8, 8), RED), Image.new("RGB", (8, 8), (0, 0, 255))]
    for kind in ("GIF", "PNG", "WEBP"):
        lossless = {"lossless": True} if kind == "WEBP" else {}
        data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **lossless)
        np.testing.assert_allclose(decode(data, LIMITS)[4, 4], RED_BGR, atol=2)


def test_broken_exif_does_not_cost_the_image() -> None:
    data = encoded(gradient(), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xffgarbage")
    assert decode(data, LIMITS).shape == (24, 32, 3)


def test_a_lying_extension_does_not_matter() -> None:
    """The name is not asked: what decides is the content."""
    assert decode(encoded(gradient(), "PNG"), LIMITS).shape == (24, 32, 3)


def huge_png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + checksum

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


JPEG = encoded(gradient().resize((320, 240)), "JPEG")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", Reason.EMPTY),
        (b"<html>no picture</html>", Reason.UNSUPPORTED_FORMAT),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", Reason.UNSUPPORTED_FORMAT),
        (JPEG[: len(JPEG) // 2], Reason.UNREADABLE_IMAGE),
        (JPEG[:200], Reason.UNREADABLE_IMAGE),
        (huge_png(8_000, 8_000), Reason.TOO_LARGE),
        (huge_png(2**31 - 1, 2**31 - 1), Reason.TOO_LARGE),
        (huge_png(100, 100), Reason.UNREADABLE_IMAGE),
        (encoded(Image.new("F", (4, 4)), "TIFF"), Reason.UNSUPPORTED_FORMAT),
    ],
)
def test_bad_images_give_their_reason(data: bytes, reason: Reason) -> None:
    with pytest.raises(Rejected) as rejected:
        decode(data, LIMITS)
    assert rejected.value.reason is reason


def test_the_byte_limit() -> None:
    with pytest.raises(Rejected) as rejected:
        decode(JPEG, InputLimits(max_bytes=len(JPEG) - 1))
    assert rejected.value.reason is Reason.TOO_LARGE


@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(("JPEG", "PNG", "GIF", "WEBP", "TIFF")))
def test_mutated_images_decode_or_are_rejected(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    data = bytearray(encoded(gradient(), kind))
    for _ in range(int(rng.integers(1, 8))):
        data[int(rng.integers(0, len(data)))] = int(rng.integers(0, 256))
    cut = int(rng.integers(0, 2 * len(data)))
    try:
        pixels = decode(bytes(data[:cut]), LIMITS)
    except Rejected as rejected:
        assert rejected.reason in Reason
    else:
        assert pixels.ndim == 3 and pixels.shape[2] == 3


@pytest.mark.parametrize("shape", [(1, 5000), (5000, 1), (2, 1000)])
def test_a_image_that_vanishes_when_resized_is_rejected(shape: tuple[int, int]) -> None:
    pixels = np.zeros((*shape, 3), np.uint8)
    with pytest.raises(Rejected) as rejected:
        network_input(pixels, DetectorConfig(), LIMITS)
    assert rejected.value.reason is Reason.TOO_SMALL


def test_one_pixel_becomes_a_flat_image() -> None:
    image = network_input(np.full((1, 1, 3), 200, np.uint8), DetectorConfig(), LIMITS)
    assert image.tensor.shape == (1, 3, 600, 600)
    torch.testing.assert_close(image.tensor[0, :, 0, 0], 200 - torch.tensor(MEAN))
    assert (image.width, image.height, image.scale) == (1, 1, 600)


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [(480, 640, (800, 1067)), (640, 480, (1067, 800)), (300, 900, (444, 1333)), (5, 5, (800, 800))],
)
def test_shortest_edge_by_hand(height: int, width: int, expected: tuple[int, int]) -> None:
    assert shortest_edge(height, width, 800, 1333) == expected


@pytest.mark.parametrize("family", ["milvlg", "airsplay", "hf-frcnn", "detectron2"])
def test_a_flat_image_is_its_colour_minus_the_mean(family: str) -> None:
    spec = CONVENTIONS[family](pixel_mean=(1.0, 2.0, 3.0), pixel_std=(2.0, 2.0, 4.0))
    pixels = np.full((30, 40, 3), (11, 22, 43), np.uint8)
    image = network_input(pixels, spec, InputLimits(short_side=60, long_side=100))
    assert image.tensor.shape == (1, 3, 60, 80)
    assert image.factors == (2.0, 2.0)
    expected = torch.tensor([5.0, 10.0, 10.0])[:, None, None].expand(3, 60, 80)
    torch.testing.assert_close(image.tensor[0], expected)


def test_a_detector_brings_its_own_sides() -> None:
    pixels = np.zeros((30, 40, 3), np.uint8)
    spec = CONVENTIONS["detectron2"]()
    assert network_input(pixels, spec, LIMITS).tensor.shape == (1, 3, 800, 1067)
    assert network_input(pixels, DetectorConfig(), LIMITS).tensor.shape == (1, 3, 600, 800)


def test_red_green_blue_where_the_family_feeds_that() -> None:
    pixels = np.full((30, 40, 3), (10, 20, 30), np.uint8)
    spec = hf_frcnn(legacy_rgb=True, pixel_mean=(0.0, 0.0, 0.0))
    limits = InputLimits(short_side=60, long_side=100)
    assert network_input(pixels, spec, limits).tensor[0, :, 0, 0].tolist() == [30, 20, 10]


SENT = [(600, PixelInput), (1200, PixelInput), (1201, NetworkInput)]


@pytest.mark.parametrize(("side", "kind"), SENT)
def test_workers_send_what_is_fewer_bytes(side: int, kind: type) -> None:
    """An image of 600 x 600 x 3 float32 has the bytes of 1200 x 1200 pixels."""
    pixels = np.zeros((side, side, 3), np.uint8)
    made = lighter_input(pixels, DetectorConfig(), LIMITS)
    assert isinstance(made, kind)
    assert made.size == (600, 600) and (made.width, made.height) == (side, side)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((480, 640), (600, 800)),
        ((427, 640), (600, 899)),  # 899.3, which Detectron2 has too
        ((333, 500), (600, 900)),  # 900.9, cut
        ((300, 1000), (300, 1000)),  # as it is: 1000 * 300 / 1000
        ((301, 1000), (301, 1000)),
        ((100, 1000), (100, 1000)),
        ((1000, 301), (1000, 301)),
        ((400, 4000), (100, 1000)),
        ((405, 2000), (202, 997)),  # 202.5 goes to the even one
        ((600, 700), (600, 700)),
        ((600, 600), (600, 600)),
        ((300, 300), (600, 600)),
    ],
)
def test_vinvl_cuts_the_long_side(size: tuple[int, int], expected: tuple[int, int]) -> None:
    """Their loop by hand: the short side is set first, the long one follows and is cut."""
    assert truncated_edge(*size, 600, 1000) == expected
    assert truncated_edge(*size[::-1], 600, 1000) == expected[::-1]


def test_a_padded_image_is_as_large_as_its_padding() -> None:
    """Of vqa-maskrcnn alone; what pads without that clips to the image."""
    pixels = np.zeros((100, 150, 3), np.uint8)
    for spec, width, height in ((vqa_maskrcnn(), 192, 128), (detectron2_fpn(), 180, 120)):
        limits = InputLimits(short_side=120, long_side=200)
        image = network_input(pixels, spec, limits)
        query = Query(image_id="a", image=image)
        batch = upload_batch([query], spec, torch.device("cpu"))
        assert batch.images.shape == (1, 3, 128, 192)
        assert not batch.images[:, :, 120:].any() and not batch.images[:, :, :, 180:].any()
        frames, offset = make_frames(batch.measures), spec.box_offset
        assert frames.network_limits.tolist() == [[width - offset, height - offset] * 2]
        assert frames.content_limits.tolist() == [[180 - offset, 120 - offset] * 2]
        assert frames.given_factors.tolist() == frames.factors.tolist()
    defect = dataclasses.replace(vqa_maskrcnn(), given_scale="padded")
    frames = make_frames(torch.tensor([compute_measures(query, defect)]))
    assert frames.given_factors[0].tolist() == pytest.approx([192 / 150, 128 / 100] * 2)
