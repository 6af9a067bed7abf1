"""A LiDAR node without past sweeps: what an independent subscriber gets over DDS."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from nav_msgs.msg import OccupancyGrid
from rclpy.serialization import serialize_message
from sensor_msgs.msg import Image, PointCloud2
from std_msgs.msg import Float64, Header, UInt32MultiArray
from vision_msgs.msg import Detection3DArray
from visualization_msgs.msg import Marker, MarkerArray

from driveRT_ros.io.fingerprint import decode_fingerprint
from driveRT_ros.nodes.handler import OUTPUTS
from driveRT_ros.nodes.process_env import private_domain
from driveRT_ros.nodes.raw import message_class
from driveRT_ros.nodes.result import STAGES
from test.support.lidar_messages import SMALL_STILL, make_cloud, make_garbage
from test.support.live_node import (
    CLOUDS,
    DEBUG,
    DETECTIONS,
    Live,
    latest,
    rested,
    set_parameter,
    values,
    wait_for_status,
)
from test.support.node_process import started
from test.support.ros_client import RosClient

pytestmark = pytest.mark.nodes


PARAMS = {**SMALL_STILL, "input.reliability": "reliable", "input.queue_depth": 50}
"""No cloud is lost on its way or in the queue, however late this process or the node is."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("live")
    with (
        private_domain() as domain_id,
        started("lidar_node", folder, domain_id, params=PARAMS) as node,
        RosClient(domain_id) as client,
    ):
        client.subscribe(Detection3DArray, DETECTIONS)
        client.subscribe(DiagnosticArray, "/diagnostics")
        client.publisher(PointCloud2, CLOUDS)
        node.wait_for_log("Active")
        client.wait_matched()
        yield Live(node, client)
        code = node.stop(signal.SIGINT)
        assert (code, "Traceback" in node.log()) == (0, False), node.log()


def test_detections_carry_the_header_of_their_cloud(live: Live) -> None:
    cloud = make_cloud(live.next_stamp_ns(), frame_id="LIDAR_TOP")
    found = live.ask(cloud)
    assert found.header == cloud.header
    assert len(found.detections) > 0
    assert all(d.header == cloud.header for d in found.detections)
    assert {len(d.results) for d in found.detections} == {1}


def test_same_cloud_twice_gives_the_same_detections(live: Live) -> None:
    first = live.ask(make_cloud(live.next_stamp_ns(), seed=3))
    second = live.ask(make_cloud(live.next_stamp_ns(), seed=3))
    assert [d.bbox for d in first.detections] == [d.bbox for d in second.detections]
    assert [d.results for d in first.detections] == [d.results for d in second.detections]


def test_empty_cloud_gives_an_empty_array_with_its_header(live: Live) -> None:
    cloud = make_cloud(live.next_stamp_ns(), count=0)
    found = live.ask(cloud)
    assert (found.header, list(found.detections)) == (cloud.header, [])
    assert len(live.ask(make_cloud(live.next_stamp_ns())).detections) > 0


def test_garbage_cloud_is_dropped_and_reported_and_the_next_one_works(live: Live) -> None:
    live.send(make_garbage(live.next_stamp_ns()))
    status = wait_for_status(live.client, "A cloud is dropped")
    assert status.level == DiagnosticStatus.WARN
    assert any(key.startswith("dropped.") for key in values(status))
    assert len(live.ask(make_cloud(live.next_stamp_ns())).detections) > 0


def test_bytes_that_are_no_cloud_are_dropped_and_reported_and_the_next_cloud_works(
    live: Live,
) -> None:
    dropped = f"{DEBUG}/dropped_cloud"
    live.client.subscribe(Header, dropped)
    live.client.wait_matched()
    cloud = make_cloud(live.next_stamp_ns())
    live.send(serialize_message(cloud)[:60])
    assert live.client.wait_count(dropped, 1) == [cloud.header]
    live.client.unsubscribe(dropped)
    status = wait_for_status(live.client, "A serialized cloud ends before")
    assert (status.level, values(status)["dropped.raw"]) == (DiagnosticStatus.WARN, "1")
    assert len(live.ask(make_cloud(live.next_stamp_ns())).detections) > 0


def test_header_without_frame_is_refused_and_never_republished(live: Live) -> None:
    live.send(make_cloud(live.next_stamp_ns(), frame_id=""))
    wait_for_status(live.client, "frame_id")
    live.ask(make_cloud(live.next_stamp_ns()))
    assert all(m.header.frame_id for m in live.client.received[DETECTIONS])


def test_two_clouds_with_one_stamp_are_both_answered(live: Live) -> None:
    # The rule for repeated stamps: each cloud gets its answer; nothing divides by their distance.
    stamp_ns = live.next_stamp_ns()
    live.client.clear()
    for seed in (1, 2):
        live.ask(make_cloud(stamp_ns, seed=seed))
        live.client.wait_count(DETECTIONS, seed)
    first, second = (len(m.detections) for m in live.client.received[DETECTIONS])
    assert first > 0 and second > 0
    assert "went back" not in live.node.log()


