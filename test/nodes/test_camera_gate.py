"""Sets of images wait for calibrations and transforms without blocking anybody."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.nodes.camera_gate import PARKED_LIMIT, CameraGate
from driveRT_ros.nodes.image_set import CameraActions, ImageSet
from driveRT_ros.nodes.timejump import Jump
from test.support.camera_messages import compressed, info, mounts
from test.support.camera_rig import NAMES, frame
from test.support.lidar_messages import SECOND as S
from test.support.lidar_messages import make_transform

FRAMES = {name: frame(name, np.zeros((9, 16, 3), np.uint8), size_wh=(16, 9)) for name in NAMES}


def image(name: str, stamp_ns: int) -> Any:
    return compressed(dataclasses.replace(FRAMES[name], encoded=b"x", format="jpeg"), stamp_ns)


class Gate:
    """A gate that records what comes out of it."""

    def __init__(self, *, mounted: bool = True, calibrated: bool = True, **params: Any) -> None:
        self.sets: list[ImageSet] = []
        self.dropped: list[tuple[int, str]] = []
        self.rejected: list[tuple[str, str]] = []
        self.jumps: list[Jump] = []
        actions = CameraActions(
            forward=lambda item, _: self.sets.append(item),
            drop=lambda header, code, _: self.dropped.append((header.stamp.sec, code)),
            reject=lambda camera, code, _: self.rejected.append((camera, code)),
            refuse=lambda sentence: None,
            jumped=self.jumps.append,
        )
        config = CameraConfig.from_dict({"input.tf_timeout_s": 0.5, **params})
        self.gate = CameraGate(config, actions, [False] * len(NAMES))
        if mounted:
            self.gate.transforms(mounts(FRAMES), 0.0, static=True)
        for name in NAMES if calibrated else ():
            self.info(name)

    def info(self, name: str, stamp_ns: int = 0, **how: float) -> None:
        self.gate.camera_info(name, info(FRAMES[name], stamp_ns, **how), 0.0)

    def send(self, stamp_ns: int, now_s: float = 0.0, names: tuple[str, ...] = NAMES) -> None:
        for name in names:
            self.gate.image(name, image(name, stamp_ns), now_s, round(now_s * S))

    @property
    def stamps_s(self) -> list[int]:
        return [item.stamp_ns // S for item in self.sets]


def test_complete_set_goes_on_at_once_with_the_calibration_of_every_image() -> None:
    gate = Gate()
    gate.send(5 * S)
    [item] = gate.sets
    assert (item.stamp_ns, item.frame_id, tuple(item.images)) == (5 * S, "base_link", NAMES)
    assert item.header.frame_id == "base_link" and item.header.stamp.sec == 5
    for name, posed in item.images.items():
        np.testing.assert_allclose(posed.T_ego_camera, FRAMES[name].T_ego_camera, atol=1e-6)
        np.testing.assert_allclose(posed.intrinsics.K, FRAMES[name].K)


def test_set_waits_for_a_calibration_that_arrives_after_its_images() -> None:
    gate = Gate(calibrated=False)
    gate.send(5 * S)
    for name in NAMES:
        assert not gate.sets
        gate.info(name, 5 * S)
    assert len(gate.sets[0].images) == len(NAMES)


def test_set_goes_without_the_camera_that_never_gets_its_transform_and_waits_for_it_once() -> None:
    gate = Gate(mounted=False)
    placed = {name: f for name, f in FRAMES.items() if name != "CAM_BACK"}
    gate.gate.transforms(mounts(placed), 0.0, static=True)
    gate.send(5 * S, now_s=1.0)
    for now_s in (1.2, 1.4):
        gate.gate.tick(now_s)
        assert not gate.sets
    gate.gate.tick(1.6)  # notice
    gate.gate.tick(1.62)
    assert set(gate.sets[0].images) == set(placed)
    assert "CAM_BACK" in gate.sets[0].refused and gate.rejected == [("CAM_BACK", "tf_missing")]
    gate.send(6 * S, now_s=2.0)
    assert gate.stamps_s == [5, 6]  # not waited for again
    gate.gate.transforms(mounts(FRAMES), 2.0, static=True)
    gate.send(7 * S, now_s=3.0)
    assert len(gate.sets[-1].images) == len(NAMES)


def test_transform_at_the_stamp_is_waited_for_and_the_latest_never_stands_in() -> None:
    gate = Gate(mounted=False)
    for name in NAMES:
        child = FRAMES[name].frame_id
        gate.gate.transforms(
            make_transform(4 * S, 1.0, parent="base_link", child=child), 0.0, static=False
        )
    gate.send(5 * S)
    assert not gate.sets
    for name in NAMES:
        child = FRAMES[name].frame_id
        gate.gate.transforms(
            make_transform(6 * S, 3.0, parent="base_link", child=child), 0.0, static=False
        )
    assert {round(i.T_ego_camera[0, 3], 6) for i in gate.sets[0].images.values()} == {2.0}


def test_nobody_calibrated_drops_the_set_with_a_reason() -> None:
    gate = Gate(calibrated=False)
    gate.send(5 * S)
    gate.gate.give_up()
    assert gate.dropped == [(5, "no_camera_info")] and not gate.sets


def test_refused_calibration_is_not_waited_for() -> None:
    gate = Gate()
    gate.info("CAM_BACK", 3 * S, focal=0.0)
    gate.send(5 * S)
    assert "CAM_BACK" not in gate.sets[0].images
    assert "not calibrated" in gate.sets[0].refused["CAM_BACK"]
    assert gate.rejected == [("CAM_BACK", "intrinsics")]
    gate.info("CAM_BACK", 6 * S)
    gate.send(7 * S)
    assert "CAM_BACK" in gate.sets[1].images


def test_image_takes_the_calibration_of_its_stamp_not_the_newest() -> None:
    gate = Gate()
    gate.info("CAM_FRONT", 6 * S, focal=2.0)
    for stamp_s in (5, 7):
        gate.send(stamp_s * S)
    focal = [item.images["CAM_FRONT"].intrinsics.K[0, 0] for item in gate.sets]
    assert focal[1] == pytest.approx(2 * focal[0])


def test_late_cameras_are_let_go_by_the_clock_that_pairs_images() -> None:
    gate = Gate(**{"sync.timeout_s": 0.15})
    gate.send(5 * S, names=NAMES[:4])
    gate.gate.poll(0.0, S // 10)
    assert not gate.sets
    gate.gate.poll(0.0, S // 5)
    assert tuple(gate.sets[0].images) == NAMES[:4]


def test_a_clock_that_stands_still_ends_the_waiting_for_cameras() -> None:
    gate = Gate(**{"sync.timeout_s": 0.15})
    gate.send(5 * S, names=NAMES[:4])
    gate.gate.poll(9.0, 0)
    assert not gate.sets
    gate.gate.stands_still(9.0)
    assert tuple(gate.sets[0].images) == NAMES[:4]


def test_live_too_many_waiting_sets_end_the_waiting_and_in_a_replay_all_wait() -> None:
    for back_pressure in (False, True):
        gate = Gate(calibrated=False, **{"input.back_pressure": back_pressure})
        for stamp_s in range(5, 5 + PARKED_LIMIT + 3):
            gate.send(stamp_s * S)
        waiting, lost = len(gate.gate), len(gate.dropped)
        assert (waiting, lost) == (
            (PARKED_LIMIT + 3, 0) if back_pressure else (0, PARKED_LIMIT + 3)
        )


def test_jump_back_in_time_drops_what_waits_and_the_next_pass_works() -> None:
    gate = Gate(calibrated=False)
    gate.send(50 * S)
    gate.send(51 * S, names=NAMES[:5])  # not even complete
    for name in NAMES:
        gate.info(name, 5 * S)
    gate.gate.clock_jumped(51 * S, 5 * S)
    assert len(gate.jumps) == 1 and gate.jumps[0].source == "/clock"
    gate.send(5 * S)
    gate.send(6 * S)
    assert gate.stamps_s[-2:] == [5, 6]
    assert len(gate.jumps) == 1  # one time going back, seen by seven sources, is one jump


def test_jump_seen_in_images_alone_is_one_jump() -> None:
    gate = Gate()
    for stamp_s in (50, 51, 5, 6):
        gate.send(stamp_s * S)
    assert gate.stamps_s == [50, 51, 5, 6] and len(gate.jumps) == 1


def test_end_of_data_lets_go_what_is_left() -> None:
    gate = Gate()
    gate.send(5 * S, names=NAMES[:4])
    gate.gate.flush()
    assert tuple(gate.sets[0].images) == NAMES[:4]
