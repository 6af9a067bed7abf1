"""CameraInfo to intrinsics, and distorted images to what a pinhole camera would have seen."""

from __future__ import annotations

from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from driveRT_ros.core.camera_images import check_frame
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.frame import CameraFrame
from driveRT_ros.io import encode
from driveRT_ros.io.camera import (
    Undistorter,
    decode_camera_info,
    is_rectified_topic,
    pinhole_frame,
    undistortion_maps,
)
from driveRT_ros.io.typestore import message_type

K = np.array([[420.0, 0, 322.5], [0, 430, 238.25], [0, 0, 1]])
PLUMB = [-0.28, 0.09, 0.0006, -0.0004, -0.011]
RATIONAL = [0.4, -0.1, 0.0003, -0.0005, 0.02, 0.75, -0.05, 0.004]
FISHEYE = [-0.012, 0.007, -0.003, 0.0005]


def info(**change: object) -> SimpleNamespace:
    roi = dict.fromkeys(("x_offset", "y_offset", "width", "height"), 0) | {"do_rectify": False}
    values = {
        "header": SimpleNamespace(frame_id="CAM"),
        "width": 640, "height": 480, "distortion_model": "plumb_bob", "d": [],
        "k": K.reshape(-1), "r": np.eye(3).reshape(-1),
        "p": np.hstack([K, np.zeros((3, 1))]).reshape(-1), "binning_x": 0, "binning_y": 0,
        "roi": SimpleNamespace(**(roi | change.pop("roi", {}))),
    }  # fmt: skip
    return SimpleNamespace(**(values | change))


def project(points: np.ndarray, model: str, D: list[float]) -> np.ndarray:
    """Return pixels of points (N, 3), written from the published formulae.

    Sources: Brown's model with the rational extension, as CameraInfo.msg cites it; Kannala and
    Brandt, "A Generic Camera Model", 2006, for equidistant.
    """
    x, y = points[:, 0] / points[:, 2], points[:, 1] / points[:, 2]
    r2 = x * x + y * y
    if model == "equidistant":
        theta = np.arctan(np.sqrt(r2))
        bent = theta * (1 + sum(k * theta ** (2 * n + 2) for n, k in enumerate(D)))
        factor = bent / np.maximum(np.sqrt(r2), 1e-12)
        x, y = x * factor, y * factor
    else:
        k1, k2, p1, p2, k3, *rest = D
        k4, k5, k6 = rest or (0.0, 0.0, 0.0)
        radial = (1 + r2 * (k1 + r2 * (k2 + r2 * k3))) / (1 + r2 * (k4 + r2 * (k5 + r2 * k6)))
        x, y = (
            x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x * x),
            y * radial + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y,
        )
    return np.stack([K[0, 0] * x + K[0, 2], K[1, 1] * y + K[1, 2]], axis=1)


def spots(pixels: np.ndarray, sigma: float = 2.5) -> np.ndarray:
    """Return a black image with a soft spot at each pixel position."""
    v, u = np.mgrid[0:480, 0:640]
    image = np.zeros((480, 640))
    for x, y in pixels:
        image += 250 * np.exp(-((u - x) ** 2 + (v - y) ** 2) / (2 * sigma**2))
    return np.repeat(image.clip(0, 255).round().astype(np.uint8)[..., None], 3, axis=2)


def spot_near(image: np.ndarray, xy: np.ndarray) -> np.ndarray:
    """Return the centre of brightness around a position."""
    x0, y0 = (int(round(c)) - 9 for c in xy)
    part = image[y0 : y0 + 19, x0 : x0 + 19, 0].astype(np.float64)
    v, u = np.mgrid[y0 : y0 + 19, x0 : x0 + 19]
    return np.array([(u * part).sum(), (v * part).sum()]) / part.sum()


# Rays well apart, some far from the optical axis.
RAYS = np.array([(x, y, 1.0) for x in (-0.55, -0.2, 0.15, 0.5) for y in (-0.35, 0.0, 0.38)])


def test_a_plain_calibration_is_a_pinhole():
    got = decode_camera_info(info())
    np.testing.assert_array_equal(got.K, K)
    assert (got.frame_id, got.size_wh, got.D.size, got.is_pinhole) == ("CAM", (640, 480), 0, True)
    image = np.zeros((480, 640, 3), np.uint8)
    undistorter = Undistorter()
    assert undistorter.apply(image, got) is image and undistorter.builds == 0


@pytest.mark.parametrize(
    ("model", "D"),
    [("plumb_bob", PLUMB), ("plumb_bob", [*PLUMB[:4], 0.0]), ("rational_polynomial", RATIONAL),
     ("equidistant", FISHEYE), ("equidistant", [0.0] * 4)],
)  # fmt: skip
def test_undistorted_points_lie_where_a_pinhole_camera_sees_them(model, D):
    """A fisheye lens must not pass as a pinhole, not even one whose coefficients are zero."""
    intrinsics = decode_camera_info(info(distortion_model=model, d=D))
    assert not intrinsics.is_pinhole
    bent, straight = project(RAYS, model, D), (RAYS @ K.T)[:, :2]
    assert np.abs(bent - straight).max() > 5, "there is something to undo"
    undistorted = Undistorter().apply(spots(bent), intrinsics)
    for xy in straight:
        np.testing.assert_allclose(spot_near(undistorted, xy), xy, atol=0.25)


