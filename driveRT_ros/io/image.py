"""Image and CompressedImage of any usual encoding to RGB: the border where a bad image is refused.

OpenCV does all colour and file decoding; this module only knows what ROS calls things and checks
that a message holds what it says.

Sources: sensor_msgs/image_encodings.hpp for the names, sensor_msgs/msg/Image for the layout, and
compressed_image_transport for ``CompressedImage.format``.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.frame import CameraFrame

Pixels = npt.NDArray[np.uint8]

MAX_SIDE_PX = 1 << 15
"""OpenCV's drawing and remapping keep coordinates in 16 bits; no camera is larger."""


class Encoding(NamedTuple):
    """How the pixels of one encoding lie in memory.

    Args:
        channels: Values a pixel.
        bits: 8 or 16 a value.
        to_rgb: OpenCV's conversion code, None where the values are RGB already.
        even_wh: Whether width and height must be even, because colours are shared by pixels.
        half_rows: Rows that follow the image, in half image heights (the chroma of NV12).
    """

    channels: int
    bits: int
    to_rgb: int | None
    even_wh: tuple[bool, bool] = (False, False)
    half_rows: int = 0


_BAYER = {
    "rggb": cv2.COLOR_BayerRGGB2RGB,
    "bggr": cv2.COLOR_BayerBGGR2RGB,
    "gbrg": cv2.COLOR_BayerGBRG2RGB,
    "grbg": cv2.COLOR_BayerGRBG2RGB,
}
_UYVY = Encoding(2, 8, cv2.COLOR_YUV2RGB_UYVY, (True, False))
_YUYV = Encoding(2, 8, cv2.COLOR_YUV2RGB_YUY2, (True, False))

ENCODINGS: dict[str, Encoding] = {
    **{f"rgb{bits}": Encoding(3, bits, None) for bits in (8, 16)},
    **{f"bgr{bits}": Encoding(3, bits, cv2.COLOR_BGR2RGB) for bits in (8, 16)},
    **{f"rgba{bits}": Encoding(4, bits, cv2.COLOR_RGBA2RGB) for bits in (8, 16)},
    **{f"bgra{bits}": Encoding(4, bits, cv2.COLOR_BGRA2RGB) for bits in (8, 16)},
    **{f"mono{bits}": Encoding(1, bits, cv2.COLOR_GRAY2RGB) for bits in (8, 16)},
    **{
        f"bayer_{pattern}{bits}": Encoding(1, bits, code, (True, True))
        for pattern, code in _BAYER.items()
        for bits in (8, 16)
    },
    "yuv422": _UYVY,
    "uyvy": _UYVY,
    "yuv422_yuy2": _YUYV,
    "yuyv": _YUYV,
    "nv12": Encoding(1, 8, cv2.COLOR_YUV2RGB_NV12, (True, True), 1),
    "nv21": Encoding(1, 8, cv2.COLOR_YUV2RGB_NV21, (True, True), 1),
}
"""Layout by name of the encoding. ``yuv422`` is ROS's old name of ``uyvy``."""


def decode_image(msg: Any) -> Pixels:
    """Decode a sensor_msgs/msg/Image or CompressedImage.

    Sixteen-bit values become eight bits by the factor 255 / 65535, as cv_bridge does. YUV is taken
    as BT.601 with video range, grey is repeated in all three colours, alpha is left out, Bayer
    mosaics are interpolated. The orientation that a camera may have written into a JPEG is
    ignored: calibrations belong to the pixels as they are stored.

    Args:
        msg: An rclpy or rosbags message, or anything with the same attributes; only read.

    Returns:
        (H, W, 3) uint8 RGB; of a ``rgb8`` message without padding a read-only view.

    Raises:
        InvalidFrame: If the message is empty, truncated or contradicts itself, or its encoding or
            format is not supported; with ``code`` ``encoding``, ``format``, ``size``, ``step`` or
            ``data``.
    """
    if hasattr(msg, "encoding"):
        return _decode_raw(msg)
    return decode_compressed(msg.data, msg.format)


