"""Images of every encoding give the same picture, and bad ones are refused with a sentence."""

from __future__ import annotations

import importlib
import importlib.util
import struct
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.frame import CameraFrame
from driveRT_ros.io.image import ENCODINGS, decode_compressed, decode_image, with_pixels
from driveRT_ros.io.typestore import message_type
from test.support.images import (
    BAYER_COLOURS,
    as_message,
    compressed_message,
    encoded,
    image_message,
    mosaic,
    random_rgb,
    smooth_rgb,
)

EXACT = [f"{name}{bits}" for name in ("rgb", "bgr", "rgba", "bgra") for bits in (8, 16)]
BAYER = [f"bayer_{pattern}{bits}" for pattern in BAYER_COLOURS for bits in (8, 16)]
YUV = ["yuv422", "uyvy", "yuv422_yuy2", "yuyv", "nv12", "nv21"]


def error_of(decoded: np.ndarray, expected: np.ndarray) -> np.ndarray:
    return np.abs(decoded.astype(int) - expected.astype(int))


def test_the_tests_know_every_encoding():
    assert {*EXACT, *BAYER, *YUV, "mono8", "mono16"} == set(ENCODINGS)


@pytest.mark.parametrize("padding", (0, 1, 24))
@pytest.mark.parametrize("encoding", EXACT)
def test_colour_images_come_out_exactly_whatever_their_order_and_padding(encoding, padding):
    rgb = random_rgb(1)
    message = as_message(rgb, encoding, padding=padding)
    decoded = decode_image(message)
    np.testing.assert_array_equal(decoded, rgb)
    assert decoded.dtype == np.uint8 and decoded.flags.c_contiguous


@pytest.mark.parametrize("encoding", ("mono8", "mono16"))
def test_grey_is_the_same_in_all_colours(encoding):
    rgb = random_rgb(2)
    decoded = decode_image(as_message(rgb, encoding, padding=3))
    np.testing.assert_array_equal(decoded, np.repeat(rgb[..., :1], 3, axis=2))


@pytest.mark.parametrize("encoding", ("rgb16", "bgra16", "mono16", "bayer_gbrg16"))
def test_the_byte_order_of_sixteen_bits_is_respected(encoding):
    little, big = (as_message(smooth_rgb(), encoding, bigendian=b) for b in (False, True))
    assert little.data != big.data
    np.testing.assert_array_equal(decode_image(little), decode_image(big))


def test_sixteen_bits_are_rounded_to_eight():
    values = np.array([[0, 128, 129, 385, 386, 65535]], "<u2")
    decoded = decode_image(image_message("mono16", values, width=6))
    assert decoded[0, :, 0].tolist() == [0, 0, 1, 1, 2, 255]


@pytest.mark.parametrize("encoding", BAYER)
def test_mosaics_are_interpolated_to_the_same_picture(encoding):
    rgb = smooth_rgb()
    decoded = decode_image(as_message(rgb, encoding, padding=10))
    assert decoded.shape == rgb.shape
    assert error_of(decoded, rgb)[2:-2, 2:-2].max() <= 4  # ramps rise by 3 a pixel at most


@pytest.mark.parametrize("pattern", BAYER_COLOURS)
def test_a_red_mosaic_is_red(pattern):
    rgb = np.zeros((16, 16, 3), np.uint8)
    rgb[..., 0] = 200
    decoded = decode_image(as_message(rgb, f"bayer_{pattern}8"))
    np.testing.assert_array_equal(decoded[2:-2, 2:-2], rgb[2:-2, 2:-2])


@pytest.mark.parametrize("padding", (0, 8))
@pytest.mark.parametrize("encoding", YUV)
def test_yuv_of_two_channels_becomes_rgb(encoding, padding):
    """yuv422_yuy2 must not pass as a two-channel image, nor any order of bytes as another."""
    rgb = smooth_rgb()
    decoded = decode_image(as_message(rgb, encoding, padding=padding))
    assert decoded.shape == rgb.shape and error_of(decoded, rgb).max() <= 6
    assert error_of(decoded, rgb).mean() < 1.5