def test_the_rectifying_rotation_and_projection_of_a_stereo_camera_are_applied():
    R = cv2.Rodrigues(np.array([0.02, -0.05, 0.03]))[0]
    K_rect = np.array([[400.0, 0, 300], [0, 400, 250], [0, 0, 1]])
    P = np.hstack([K_rect, [[-48.0], [0], [0]]])  # the right eye
    intrinsics = decode_camera_info(
        info(d=PLUMB, r=R.reshape(-1), p=P.reshape(-1), distortion_model="plumb_bob")
    )
    np.testing.assert_array_equal(intrinsics.K_rect, K_rect)
    rays = RAYS[(np.abs(RAYS[:, 0]) < 0.51)]
    turned = rays @ R.T
    straight = (turned @ K_rect.T)[:, :2] / turned[:, 2:]
    undistorted = Undistorter().apply(spots(project(rays, "plumb_bob", PLUMB)), intrinsics)
    for xy in straight:
        np.testing.assert_allclose(spot_near(undistorted, xy), xy, atol=0.3)


def test_the_images_of_a_rectified_topic_are_left_alone_and_take_the_projection():
    K_rect = np.array([[400.0, 0, 300], [0, 400, 250], [0, 0, 1]])
    P = np.hstack([K_rect, np.zeros((3, 1))])
    got = decode_camera_info(info(d=PLUMB, p=P.reshape(-1)), rectified=True)
    np.testing.assert_array_equal(got.K, K_rect)
    assert got.is_pinhole and not got.D.size
    without = decode_camera_info(info(d=PLUMB, p=np.zeros(12)), rectified=True)
    np.testing.assert_array_equal(without.K, K)


@pytest.mark.parametrize(
    ("topic", "rectified"),
    [("/CAM_FRONT/image_rect_compressed", True), ("/cam/image_rect_color/compressed", True),
     ("/cam/image_rect", True), ("/cam/image_raw", False), ("/cam/image_raw/compressed", False),
     ("/camera_rect/image", False)],
)  # fmt: skip
def test_rectified_topics_are_told_by_their_name(topic, rectified):
    assert is_rectified_topic(topic) is rectified


@pytest.mark.parametrize("zero", ("r", "p"))
def test_a_driver_that_leaves_rectification_empty_still_gets_undistorted_images(zero):
    got = decode_camera_info(info(d=PLUMB, **{zero: [0.0] * (9 if zero == "r" else 12)}))
    np.testing.assert_array_equal(got.K_rect, K)
    np.testing.assert_array_equal(got.R, np.eye(3))


def test_binning_and_region_of_interest_move_and_divide_the_calibration():
    got = decode_camera_info(
        info(binning_x=2, binning_y=4,
             roi={"x_offset": 40, "y_offset": 80, "width": 400, "height": 320})
    )  # fmt: skip
    assert got.size_wh == (200, 80)
    expected = np.array([[210, 0, (322.5 - 40) / 2], [0, 107.5, (238.25 - 80) / 4], [0, 0, 1]])
    np.testing.assert_allclose(got.K, expected, rtol=1e-14)
    np.testing.assert_allclose(got.K_rect, expected, rtol=1e-14)
    assert got.is_pinhole


def test_a_cropped_and_binned_image_is_undistorted_like_the_whole_one():
    whole = decode_camera_info(info(d=PLUMB))
    part = decode_camera_info(
        info(d=PLUMB, binning_x=2, binning_y=2,
             roi={"x_offset": 100, "y_offset": 60, "width": 440, "height": 360})
    )  # fmt: skip
    image = spots(project(RAYS, "plumb_bob", PLUMB), sigma=6.0)  # smooth: bins interpolate it
    full = Undistorter().apply(image, whole)
    small = Undistorter().apply(np.ascontiguousarray(image[60:420:2, 100:540:2]), part)
    inner = full[60:420:2, 100:540:2].astype(int)[20:-20, 20:-20]
    assert np.abs(inner - small[20:-20, 20:-20]).max() <= 6


def test_maps_are_built_once_per_calibration():
    undistorter, image = Undistorter(), np.zeros((480, 640, 3), np.uint8)
    first = decode_camera_info(info(d=PLUMB))
    for _ in range(3):
        undistorter.apply(image, first)
        undistorter.apply(image, decode_camera_info(info(d=PLUMB)))
    assert undistorter.builds == 1
    undistorter.apply(image, decode_camera_info(info(d=[*PLUMB[:4], -0.012])))
    assert undistorter.builds == 2


def test_maps_are_those_of_opencv():
    got = decode_camera_info(info(d=RATIONAL, distortion_model="rational_polynomial"))
    expected = cv2.initUndistortRectifyMap(
        K, np.array(RATIONAL), np.eye(3), K, (640, 480), cv2.CV_16SC2
    )
    for map_got, map_expected in zip(undistortion_maps(got), expected):
        np.testing.assert_array_equal(map_got, map_expected)