def test_every_output_comes_when_subscribed_with_the_header_of_the_cloud(live: Live) -> None:
    topics = {name: f"/lidar_node/output/{name}" for name in OUTPUTS if name != "detections"}
    for name, topic in topics.items():
        live.client.subscribe(message_class(OUTPUTS[name]), topic)
    live.client.wait_matched()
    cloud = make_cloud(live.next_stamp_ns())
    found = live.ask(cloud)
    got = {name: live.client.wait_count(topic, 1)[-1] for name, topic in topics.items()}
    for topic in topics.values():
        live.client.unsubscribe(topic)
    headers = {name: m.header for name, m in got.items() if name != "markers"}
    assert all(header == cloud.header for header in headers.values())
    check_markers(got["markers"], found, cloud.header)
    check_grids(got["occupancy_grid"], got["grid_map"], cloud)
    assert len(got["objects"].objects) == len(found.detections)
    image: Image = got["bev_image"]
    assert (image.encoding, image.step) == ("rgb8", 3 * image.width)
    assert len(image.data) == image.step * image.height
    assert np.unique(np.frombuffer(image.data, np.uint8)).size > 3  # something is drawn


def check_markers(markers: MarkerArray, found: Detection3DArray, header: Any) -> None:
    first, *rest = markers.markers
    assert first.action == Marker.DELETEALL  # or boxes of the last frame would stay
    boxes = [m for m in rest if m.ns == "boxes"]
    assert [m.pose for m in boxes] == [d.bbox.center for d in found.detections]
    assert len([m for m in rest if m.ns == "labels"]) == len(boxes)
    assert all(m.header == header for m in markers.markers)
    for arrow in (m for m in rest if m.ns == "velocities"):
        start, end = arrow.points
        assert np.hypot(end.x - start.x, end.y - start.y) >= 0.2


def check_grids(occupancy: OccupancyGrid, grid_map: Any, cloud: PointCloud2) -> None:
    info = occupancy.info
    assert (info.width, info.height, info.resolution) == (32, 32, 1.0)
    known = np.asarray(occupancy.data).reshape(info.height, info.width) >= 0
    xyz = np.frombuffer(cloud.data, np.float32).reshape(cloud.width, -1)[:, :3]
    cols, rows = np.floor(xyz[:, :2] + 16).astype(int).T
    expected = np.zeros((32, 32), bool)
    expected[rows, cols] = True
    np.testing.assert_array_equal(known, expected)
    assert set(grid_map.layers) >= {"max_height", "min_height", "density", "mean_intensity"}
    assert any(layer.startswith("heat_") for layer in grid_map.layers)
    assert (grid_map.info.length_x, grid_map.info.length_y) == (32.0, 32.0)
    data = grid_map.data[list(grid_map.layers).index("max_height")]
    assert [dim.label for dim in data.layout.dim] == ["column_index", "row_index"]
    highest = np.asarray(data.data, np.float32).reshape(32, 32, order="F")
    # In a grid_map, both indices start at the corner with the greatest x and y.
    i, j = 31 - cols, 31 - rows
    np.testing.assert_array_equal(np.isfinite(highest[i, j]), True)
    assert np.isfinite(highest).sum() == expected.sum()
    top = np.full((32, 32), -np.inf, np.float32)
    np.maximum.at(top, (i, j), xyz[:, 2])
    np.testing.assert_array_equal(highest[i, j], top[i, j])


def test_debug_topics_give_times_percentiles_and_a_fingerprint(live: Live) -> None:
    live.ask(make_cloud(live.next_stamp_ns()))  # the first of all has no cyclic time
    rested(live.client)
    floats = ["cyclic_time_ms", "processing_time_ms", "pipeline_latency_ms"]
    floats += [f"processing_time/{stage}_ms" for stage in STAGES]
    kinds: dict[str, type] = dict.fromkeys(floats, Float64)
    kinds |= {"latency_percentiles": DiagnosticStatus, "frame_fingerprint": UInt32MultiArray}
    for name, kind in kinds.items():
        live.client.subscribe(kind, f"{DEBUG}/{name}")
    live.client.wait_matched()
    live.client.clear()
    stamps_ns = [live.next_stamp_ns() for _ in range(2)]
    for stamp_ns in stamps_ns:
        live.ask(make_cloud(stamp_ns, seed=8))
    got = {name: live.client.wait_count(f"{DEBUG}/{name}", 2) for name in kinds}
    for name in kinds:
        live.client.unsubscribe(f"{DEBUG}/{name}")
    stage_ms = [got[f"processing_time/{stage}_ms"][-1].data for stage in STAGES]
    *parts, total = stage_ms
    assert min(parts) >= 0 and total >= sum(parts) - 1e-6
    stages_ms = [[m.data for m in got[f"processing_time/{stage}_ms"]] for stage in STAGES]
    beside_ms = [total - sum(parts) for *parts, total in zip(*stages_ms)]
    assert min(beside_ms) < 0.5  # of the best frame: any may be interrupted between two stages
    assert got["processing_time_ms"][-1].data == total
    assert got["cyclic_time_ms"][-1].data >= total
    since_stamp_ms = time.time() * 1e3 - (live.next_stamp_ns() / 1e6)
    assert got["pipeline_latency_ms"][-1].data == pytest.approx(since_stamp_ms, abs=600e3)
    percentiles = values(got["latency_percentiles"][-1])
    assert {"p50", "p95", "p99", "max", "deadline_misses"} <= percentiles.keys()
    assert 0 < float(percentiles["p50"]) <= float(percentiles["p99"]) <= float(percentiles["max"])
    first, second = (decode_fingerprint(msg) for msg in got["frame_fingerprint"])
    assert [first.stamp_ns, second.stamp_ns] == stamps_ns
    stages = ["cloud_msg", "points", "coords", "features", "bev", "detections", "detections_msg"]
    assert list(first.stages) == list(second.stages) == stages
    same = {s for s in stages if first.stages[s] == second.stages[s]}
    assert same == set(stages) - {"cloud_msg", "detections_msg"}  # the same points, other headers


