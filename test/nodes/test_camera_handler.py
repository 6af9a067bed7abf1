"""From a set of images to messages: only what is wanted, and a bad image costs itself alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest
from rclpy.serialization import deserialize_message
from vision_msgs.msg import Detection3DArray

from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.camera_pipeline import CameraPipeline
from driveRT_ros.core.camera_stream import OK, CameraCounts, CameraStatus
from driveRT_ros.core.config import DiagnosticsConfig
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.io.camera import decode_camera_info
from driveRT_ros.io.encode import encode_image
from driveRT_ros.io.image import decode_image
from driveRT_ros.nodes.camera_book import CameraBook
from driveRT_ros.nodes.camera_diagnostics import camera_statuses
from driveRT_ros.nodes.camera_handler import CameraHandler, outputs_of
from driveRT_ros.nodes.health import Health
from driveRT_ros.nodes.image_set import ImageSet, PosedImage
from driveRT_ros.nodes.raw import message_class
from driveRT_ros.nodes.result import FINGERPRINT, STAGES
from test.support.camera_messages import SMALL, SMALL_HEADS, compressed, info, jpegs, stamped
from test.support.camera_rig import NAMES
from test.support.lidar_messages import SECOND as S

FRAMES = jpegs(size_wh=(320, 180))


def make(params: dict[str, object] = SMALL) -> tuple[CameraHandler, CameraBook]:
    config = CameraConfig.from_dict(params)
    book = CameraBook(config.cameras)
    return CameraHandler(config, CameraPipeline(config, device="cpu"), book), book


def images(
    stamp_ns: int = S, changed: dict[str, Callable[[Any], None]] | None = None, **how: float
) -> ImageSet:
    out = {}
    for name, frame in FRAMES.items():
        msg = compressed(frame, stamp_ns)
        if changed and name in changed:
            changed[name](msg)
        intrinsics = decode_camera_info(info(frame, stamp_ns, **how), rectified=True)
        out[name] = PosedImage(msg, stamp_ns, intrinsics, frame.T_ego_camera)
    return ImageSet(stamp_ns, "base_link", out)


def cut(msg: Any) -> None:
    msg.data = msg.data[: len(msg.data) // 3]


def test_only_wanted_outputs_are_computed_and_each_has_the_header_of_the_set() -> None:
    handler, _ = make(SMALL_HEADS)
    assert handler.handle(images(), ()).messages == {}
    names = list(outputs_of(handler.config))
    assert names[:3] == ["detections", "objects", "markers"]
    result = handler.handle(images(7 * S), names)
    assert list(result.messages) == names  # results before pictures
    detections = deserialize_message(result.messages["detections"], Detection3DArray)
    for name, msg in {**result.messages, "detections": detections}.items():
        header = msg.markers[0].header if name == "markers" else msg.header
        assert (header.stamp.sec, header.frame_id) == (7, "base_link")
    assert {"heat_car", "cameras", "vehicle"} <= set(result.messages["grid_map"].layers)


def test_boxes_are_no_output_of_a_model_without_heads() -> None:
    assert list(outputs_of(CameraConfig.from_dict(SMALL))) == [
        "occupancy_grid",
        "grid_map",
        "bev_image",
    ]


def test_times_of_all_stages_add_up() -> None:
    handler, _ = make()
    stage_ms = handler.handle(images(), {"bev_image"}).stage_ms
    assert tuple(stage_ms) == STAGES
    assert sum(v for k, v in stage_ms.items() if k != "total") == pytest.approx(stage_ms["total"])


def test_raw_images_give_what_lossless_compressed_ones_give() -> None:
    handler, _ = make()
    raw, packed = {}, {}
    for name, posed in images().images.items():
        pixels = np.ascontiguousarray(decode_image(posed.msg)[..., ::-1])
        frame = dataclasses.replace(FRAMES[name], image=pixels[..., ::-1])
        message = encode_image(stamped(frame, S), message_class)
        raw[name] = dataclasses.replace(posed, msg=message)
        file = cv2.imencode(".png", pixels)[1].tobytes()
        png = dataclasses.replace(frame, encoded=file, format="png")
        packed[name] = dataclasses.replace(posed, msg=compressed(png, S))
    layers = [
        handler.handle(ImageSet(S, "base_link", kind), ()).found.bev.layers["vehicle"]
        for kind in (raw, packed)
    ]
    np.testing.assert_array_equal(*layers)


def test_truncated_image_costs_itself_alone_and_is_named() -> None:
    handler, book = make()
    result = handler.handle(images(changed={"CAM_FRONT": cut}), {"grid_map"})
    assert result.left_out["images.data"] == 1 and result.reached["cameras"] == 5
    [sentence] = result.faults.values()
    assert sentence.startswith("CAM_FRONT: ") and "truncated" in sentence
    assert book.page("CAM_FRONT").rejected == {"data": 1} and book.page("CAM_BACK").reason == ""
    assert handler.handle(images(), ()).faults == {}
    assert book.page("CAM_FRONT").reason == ""


def test_set_without_a_usable_image_is_dropped_with_every_reason() -> None:
    handler, book = make()
    with pytest.raises(InvalidFrame) as dropped:
        handler.handle(images(changed=dict.fromkeys(NAMES, cut)), ())
    assert dropped.value.code == "no_usable_image"
    assert all(name in str(dropped.value) for name in NAMES)
    assert all(book.page(name).rejected == {"data": 1} for name in NAMES)


def test_map_is_built_again_only_when_a_calibration_changes() -> None:
    handler, book = make()
    builds = [handler.handle(images(), ()).reached["map_builds"] for _ in range(3)]
    assert builds == [builds[0]] * 3
    changed = handler.handle(images(focal=1.5), ())
    assert changed.reached["map_builds"] == builds[0] + 1
    assert "calibration_changed" in changed.notes
    assert {book.page(name).recalibrations for name in NAMES} == {1}


def test_fingerprint_is_computed_only_where_it_is_wanted() -> None:
    handler, _ = make()
    assert handler.handle(images(), ()).found.report.fingerprint == {}
    first, second = (handler.handle(images(), {FINGERPRINT}).found.report for _ in range(2))
    assert first.fingerprint == second.fingerprint != {}


def test_picture_has_the_frusta_of_the_cameras_that_were_there() -> None:
    handler, _ = make({**SMALL, "bev.image_pixels_per_cell": 8})

    def picture(item: ImageSet) -> np.ndarray:
        image = handler.handle(item, {"bev_image"}).messages["bev_image"]
        return np.asarray(image.data, int).reshape(image.height, image.width, 3)

    whole = picture(images())
    part = images()
    others = {n: i for n, i in part.images.items() if n != "CAM_BACK"}
    without = picture(dataclasses.replace(part, images=others))
    differs = np.abs(whole - without).max(axis=2) > 8
    rows, _ = np.nonzero(differs)
    height = len(whole)
    assert differs.sum() > 1000
    assert np.quantile(rows, 0.02) > 0.45 * height  # behind the vehicle is below its middle


def test_camera_whose_image_cannot_be_decoded_is_rejected_in_the_diagnostics() -> None:
    handler, book = make()
    health = Health(DiagnosticsConfig(), None)
    health.processed(handler.handle(images(changed={"CAM_FRONT": cut}), ()), 1.0)
    streams = [CameraStatus(n, OK, "", CameraCounts(received=1), S, 0) for n in NAMES]
    weights = handler._pipeline.weights
    told = camera_statuses("n", handler.config, health, weights, 1.0, streams, book)
    by_name = {s.name: s for s in told}
    front, back = by_name["n: camera CAM_FRONT"], by_name["n: camera CAM_BACK"]
    values = {v.key: v.value for v in front.values}
    assert (front.level, back.level) == (b"\x01", b"\x00")
    assert values["state"] == "rejected" and values["rejected.data"] == "1"
    assert "truncated" in front.message
    assert {v.key: v.value for v in by_name["n: processing_time_status"].values}[
        "num_cameras"
    ] == "5"


def test_a_plan_that_is_not_used_is_a_warning_in_the_diagnostics() -> None:
    handler, book = make(SMALL | {"plan_path": "/nowhere/plan.json", "device": "cpu"})
    note = handler._pipeline.plan_note
    health = Health(DiagnosticsConfig(), None)
    told = camera_statuses(
        "n", handler.config, health, handler._pipeline.weights, 1.0, (), book, note
    )
    (model,) = [status for status in told if status.name == "n: model_status"]
    assert model.level == b"\x01" and "/nowhere/plan.json" in model.message
