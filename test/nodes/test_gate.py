"""Clouds wait for their transform without blocking anybody."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.nodes.gate import PARKED_LIMIT, CloudGate, GateActions
from driveRT_ros.nodes.timejump import Jump
from test.support.lidar_messages import SECOND as S
from test.support.lidar_messages import make_cloud, make_transform


class Gate:
    """A gate that records what comes out of it."""

    def __init__(self, **params: Any) -> None:
        self.forwarded: list[tuple[int, np.ndarray | None]] = []
        self.dropped: list[tuple[str, str]] = []
        self.dropped_headers: list[Any] = []
        self.mounts: list[np.ndarray | None] = []
        self.refused: list[str] = []
        self.jumps: list[Jump] = []
        actions = GateActions(
            self.forward,
            self.drop,
            self.refused.append,
            self.jumps.append,
        )
        self.gate = CloudGate(LidarConfig.from_dict(params), actions)
        self.static("base_link", "lidar")

    def forward(self, msg: Any, T: Any, at_s: float, T_ego_lidar: Any) -> None:
        self.forwarded.append((msg.header.stamp.sec, T))
        self.mounts.append(T_ego_lidar)

    def drop(self, header: Any, code: str, sentence: str) -> None:
        self.dropped.append((code, sentence))
        self.dropped_headers.append(header)

    def static(self, parent: str, child: str) -> None:
        self.gate.transforms(make_transform(0, 1.0, parent=parent, child=child), 0.0, static=True)

    def ego(self, stamp_ns: int, x: float = 0.0, now_s: float = 0.0) -> None:
        self.gate.transforms(make_transform(stamp_ns, x), now_s, static=False)

    def cloud(self, stamp_ns: int, now_s: float = 0.0) -> None:
        self.gate.cloud(make_cloud(stamp_ns, count=1), now_s)

    @property
    def stamps(self) -> list[int]:
        return [stamp for stamp, _ in self.forwarded]


def test_cloud_with_its_transform_goes_on_with_the_pose_at_its_stamp() -> None:
    gate = Gate()
    gate.ego(10 * S, 0.0)
    gate.ego(12 * S, 4.0)
    gate.cloud(11 * S)
    [(_, T_world_lidar)] = gate.forwarded
    assert T_world_lidar[:3, 3] == pytest.approx([3.0, 0.0, 0.0])  # 2 m driven, mounted 1 m ahead


def test_cloud_one_millisecond_ahead_of_the_transforms_waits_for_the_next_one() -> None:
    gate = Gate()
    gate.ego(10 * S)
    gate.cloud(10 * S + 1_000_000, now_s=5.0)
    assert (gate.stamps, len(gate.gate)) == ([], 1)
    gate.ego(10 * S + 50_000_000, now_s=5.05)
    assert (gate.stamps, len(gate.gate), gate.dropped) == ([10], 0, [])


def test_cloud_is_dropped_after_the_time_limit_with_both_times_in_the_reason() -> None:
    gate = Gate(input={"tf_timeout_s": 0.5})
    gate.ego(10 * S)
    gate.cloud(12 * S, now_s=1.0)
    for now_s in (1.48, 1.49, 1.5):
        gate.gate.tick(now_s)
    assert gate.dropped == []
    gate.gate.tick(1.52)
    [(code, sentence)] = gate.dropped
    assert code == "tf_future"
    assert [header.stamp.sec for header in gate.dropped_headers] == [12]
    assert "12.000000 s" in sentence and "10.000000 s" in sentence and "0.520 s" in sentence


def test_transform_that_a_busy_process_finds_after_the_time_limit_still_counts() -> None:
    gate = Gate(input={"tf_timeout_s": 0.5})
    gate.cloud(12 * S, now_s=1.0)
    gate.gate.tick(9.0)  # the first chance in eight seconds; the transform is next in line
    gate.ego(12 * S, now_s=9.0)
    gate.gate.tick(9.02)
    assert (gate.stamps, gate.dropped) == ([12], [])


def test_cloud_older_than_the_history_is_dropped_at_once() -> None:
    gate = Gate()
    gate.ego(100 * S)
    gate.cloud(89 * S)
    assert [code for code, _ in gate.dropped] == ["tf_past"]


def test_missing_chain_is_never_taken_for_identity() -> None:
    gate = Gate(input={"tf_timeout_s": 0.0})
    gate.cloud(10 * S)
    gate.gate.tick(0.0)
    gate.gate.tick(0.0)
    assert gate.forwarded == []
    assert gate.dropped[0][0] == "tf_missing"
    assert "'map' is unknown" in gate.dropped[0][1]


def test_clouds_leave_in_the_order_of_their_arrival() -> None:
    gate = Gate()
    for second in (10, 11, 12):
        gate.cloud(second * S)
    gate.ego(10 * S)
    assert gate.stamps == [10]
    gate.ego(12 * S)
    assert gate.stamps == [10, 11, 12]


def test_without_past_sweeps_no_transform_is_needed() -> None:
    gate = Gate(densification_params={"num_past_frames": 0})
    gate.cloud(10 * S)
    assert gate.forwarded == [(10, None)]


def test_default_frame_stands_in_for_an_empty_one() -> None:
    gate = Gate(input={"default_frame_id": "lidar"})
    gate.ego(10 * S)
    gate.gate.cloud(make_cloud(10 * S, count=1, frame_id=""), 0.0)
    assert gate.forwarded[0][1] is not None


def test_parked_clouds_are_bounded_in_live_mode_and_kept_in_replay() -> None:
    live, replay = Gate(), Gate(input={"back_pressure": True})
    for gate in (live, replay):
        for i in range(PARKED_LIMIT + 3):
            gate.cloud(10 * S + i)
    assert (len(live.gate), len(live.dropped)) == (PARKED_LIMIT, 3)
    assert (len(replay.gate), len(replay.dropped)) == (PARKED_LIMIT + 3, 0)


def test_end_of_data_gives_up_what_is_parked() -> None:
    gate = Gate()
    gate.cloud(10 * S)
    gate.gate.flush()
    assert (len(gate.gate), [code for code, _ in gate.dropped]) == (0, ["tf_missing"])


@pytest.mark.parametrize("order", ["transform first", "cloud first"])
@pytest.mark.parametrize("passes", [2, 3])
def test_looping_recording_gives_as_many_clouds_each_time(order: str, passes: int) -> None:
    # A buffer that keeps the transforms of the first pass would refuse those of the next ones.
    gate = Gate()
    for _ in range(passes):
        for tenth in range(100, 130):
            stamp_ns = tenth * S // 10
            if order == "transform first":
                gate.ego(stamp_ns)
                gate.cloud(stamp_ns)
            else:
                gate.cloud(stamp_ns)
                gate.ego(stamp_ns)
    assert len(gate.forwarded) == 30 * passes
    assert (len(gate.jumps), gate.dropped) == (passes - 1, [])


@pytest.mark.parametrize("frames", [2, 3])
def test_recording_of_very_few_frames_may_loop_too(frames: int) -> None:
    gate = Gate()
    for _ in range(3):
        for i in range(frames):
            gate.ego(10 * S + i * S // 20)
            gate.cloud(10 * S + i * S // 20)
    assert (len(gate.forwarded), len(gate.jumps)) == (3 * frames, 2)


def test_step_back_of_the_simulated_clock_drops_what_waits_from_before() -> None:
    gate = Gate()
    gate.ego(99 * S)
    gate.cloud(100 * S)
    gate.gate.clock_jumped(100 * S, 90 * S)
    assert ([code for code, _ in gate.dropped], len(gate.jumps)) == (["time_jump"], 1)
    gate.ego(90 * S)
    gate.cloud(90 * S)
    assert (gate.stamps, len(gate.jumps)) == ([90], 1)


def test_unusable_transform_is_refused_by_name_and_the_next_one_works() -> None:
    gate = Gate()
    broken = make_transform(10 * S, 0.0)
    broken.transforms[0].transform.rotation.w = 0.0
    gate.gate.transforms(broken, 0.0, static=False)
    assert "map -> base_link" in gate.refused[0]
    gate.ego(10 * S)
    gate.cloud(10 * S)
    assert gate.stamps == [10]


def test_mounting_of_the_sensor_is_told_where_it_is_known_and_never_waited_for() -> None:
    gate = Gate(densification_params={"num_past_frames": 0})
    gate.cloud(10 * S)
    gate.gate.cloud(make_cloud(10 * S, count=1, frame_id="elsewhere"), 0.0)
    assert gate.mounts[0] is not None and gate.mounts[0][0, 3] == 1.0
    assert gate.mounts[1] is None
    gate.gate.reconfigure(LidarConfig.from_dict({"bev.ego_frame_id": "chassis"}))
    gate.cloud(11 * S)
    assert gate.mounts[2] is None