def test_the_hash_tells_calibrations_apart_and_nothing_else():
    base = decode_camera_info(info(d=PLUMB)).hash
    same = info(d=PLUMB)
    same.header.frame_id = "other"
    assert decode_camera_info(same).hash == base
    moved = K.copy()
    moved[0, 2] += 1e-9
    others = [
        info(d=[*PLUMB[:4], -0.0111]),
        info(d=PLUMB, k=moved.reshape(-1)),
        info(d=PLUMB, width=642),
        info(d=PLUMB, binning_x=2),
        info(d=PLUMB, p=np.zeros(12), r=cv2.Rodrigues(np.array([0.1, 0, 0]))[0].reshape(-1),
             width=644),
        info(d=FISHEYE, distortion_model="equidistant"),
    ]  # fmt: skip
    hashes = {base, *(decode_camera_info(other).hash for other in others)}
    assert len(hashes) == 7


def test_a_frame_for_the_pipeline_has_no_distortion_left():
    intrinsics = decode_camera_info(info(d=PLUMB))
    image = np.full((480, 640, 3), 90, np.uint8)
    frame = pinhole_frame("CAM_FRONT", 17, image, intrinsics, np.eye(4), Undistorter())
    check_frame(frame)
    assert (frame.stamp_ns, frame.frame_id, frame.size_wh) == (17, "CAM", (640, 480))
    with pytest.raises(InvalidFrame, match="publish the CameraInfo of this resolution") as caught:
        pinhole_frame("CAM_FRONT", 17, image[:, :600], intrinsics, np.eye(4), Undistorter())
    assert caught.value.code == "image_size"


def test_what_we_encode_we_decode():
    camera = CameraFrame(
        "CAM", 1, "CAM_optical", None, b"", "jpeg", K, np.array(PLUMB), "plumb_bob", (640, 480),
        np.eye(4),
    )  # fmt: skip
    got = decode_camera_info(encode.encode_camera_info(camera, message_type))
    np.testing.assert_array_equal(got.K, K)
    np.testing.assert_array_equal(got.D, PLUMB)
    assert (got.size_wh, got.frame_id) == ((640, 480), "CAM_optical")


# --- refused -------------------------------------------------------------------------------------

SKEWED = K.copy()
SKEWED[0, 1] = 2.0


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"k": [0.0] * 9}, "intrinsics", "not calibrated"),
        ({"k": [0.0] * 9, "p": [0.0] * 12, "width": 0, "height": 0}, "image_size", "calibrated"),
        ({"k": SKEWED.reshape(-1)}, "intrinsics", "no pinhole"),
        ({"k": (-K).reshape(-1)}, "intrinsics", "no pinhole"),
        ({"k": np.full(9, np.nan)}, "intrinsics", "no pinhole"),
        ({"k": [1.0] * 8}, "intrinsics", "wrong size"),
        ({"p": np.full(12, np.inf)}, "intrinsics", "no pinhole"),
        ({"width": 1 << 20}, "image_size", "no image size"),
        ({"binning_x": 641}, "image_size", "more binning"),
        ({"distortion_model": "foo"}, "distortion_model", "'foo'"),
        ({"distortion_model": "foo", "d": PLUMB}, "distortion_model", "'foo'"),
        ({"distortion_model": "", "d": PLUMB}, "distortion_model", "''"),
        ({"d": PLUMB[:3]}, "distortion", "unusable coefficients"),
        ({"d": [np.nan] * 5}, "distortion", "unusable coefficients"),
        ({"distortion_model": "equidistant", "d": PLUMB}, "distortion", "unusable"),
        ({"distortion_model": "equidistant", "d": [0.0] * 5}, "distortion", "4 finite numbers"),
        ({"distortion_model": "rational_polynomial", "d": PLUMB}, "distortion", "unusable"),
        ({"r": np.diag([1.0, 1, -1]).reshape(-1)}, "rectification", "no rotation"),
        ({"r": np.full(9, 0.5)}, "rectification", "no rotation"),
        ({"roi": {"x_offset": 600, "width": 100, "height": 480}}, "roi", "outside"),
        ({"roi": {"y_offset": 480}}, "roi", "outside"),
    ],
)
def test_calibrations_that_cannot_be_used_are_refused_with_a_sentence(change, code, words):
    """Also the CameraInfo of all zeros that drivers publish before they are calibrated."""
    with pytest.raises(InvalidFrame) as caught:
        decode_camera_info(info(**change))
    assert caught.value.code == code
    assert words in str(caught.value) and "'CAM'" in str(caught.value)


@pytest.mark.parametrize("model", ("plumb_bob", "rational_polynomial", "equidistant", ""))
def test_no_coefficients_mean_no_distortion(model):
    assert decode_camera_info(info(distortion_model=model, d=[])).is_pinhole
    if model != "equidistant":
        assert decode_camera_info(info(distortion_model=model, d=[0.0] * 5)).is_pinhole