def with_pixels(frame: CameraFrame) -> CameraFrame:
    """Return the frame with ``image`` decoded from ``encoded``, or itself where it has pixels.

    Raises:
        InvalidFrame: If the bytes are no whole image, or of another size than the frame says.
    """
    if frame.image is not None:
        return frame
    if frame.encoded is None:
        raise InvalidFrame(
            f"{frame.name} has neither pixels nor encoded bytes.",
            "encoded",
            None,
            "a jpeg or png file",
            code="data",
        )
    image = decode_compressed(frame.encoded, frame.format)
    check_size(image, frame.size_wh, frame.name)
    return dataclasses.replace(frame, image=image)


def check_size(image: Pixels, size_wh: tuple[int, int], name: str) -> None:
    """Refuse an image whose size is not the one of its calibration.

    Raises:
        InvalidFrame: With code ``image_size``.
    """
    got = (image.shape[1], image.shape[0])
    if got != tuple(size_wh):
        raise InvalidFrame(
            f"The image of {name} is {got[0]} x {got[1]} pixels but its calibration is for "
            f"{size_wh[0]} x {size_wh[1]}; publish the CameraInfo of this resolution (its "
            "binning and region of interest count).",
            "image",
            got,
            tuple(size_wh),
            code="image_size",
        )


def decode_compressed(data: Any, format: str = "") -> Pixels:
    """Decode the bytes of a CompressedImage.

    Args:
        data: A whole JPEG or PNG file, as any buffer of bytes.
        format: ``CompressedImage.format``: ``jpeg``, ``png``, or as image_transport writes it
            (``rgb8; jpeg compressed bgr8``); empty lets the bytes speak for themselves.

    Returns:
        (H, W, 3) uint8 RGB.

    Raises:
        InvalidFrame: See :func:`decode_image`.
    """
    mosaic = _mosaic_of(format)
    raw = _bytes_of(data, f"CompressedImage '{format}'")
    if not len(raw):
        raise _compressed_fault("holds no bytes", format, 0, "a jpeg or png file")
    _check_whole_file(raw, format)
    if mosaic is not None:
        image = _read_file(raw, cv2.IMREAD_UNCHANGED, format)
        if image.ndim == 2:
            return _to_8_bits(cv2.cvtColor(image, mosaic))
    image = _read_file(raw, cv2.IMREAD_COLOR, format)
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)  # type: ignore[no-any-return]