def test_padded_rows_are_not_sheared():
    """640 x 480 rgb8 in rows of 2048 bytes, as drivers with aligned rows publish it."""
    rgb = random_rgb(3, 480, 640)
    message = as_message(rgb, "rgb8", padding=2048 - 1920)
    assert message.step == 2048
    np.testing.assert_array_equal(decode_image(message), rgb)


def test_an_rgb_image_is_not_copied_and_the_message_cannot_be_painted():
    message = as_message(random_rgb(4), "rgb8")
    decoded = decode_image(message)
    assert np.shares_memory(decoded, np.frombuffer(message.data, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        decoded[0, 0] = 0


@pytest.mark.parametrize("encoding", ("rgb8", "bgr8", "bayer_rggb16", "nv12", "yuyv", "mono16"))
def test_decoding_never_writes_to_the_message(encoding):
    message = as_message(random_rgb(5), encoding, padding=2)
    before = message.data.tobytes()
    decode_image(message)
    assert message.data.tobytes() == before


def rclpy_type(name: str) -> type:
    package, _, message = name.split("/")
    return getattr(importlib.import_module(f"{package}.msg"), message)


@pytest.mark.parametrize(
    "types",
    [
        message_type,
        pytest.param(
            rclpy_type,
            marks=pytest.mark.skipif(
                importlib.util.find_spec("sensor_msgs") is None,
                reason="sensor_msgs is not installed",
            ),
        ),
    ],
    ids=["rosbags", "rclpy"],
)
def test_messages_of_both_libraries_are_decoded(types):
    rgb = random_rgb(6)
    plain = as_message(rgb, "bgr8", padding=4)
    message = types("sensor_msgs/msg/Image")(
        header=_header(types),
        height=32, width=40, encoding="bgr8", is_bigendian=0, step=plain.step,
        data=plain.data if types is not message_type else np.frombuffer(plain.data, np.uint8),
    )  # fmt: skip
    np.testing.assert_array_equal(decode_image(message), rgb)
    png = compressed_message(encoded(rgb, ".png"), "png").data
    if types is message_type:
        png = np.frombuffer(png, np.uint8)
    small = types("sensor_msgs/msg/CompressedImage")(header=_header(types), format="png", data=png)
    np.testing.assert_array_equal(decode_image(small), rgb)


def _header(types):
    time = types("builtin_interfaces/msg/Time")(sec=1, nanosec=2)
    return types("std_msgs/msg/Header")(stamp=time, frame_id="CAM")


# --- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ("16UC1", "32FC1", "8UC3", "nv24", "RGB8", ""))
def test_encodings_without_colours_or_unknown_are_refused_by_name(encoding):
    """A depth image (16UC1) must not be shown as if it were grey."""
    message = as_message(random_rgb(7), "rgb8")
    message.encoding = encoding
    with pytest.raises(InvalidFrame, match="not supported; publish one of rgb8") as caught:
        decode_image(message)
    assert caught.value.code == "encoding" and f"'{encoding}'" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"width": 0}, "size"),
        ({"height": 0}, "size"),
        ({"width": 1 << 20}, "size"),
        ({"step": 119}, "step"),
        ({"step": 0}, "step"),
        ({"height": 33}, "data"),
        ({"height": 31}, "data"),
        ({"step": 121}, "data"),
        ({"data": b""}, "data"),
        ({"data": [1, 2, 3]}, "data"),
    ],
)
def test_contradicting_sizes_are_refused_and_named(change, code):
    message = as_message(random_rgb(8), "rgb8")
    vars(message).update(change)
    with pytest.raises(InvalidFrame) as caught:
        decode_image(message)
    text = str(caught.value)
    assert caught.value.code == code
    assert f"'rgb8' of {message.width} x {message.height} with step {message.step}" in text


