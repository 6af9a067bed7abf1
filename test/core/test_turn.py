"""A sensor mounted another way: points turned for the network, results turned back exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from driveRT_ros.core.bev_grid import build_bev_grid, grid_shape
from driveRT_ros.core.boxes import transform_boxes
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.core.raw_cloud import CountedRows
from driveRT_ros.core.turn import Turn, facing, sensor_range
from test.support.lidar_frames import street

# 80 columns (x) by 56 rows (y) of cells of the head: a transposed grid cannot pass.
CONFIG = LidarConfig.from_dict(
    {
        "voxelization.point_cloud_range": [-40.4, -27.6, -5.0, 23.6, 17.2, 3.0],
        "voxelization.voxel_size": [0.1, 0.1, 0.2],
        "bev.resolution_m": 0.8,
        "model.channels": [8, 8, 16, 16, 16, 16],
    }
)
X_AHEAD, LEFT_AHEAD, BACK_AHEAD = 0.0, 180.0, 270.0
AS_SEEN = {
    X_AHEAD: lambda layer: layer.T[::-1],
    LEFT_AHEAD: lambda layer: layer.T[:, ::-1],
    BACK_AHEAD: lambda layer: layer[::-1, ::-1],
}
"""What a layer with +y ahead is to a sensor with another direction ahead."""


@pytest.fixture(scope="module")
def pipeline() -> LidarPipeline:
    return LidarPipeline(CONFIG, None, "cpu")


@pytest.fixture(scope="module")
def cloud() -> torch.Tensor:
    points = street(seed=3)
    points[::50, :2] = 0.0  # on both axes: the sign of zero is a byte, too
    points[5, 0], points[6, 1] = torch.nan, torch.inf
    return points


def matrix(yaw_deg: float) -> np.ndarray:
    out, yaw = np.eye(4), math.radians(yaw_deg)
    out[:2, :2] = [[math.cos(yaw), -math.sin(yaw)], [math.sin(yaw), math.cos(yaw)]]
    return out


def rows(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, 5, generator=torch.Generator().manual_seed(seed)) * 120 - 60


def boxes(count: int) -> torch.Tensor:
    out = torch.rand(count, 9, generator=torch.Generator().manual_seed(1)) * 20 - 10
    out[:, 3:6] = out[:, 3:6].abs()
    out[:, 6] = torch.linspace(-math.pi, math.pi, count)
    return out


# ---- the turn -----------------------------------------------------------------------------------


def test_ahead_of_the_sensor_becomes_ahead_of_the_network():
    ahead = torch.tensor([[1.0, 0.0, 0.5, 7.0, 0.25]])  # one metre ahead of a sensor of REP-103
    turned = Turn.to_network(facing(CONFIG, X_AHEAD)).rows(ahead)
    assert turned.tolist() == [[0.0, 1.0, 0.5, 7.0, 0.25]]
    imported = LidarConfig.from_dict({"model.forward_yaw_deg": 0.0, "input.forward_yaw_deg": 90})
    assert Turn.to_network(imported).yaw_deg == 270.0


@pytest.mark.parametrize("yaw_deg", [90.0, 180.0, 270.0])
def test_quarter_turns_move_bits_and_round_nothing(yaw_deg):
    """The cosine of a quarter turn is 6e-17 in floating point, and a turn by it moves points."""
    points, turn = rows(1000), Turn(yaw_deg)
    before = points.clone()
    turned = turn.rows(points)
    want = (matrix(yaw_deg)[:3, :3].round() @ points[:, :3].double().numpy().T).T
    assert np.array_equal(turned[:, :3].double().numpy(), want)
    assert torch.equal(turned[:, 2:], points[:, 2:]) and torch.equal(points, before)
    assert torch.equal(turn.back.rows(turned), points)
    zeros = turn.rows(torch.zeros(1, 5)).numpy().tobytes()
    assert zeros == bytes(20), "no minus zero: it has other bytes than zero"


def test_any_other_turn_is_as_exact_as_float32_allows():
    points, turn = rows(1000), Turn(33.3)
    want = (matrix(33.3)[:3, :3] @ points[:, :3].double().numpy().T).T
    assert np.array_equal(turn.rows(points)[:, :3].numpy(), want.astype(np.float32))
    torch.testing.assert_close(turn.back.rows(turn.rows(points)), points, rtol=0, atol=1e-5)


@pytest.mark.parametrize("yaw_deg", [90.0, 180.0, 270.0, 33.3])
def test_boxes_turn_as_a_rigid_transform_turns_them(yaw_deg):
    given, turn = boxes(50), Turn(yaw_deg)
    given[3, 7:] = torch.nan
    found = turn.boxes(given)
    want = transform_boxes(given, matrix(yaw_deg))
    others = [0, 1, 2, 3, 4, 5, 7, 8]
    torch.testing.assert_close(found[:, others], want[:, others], equal_nan=True)
    apart = (found[:, 6] - want[:, 6]).double()
    torch.testing.assert_close(apart.cos(), torch.ones(50, dtype=torch.float64))
    assert found.dtype == torch.float32 and (found[:, 6].abs() <= np.float32(math.pi)).all()
    assert turn.boxes(given[:0]).shape == (0, 9)


def test_no_turn_hands_out_what_it_was_given():
    turn, points, found = Turn.to_network(CONFIG), rows(3), boxes(3)
    counted = CountedRows(points, torch.tensor([2], dtype=torch.int32), lambda: 2)
    assert turn.is_none and turn.back.is_none
    assert turn.points(points) is points and turn.points(counted) is counted
    assert turn.boxes(found) is found


def test_points_that_only_a_device_counts_are_turned_without_asking_for_their_number():
    def read() -> int:
        asked.append(1)
        return 2

    asked: list[int] = []
    points, count = rows(4), torch.tensor([2], dtype=torch.int32)
    turned = Turn(90.0).points(CountedRows(points, count, read))
    assert isinstance(turned, CountedRows) and not asked and turned.room == 4
    assert turned.count is count and torch.equal(turned.exact(), Turn(90.0).rows(points)[:2])


@pytest.mark.parametrize(
    ("given", "normal"), [(-90.0, 180.0), (360.0, 90.0), (-360.0, 90.0), (90.0, 0.0), (0.0, 90.0)]
)
def test_a_full_turn_more_or_less_is_the_same_turn(given, normal):
    assert Turn.to_network(facing(CONFIG, given)).yaw_deg == normal


def test_a_turn_of_next_to_nothing_is_none():
    assert Turn.between(1e-20, 0.0).is_none


# ---- the parameter ------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["input", "model"])
@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (math.nan, "must be finite"),
        (math.inf, "must be finite"),
        (361.0, r"must lie in \[-360.0, 360.0\] deg"),
        ("x", "must be of type float"),
        (math.pi / 2, "is in degrees, and 1.5708 looks like radians; use 90"),
        (-1.57, "use -90"),
        (3.1416, "use 180"),
    ],
)
def test_a_direction_that_cannot_be_meant_is_refused(group, value, sentence):
    with pytest.raises(ConfigError, match=sentence) as refused:
        LidarConfig.from_dict({f"{group}.forward_yaw_deg": value})
    assert f"'{group}.forward_yaw_deg'" in str(refused.value)


def test_small_and_odd_angles_are_directions_too():
    for value in (0, 1.0, -2.5, 89.5, -360.0):
        assert LidarConfig.from_dict({"input.forward_yaw_deg": value})


# ---- the pipeline -------------------------------------------------------------------------------


@pytest.mark.parametrize("forward_yaw_deg", [X_AHEAD, LEFT_AHEAD, BACK_AHEAD])
def test_a_sensor_mounted_by_quarter_turns_finds_the_same_boxes_in_its_own_frame(
    pipeline, cloud, forward_yaw_deg
):
    """Bit by bit: the network sees the very same voxels, and nothing is rounded on the way back."""
    want = pipeline.process(cloud, with_bev=True, with_fingerprint=True)
    config = facing(CONFIG, forward_yaw_deg)
    to_sensor = Turn.to_network(config).back
    given = to_sensor.rows(cloud)
    before = given.clone()
    turned = pipeline.reconfigured(config)
    found = turned.process(given, with_bev=True, with_fingerprint=True)
    assert given.numpy().tobytes() == before.numpy().tobytes()
    assert len(want) > 5
    for stage in ("coords", "features", "bev"):
        assert found.report.fingerprint[stage] == want.report.fingerprint[stage]
    assert torch.equal(found.scores, want.scores) and torch.equal(found.labels, want.labels)
    assert found.boxes.numpy().tobytes() == to_sensor.boxes(want.boxes).numpy().tobytes()
    assert torch.equal(found.boxes[:, 2:6], want.boxes[:, 2:6])
    assert found.report.dropped == want.report.dropped
    for name, layer in want.bev.layers.items():
        assert np.array_equal(found.bev.layers[name], AS_SEEN[forward_yaw_deg](layer), True), name


def test_a_mounting_that_the_parameter_hides_from_the_network_changes_what_it_finds_else(
    pipeline, cloud
):
    """Without the parameter the same cloud is another one: the tests above could not pass."""
    want = pipeline.process(cloud, with_fingerprint=True).report.fingerprint
    found = pipeline.process(Turn(270.0).rows(cloud), with_fingerprint=True).report.fingerprint
    assert all(found[stage] != want[stage] for stage in ("points", "coords", "features", "bev"))


def test_any_mounting_gives_the_boxes_of_the_turned_cloud_turned_back(pipeline, cloud):
    config = facing(CONFIG, 123.4)
    turn = Turn.to_network(config)
    want = pipeline.process(turn.rows(cloud))
    for given in (cloud, cloud.numpy()):
        found = pipeline.reconfigured(config).process(given)
        assert torch.equal(found.boxes, turn.back.boxes(want.boxes)) and len(want) > 5
        assert torch.equal(found.scores, want.scores)


def test_another_mounting_builds_no_other_engine(pipeline):
    other = pipeline.reconfigured(facing(CONFIG, X_AHEAD))
    assert other._front_end is pipeline._front_end
    assert pipeline.reconfigured(CONFIG)._turn.is_none and not other._turn.is_none


# ---- the grid -----------------------------------------------------------------------------------


def test_the_grid_of_a_quarter_turn_covers_the_turned_range_and_no_more():
    config = facing(CONFIG, X_AHEAD)
    assert sensor_range(config) == (-27.6, -23.6, -5.0, 17.2, 40.4, 3.0)
    assert sensor_range(CONFIG) == CONFIG.voxelization.point_cloud_range
    assert (grid_shape(CONFIG), grid_shape(config)) == ((56, 80), (80, 56))


def test_the_grid_of_any_turn_shows_points_and_heat_where_the_sensor_has_them():
    config = facing(CONFIG, 60.0)
    turn, (x0, y0, *_) = Turn.to_network(config), sensor_range(config)
    heat = np.zeros((56, 80), np.float32)
    heat[50, 10] = 0.75
    centre = np.array([[-40.4 + 10.5 * 0.8, -27.6 + 50.5 * 0.8, 0.0, 9.0, 0.0]], np.float32)
    points = turn.back.rows(torch.from_numpy(centre))
    grid = build_bev_grid(points, config, {"car": heat})
    col, row = ((points[0, :2].double().numpy() - (x0, y0)) / 0.8).astype(int)
    assert grid.shape == grid_shape(config) and grid.origin_xy == (x0, y0)
    assert grid.layers["heat_car"][row, col] == np.float32(0.75)
    assert (grid.layers["heat_car"] == np.float32(0.75)).sum() in (1, 2)
    assert np.flatnonzero(grid.layers["density"]).tolist() == [row * grid.shape[1] + col]
    seen = ~np.isnan(grid.layers["heat_car"])
    assert abs(seen.sum() - 56 * 80) < 60 and not seen[0, 0] and not seen[-1, -1]


def test_a_grid_shows_what_the_network_was_given_and_nothing_beyond_its_range():
    config = facing(CONFIG, 60.0)
    points = Turn.to_network(config).back.rows(street(seed=4))
    kept = build_bev_grid(points, config).layers["density"].sum() * 0.8**2
    straight = build_bev_grid(street(seed=4), CONFIG).layers["density"].sum() * 0.8**2
    assert 0 < straight < len(points) and abs(kept - straight) < 20