def test_diagnostics_have_the_keys_of_autoware_and_say_the_weights_are_untrained(
    live: Live,
) -> None:
    live.ask(make_cloud(live.next_stamp_ns()))
    statuses = latest(live.client)
    assert {
        "processing_time_ms",
        "is_processing_time_ms_in_expected_range",
        "consecutive_processing_delay_ms",
        "is_consecutive_processing_delay_in_range",
        "is_num_voxels_within_range",
    } <= values(statuses["processing_time_status"]).keys()
    assert all("untrained" in values(s)["weights"] for s in statuses.values())
    assert statuses["model_status"].level == DiagnosticStatus.WARN
    model = values(statuses["model_status"])
    assert int(model["high_water.voxels"]) <= int(model["capacity.voxels"]) == 160_000
    assert live.node.log().count("untrained weights") == 1


def test_newest_cloud_wins_and_the_ones_passed_over_are_counted(live: Live) -> None:
    live.ask(make_cloud(live.next_stamp_ns()))
    dropped = f"{DEBUG}/dropped_cloud"
    live.client.subscribe(Header, dropped)
    live.client.wait_matched()
    burst: list[PointCloud2] = []
    superseded = 0
    while not superseded:  # a machine may be busy just where the clouds are sent
        before = rested(live.client)
        burst = [make_cloud(live.next_stamp_ns(), count=3000, seed=i) for i in range(12)]
        live.client.clear()
        for cloud in burst[:-1]:
            live.send(cloud)
        live.ask(burst[-1])
        after = rested(live.client)
        superseded = int(after.get("dropped.superseded", 0)) - int(
            before.get("dropped.superseded", 0)
        )
    new = {k: int(after.get(k, 0)) - int(before.get(k, 0)) for k in ("received", "processed")}
    assert new["received"] == new["processed"] + superseded == len(burst)
    assert len(live.client.received[DETECTIONS]) == new["processed"]
    answered = [m.header for m in live.client.received[DETECTIONS]]
    lost = live.client.wait_count(dropped, superseded)
    assert len(lost) == superseded  # each cloud gets an answer of one kind or the other
    assert all((cloud.header in lost) != (cloud.header in answered) for cloud in burst)
    live.client.unsubscribe(dropped)


def test_thresholds_change_at_run_time_and_a_high_one_clears_the_markers(live: Live) -> None:
    thresholds = "post_process_params.score_thresholds"
    topic = "/lidar_node/output/markers"
    live.client.subscribe(MarkerArray, topic)
    live.client.wait_matched()
    assert set_parameter(live.client, thresholds, double_array_value=[0.99]).successful
    cloud = make_cloud(live.next_stamp_ns())
    found = live.ask(cloud)
    assert (found.header, list(found.detections)) == (cloud.header, [])
    markers = live.client.wait_count(topic, 1)[-1].markers
    assert [m.action for m in markers] == [Marker.DELETEALL]
    live.client.unsubscribe(topic)
    assert set_parameter(live.client, thresholds, double_array_value=[0.1]).successful
    assert len(live.ask(make_cloud(live.next_stamp_ns())).detections) > 0


def test_wrong_value_at_run_time_is_refused_and_the_old_one_kept(live: Live) -> None:
    name = "post_process_params.iou_nms_threshold"
    refused = set_parameter(live.client, name, double_value=2.0)
    assert not refused.successful
    assert all(part in refused.reason for part in (name, "2.0", "1.0"))
    refused = set_parameter(live.client, name, string_value="high")
    assert not refused.successful
    assert name in refused.reason and "'high'" in refused.reason
    assert set_parameter(live.client, name, integer_value=1).successful  # an int will do
    assert set_parameter(live.client, name, double_value=0.2).successful
    refused = set_parameter(live.client, "voxelization.max_voxels", integer_value=10)
    assert not refused.successful
    assert "needs cleanup and configure" in refused.reason