@pytest.mark.parametrize(
    ("encoding", "height", "width"),
    [("yuyv", 4, 5), ("nv12", 5, 4), ("nv12", 4, 5), ("bayer_rggb8", 4, 5), ("bayer_rggb8", 5, 4)],
)
def test_odd_sizes_are_refused_where_pixels_share_colours(encoding, height, width):
    message = SimpleNamespace(
        encoding=encoding, height=height, width=width, step=99, data=b"", is_bigendian=0
    )
    with pytest.raises(InvalidFrame, match="must be even"):
        decode_image(message)


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "format",
    ["png", "PNG", "", "rgb8; png compressed bgr8", "bgr8; png compressed ", "image/png"],
)
def test_png_files_come_out_exactly_whatever_the_format_calls_them(format):
    rgb = random_rgb(9)
    message = compressed_message(encoded(rgb, ".png"), format)
    np.testing.assert_array_equal(decode_image(message), rgb)


@pytest.mark.parametrize(
    "format", ["jpeg", "jpg", "", "rgb8; jpeg compressed bgr8", "yuv422; jpeg compressed bgr8"]
)
def test_jpeg_files_are_decoded_in_the_right_order_of_colours(format):
    rgb = smooth_rgb()
    decoded = decode_image(compressed_message(encoded(rgb, ".jpg"), format))
    assert error_of(decoded, rgb).max() <= 8


def test_files_of_grey_sixteen_bit_and_transparent_images_become_rgb():
    rgb = random_rgb(10)
    grey = decode_image(compressed_message(encoded(rgb[..., 0], ".png"), "mono8; png compressed "))
    np.testing.assert_array_equal(grey, np.repeat(rgb[..., :1], 3, axis=2))
    deep = decode_compressed(encoded(rgb.astype(np.uint16) * 257, ".png"), "rgb16; png compressed ")
    np.testing.assert_array_equal(deep, rgb)
    clear = np.concatenate([np.zeros((32, 40, 1), np.uint8), rgb[..., ::-1]], axis=2)[..., ::-1]
    transparent = decode_compressed(encoded(clear[..., [0, 1, 2, 3]], ".png"), "png")
    assert transparent.shape == (32, 40, 3)


@pytest.mark.parametrize("bits", (8, 16))
def test_a_raw_mosaic_in_a_png_is_interpolated(bits):
    """image_transport stores Bayer images as they are and says so in the format."""
    rgb = smooth_rgb()
    raw = mosaic(rgb, "grbg").astype(f"u{bits // 8}") * (257 if bits == 16 else 1)
    decoded = decode_compressed(encoded(raw, ".png"), f"bayer_grbg{bits}; png compressed ")
    assert error_of(decoded, rgb)[2:-2, 2:-2].max() <= 4
    # Interpolated before it was stored: the colour after 'compressed' says so.
    again = decode_compressed(encoded(rgb, ".png"), f"bayer_grbg{bits}; png compressed bgr8")
    np.testing.assert_array_equal(again, rgb)
    odd = decode_compressed(encoded(rgb, ".png"), f"bayer_grbg{bits}; png compressed ")
    np.testing.assert_array_equal(odd, rgb)


@pytest.mark.parametrize("suffix", (".jpg", ".png"))
def test_a_truncated_file_is_refused_wherever_it_ends(suffix):
    """OpenCV fills the missing part of a JPEG with grey and reports success."""
    data = encoded(smooth_rgb(96, 128), suffix)
    assert decode_compressed(data, "").shape == (96, 128, 3)
    for length in [*range(0, 40), *range(40, len(data), 37), len(data) - 1]:
        with pytest.raises(InvalidFrame) as caught:
            decode_compressed(data[:length], "")
        assert caught.value.code == "data" and f"{length} bytes" in str(caught.value)


def test_a_preview_inside_a_truncated_jpeg_does_not_make_it_whole():
    preview = encoded(smooth_rgb(8, 8), ".jpg")
    data = encoded(smooth_rgb(96, 128), ".jpg")
    app1 = b"\xff\xe1" + struct.pack(">H", len(preview) + 8) + b"Exif\0\0" + preview
    with_preview = data[:2] + app1 + data[2:]
    assert decode_compressed(with_preview, "jpeg").shape == (96, 128, 3)
    for length in range(len(app1) + 2, len(with_preview), 61):
        with pytest.raises(InvalidFrame):
            decode_compressed(with_preview[:length], "jpeg")