def _read_file(raw: Pixels, flags: int, format: str) -> npt.NDArray[Any]:
    try:
        image = cv2.imdecode(raw, flags | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error:  # a header that asks for more pixels than OpenCV takes
        image = None
    if image is None:
        raise _compressed_fault("cannot be decoded", format, len(raw), "an undamaged file")
    return image


def _decode_raw(msg: Any) -> Pixels:
    encoding, width, height, step = msg.encoding, int(msg.width), int(msg.height), int(msg.step)
    layout = ENCODINGS.get(encoding)
    if layout is None:
        raise _raw_fault(
            msg,
            "has an encoding that holds no colours or is not supported; publish one of "
            f"{', '.join(ENCODINGS)}",
            "encoding",
            encoding,
            "an encoding of the list",
        )
    if not (0 < width <= MAX_SIDE_PX and 0 < height <= MAX_SIDE_PX):
        raise _raw_fault(
            msg, "is empty or impossibly large", "size", (width, height), f"1 to {MAX_SIDE_PX}"
        )
    for name, value, even in zip(("width", "height"), (width, height), layout.even_wh):
        if even and value % 2:
            raise _raw_fault(
                msg, f"shares colours between pixels, so its {name} must be even",
                "size", value, "an even number",
            )  # fmt: skip
    row_bytes = width * layout.channels * layout.bits // 8
    if step < row_bytes:
        raise _raw_fault(
            msg, "has a step shorter than its rows", "step", step, f"at least {row_bytes}"
        )
    rows = height + layout.half_rows * height // 2
    raw = _bytes_of(msg.data, _title(msg))
    if len(raw) != step * rows:
        what = "is truncated" if len(raw) < step * rows else "holds more than its rows"
        raise _raw_fault(msg, what, "data", len(raw), f"{step * rows} bytes")
    return _to_rgb(raw.reshape(rows, step)[:, :row_bytes], layout, bool(msg.is_bigendian))


def _to_rgb(rows: Pixels, layout: Encoding, is_bigendian: bool) -> Pixels:
    """Return RGB of rows without their padding, (rows, bytes) uint8."""
    pixels: npt.NDArray[Any] = np.ascontiguousarray(rows)
    if layout.bits == 16:
        pixels = pixels.view(">u2" if is_bigendian else "<u2").astype(np.uint16)
    if layout.channels > 1:
        pixels = pixels.reshape(len(rows), -1, layout.channels)
    if layout.to_rgb is not None:
        # A mosaic keeps its sixteen bits while it is interpolated.
        return _to_8_bits(cv2.cvtColor(pixels, layout.to_rgb))
    return _to_8_bits(pixels)


def _to_8_bits(pixels: npt.NDArray[Any]) -> Pixels:
    if pixels.dtype == np.uint16:
        return cv2.convertScaleAbs(pixels, alpha=255.0 / 65535.0)  # type: ignore[no-any-return]
    return pixels


def _bytes_of(data: Any, title: str) -> Pixels:
    """Return a view of the bytes of an array.array, a numpy array or a bytes object."""
    try:
        view = np.frombuffer(memoryview(data).cast("B") if len(data) else b"", np.uint8)
        view.flags.writeable = False  # nobody downstream may paint into a message
        return view
    except (TypeError, ValueError):
        raise InvalidFrame(
            f"{title}: the data is no buffer of bytes.",
            "data",
            type(data).__name__,
            "uint8[]",
        ) from None


def _mosaic_of(format: str) -> int | None:
    """Check a format; return the Bayer conversion where the file may hold a raw mosaic.

    compressed_image_transport stores Bayer images as they are: ``bayer_rggb8; png compressed``.
    A colour after ``compressed`` says that they were interpolated before.
    """
    original, separator, codec = format.rpartition(";")
    original, codec = original.strip(), codec.strip().lower()
    words = codec.replace("/", " ").split()
    known = bool({"jpeg", "jpg", "png"} & set(words)) or not codec
    if not known or "compresseddepth" in words:
        raise InvalidFrame(
            f"CompressedImage format '{format}' is not supported; publish jpeg or png.",
            "format",
            format,
            "jpeg or png",
        )
    if separator and original not in ENCODINGS:
        raise InvalidFrame(
            f"CompressedImage format '{format}' says that the image was '{original}', which holds "
            f"no colours or is not supported; known are {', '.join(ENCODINGS)}.",
            "format",
            format,
            "a colour or grey encoding",
        )
    if not original.startswith("bayer_") or not codec.endswith("compressed"):
        return None
    return ENCODINGS[original].to_rgb


def _check_whole_file(raw: Pixels, format: str) -> None:
    """Refuse bytes that are neither JPEG nor PNG, or whose end is missing.

    OpenCV fills the lost part of a truncated JPEG with grey and returns it as if it were whole.
    """
    file = raw.tobytes()
    if file.startswith(b"\xff\xd8\xff"):
        # A preview inside has an end of its own, but it lies before the scan of the image. Within
        # a scan neither marker can occur: 0xff is followed by zero or a restart there.
        whole = file.rfind(b"\xff\xd9") > file.rfind(b"\xff\xda") > 0
        kind = "JPEG"
    elif file.startswith(b"\x89PNG\r\n\x1a\n"):
        whole, kind = b"IEND\xaeB`\x82" in file, "PNG"
    else:
        raise _compressed_fault(
            f"starts with {file[:4].hex(' ')}: neither JPEG nor PNG", format, len(raw), "a file"
        )
    if not whole:
        raise _compressed_fault(f"is a truncated {kind}", format, len(raw), "a whole file")


def _compressed_fault(what: str, format: str, got: int, expected: str) -> InvalidFrame:
    sentence = f"CompressedImage '{format}' of {got} bytes {what}."
    return InvalidFrame(sentence, "data", f"{got} bytes", expected)


def _title(msg: Any) -> str:
    return f"Image '{msg.encoding}' of {msg.width} x {msg.height} with step {msg.step}"


def _raw_fault(msg: Any, what: str, field: str, got: object, expected: object) -> InvalidFrame:
    return InvalidFrame(f"{_title(msg)} {what}.", field, got, expected)