def test_padding_behind_a_jpeg_is_no_fault():
    data = encoded(smooth_rgb(), ".jpg")
    np.testing.assert_array_equal(
        decode_compressed(data + bytes(500), "jpeg"), decode_compressed(data, "jpeg")
    )


def test_the_orientation_in_a_jpeg_is_ignored_because_calibrations_are_for_stored_pixels():
    data = encoded(smooth_rgb(48, 64), ".jpg")
    tiff = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"  # turned by 90 deg
    app1 = b"\xff\xe1" + struct.pack(">H", len(tiff) + 8) + b"Exif\0\0" + tiff
    turned = data[:2] + app1 + data[2:]
    np.testing.assert_array_equal(
        decode_compressed(turned, "jpeg"), decode_compressed(data, "jpeg")
    )


def test_a_damaged_png_is_refused():
    data = bytearray(encoded(random_rgb(11), ".png"))
    data[20] = 0xFF  # the width
    with pytest.raises(InvalidFrame, match="cannot be decoded"):
        decode_compressed(bytes(data), "png")


@pytest.mark.parametrize(
    "format",
    ["h264", "theora", "16UC1; compressedDepth png", "jpeg-xl compressed", "webp"],
)
def test_formats_that_hold_no_picture_are_refused_by_name(format):
    with pytest.raises(InvalidFrame, match=format.split(";")[0]) as caught:
        decode_compressed(encoded(random_rgb(12), ".png"), format)
    assert caught.value.code == "format"


def test_a_depth_image_in_a_png_is_refused():
    with pytest.raises(InvalidFrame, match="'16UC1', which holds no colours"):
        decode_compressed(encoded(random_rgb(12)[..., 0], ".png"), "16UC1; png compressed ")


def test_bytes_that_are_no_picture_are_refused():
    with pytest.raises(InvalidFrame, match="neither JPEG nor PNG"):
        decode_compressed(b"GIF89a and so on", "jpeg")
    with pytest.raises(InvalidFrame, match="holds no bytes"):
        decode_compressed(b"", "jpeg")


# --- frames --------------------------------------------------------------------------------------


def frame(**change: object) -> CameraFrame:
    values = {
        "name": "CAM", "stamp_ns": 1, "frame_id": "CAM", "image": None, "format": "png",
        "encoded": encoded(random_rgb(13), ".png"), "K": np.eye(3), "D": np.zeros(0),
        "distortion_model": "plumb_bob", "size_wh": (40, 32), "T_ego_camera": np.eye(4),
    }  # fmt: skip
    return CameraFrame(**(values | change))


def test_an_encoded_frame_gets_its_pixels():
    got = with_pixels(frame())
    np.testing.assert_array_equal(got.image, random_rgb(13))
    assert with_pixels(got) is got


def test_a_frame_of_another_size_than_its_calibration_is_refused():
    with pytest.raises(InvalidFrame, match="40 x 32 pixels but its calibration is for 80 x 64"):
        with_pixels(frame(size_wh=(80, 64)))
    with pytest.raises(InvalidFrame, match="neither pixels nor encoded"):
        with_pixels(frame(encoded=None))


# --- real data -----------------------------------------------------------------------------------


def test_six_real_jpegs_are_decoded(data_dir):
    paths = sorted((data_dir / "nuscenes" / "scene-0061").glob("*CAM*.jpg"))
    assert len(paths) == 6
    for path in paths:
        decoded = decode_compressed(path.read_bytes(), "jpeg")
        with Image.open(path) as picture:  # another library
            expected = np.asarray(picture.convert("RGB"))
        assert decoded.shape == (900, 1600, 3)
        assert error_of(decoded, expected).mean() < 1.0
