"""The LiDAR node as a process: what an independent subscriber gets over DDS."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from nav_msgs.msg import OccupancyGrid
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from rclpy.context import Context
from rclpy.lifecycle import TransitionCallbackReturn
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, PointCloud2
from std_msgs.msg import Float64, UInt32MultiArray
from tf2_msgs.msg import TFMessage
from vision_msgs.msg import Detection3DArray
from visualization_msgs.msg import Marker, MarkerArray

from driveRT_ros.nodes.handler import OUTPUTS, STAGES
from driveRT_ros.nodes.lidar import LidarNode
from driveRT_ros.nodes.processes import private_domain
from driveRT_ros.nodes.raw import message_class
from test.support.lidar_messages import SECOND as S
from test.support.lidar_messages import SMALL, SMALL_STILL, make_cloud, make_garbage, make_transform
from test.support.node_process import NodeUnderTest, started
from test.support.ros_client import RosClient, profile

pytestmark = pytest.mark.nodes

CLOUDS, DETECTIONS = "/lidar_node/input/pointcloud", "/lidar_node/output/detections"
DEBUG = "/lidar_node/debug"


def latest(client: RosClient) -> dict[str, DiagnosticStatus]:
    """Return the newest diagnostics by the short name of the status."""
    client.received["/diagnostics"].clear()
    client.wait_count("/diagnostics", 1)
    return {s.name.split(": ")[1]: s for s in client.received["/diagnostics"][-1].status}


def values(status: DiagnosticStatus) -> dict[str, str]:
    return {pair.key: pair.value for pair in status.values}


def wait_for_status(client: RosClient, text: str, timeout_s: float = 10.0) -> DiagnosticStatus:
    """Wait for a diagnostics status whose message contains ``text``."""

    def find(got: dict[str, list[Any]]) -> DiagnosticStatus | None:
        statuses = (s for msg in got["/diagnostics"] for s in msg.status)
        return next((s for s in statuses if text in s.message), None)

    found = client.wait(find, timeout_s)
    assert found is not None, f"no {text!r} in the diagnostics within {timeout_s} s"
    return found


class Live:
    """A node without past sweeps, and a client that feeds it stamps that always grow."""

    def __init__(self, node: NodeUnderTest, client: RosClient) -> None:
        self.node, self.client = node, client
        self._stamp_ns = 1_700_000_000 * S

    def next_stamp_ns(self) -> int:
        self._stamp_ns += S // 20
        return self._stamp_ns

    def send(self, cloud: Any) -> None:
        self.client.publisher(PointCloud2, CLOUDS).publish(cloud)

    def ask(self, cloud: Any, timeout_s: float = 10.0) -> Detection3DArray:
        """Send a cloud and return the detections with its stamp."""
        self.send(cloud)
        stamp = cloud.header.stamp

        def answer(got: dict[str, list[Any]]) -> Detection3DArray | None:
            return next((m for m in got[DETECTIONS] if m.header.stamp == stamp), None)

        found = self.client.wait(answer, timeout_s)
        assert found is not None, f"no detections for {stamp}:\n{self.node.log()}"
        return found


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("live")
    with (
        private_domain() as domain_id,
        started("lidar_node", folder, domain_id, params=SMALL_STILL) as node,
        RosClient(domain_id) as client,
    ):
        client.subscribe(Detection3DArray, DETECTIONS)
        client.subscribe(DiagnosticArray, "/diagnostics")
        client.publisher(PointCloud2, CLOUDS)
        node.wait_for_log("Active")
        client.wait_matched()
        yield Live(node, client)
        code, seconds = node.stop(signal.SIGINT)
        assert (code, "Traceback" in node.log()) == (0, False), node.log()
        assert seconds < 2.0


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
    floats = ["cyclic_time_ms", "processing_time_ms", "pipeline_latency_ms"]
    floats += [f"processing_time/{stage}_ms" for stage in STAGES]
    kinds: dict[str, type] = dict.fromkeys(floats, Float64)
    kinds |= {"latency_percentiles": DiagnosticStatus, "frame_fingerprint": UInt32MultiArray}
    for name, kind in kinds.items():
        live.client.subscribe(kind, f"{DEBUG}/{name}")
    live.client.wait_matched()
    live.client.clear()
    for _ in range(2):
        live.ask(make_cloud(live.next_stamp_ns(), seed=8))
    got = {name: live.client.wait_count(f"{DEBUG}/{name}", 2) for name in kinds}
    for name in kinds:
        live.client.unsubscribe(f"{DEBUG}/{name}")
    stage_ms = [got[f"processing_time/{stage}_ms"][-1].data for stage in STAGES]
    *parts, total = stage_ms
    assert min(parts) >= 0 and total == pytest.approx(sum(parts), rel=0.02, abs=0.5)
    assert got["processing_time_ms"][-1].data == total
    assert got["cyclic_time_ms"][-1].data >= total
    since_stamp_ms = time.time() * 1e3 - (live.next_stamp_ns() / 1e6)
    assert got["pipeline_latency_ms"][-1].data == pytest.approx(since_stamp_ms, abs=60e3)
    percentiles = values(got["latency_percentiles"][-1])
    assert {"p50", "p95", "p99", "max", "deadline_misses"} <= percentiles.keys()
    assert 0 < float(percentiles["p50"]) <= float(percentiles["p99"]) <= float(percentiles["max"])
    first, second = got["frame_fingerprint"]
    assert [dim.label for dim in first.layout.dim] == ["coords", "features", "bev", "detections"]
    assert list(first.data) == list(second.data)  # the same points, so the same bytes
    assert len(first.data) == 4


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
    before = values(latest(live.client)["input_status"])
    burst = [make_cloud(live.next_stamp_ns(), count=3000, seed=i) for i in range(12)]
    live.client.clear()
    start_s = time.monotonic()
    for cloud in burst[:-1]:
        live.send(cloud)
        time.sleep(0.005)
    live.ask(burst[-1])
    assert time.monotonic() - start_s < 3.0  # not twelve frames late
    after = values(latest(live.client)["input_status"])
    new = {k: int(after.get(k, 0)) - int(before.get(k, 0)) for k in ("received", "processed")}
    superseded = int(after["dropped.superseded"]) - int(before.get("dropped.superseded", 0))
    assert superseded > 0
    assert new["received"] == new["processed"] + superseded
    assert len(live.client.received[DETECTIONS]) == new["processed"]


def set_parameter(client: RosClient, name: str, **value: Any) -> Any:
    kind = {
        "double_value": ParameterType.PARAMETER_DOUBLE,
        "integer_value": ParameterType.PARAMETER_INTEGER,
        "double_array_value": ParameterType.PARAMETER_DOUBLE_ARRAY,
        "string_value": ParameterType.PARAMETER_STRING,
    }[next(iter(value))]
    parameter = Parameter(name=name, value=ParameterValue(type=kind, **value))
    request = SetParameters.Request(parameters=[parameter])
    return client.call(SetParameters, "/lidar_node/set_parameters", request).results[0]


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


MOVING: dict[str, object] = {
    **SMALL,
    "densification_params.num_past_frames": 2,
    "input.tf_timeout_s": 0.3,
    "input.back_pressure": True,
    "use_sim_time": True,
}


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A node with past sweeps, simulated time and static transforms sent before it started."""
    folder = tmp_path_factory.mktemp("moving")
    with private_domain() as domain_id, RosClient(domain_id, "moving_client") as client:
        static = client.publisher(TFMessage, "/tf_static", profile(latched=True))
        static.publish(make_transform(0, 1.0, parent="base_link", child="lidar"))
        client.subscribe(Detection3DArray, "/moving/output/detections")
        client.subscribe(DiagnosticArray, "/diagnostics")
        remap = ("--ros-args", "-r", "__node:=moving")
        with started("lidar_node", folder, domain_id, params=MOVING, extra_args=remap) as node:
            for kind, topic in (
                (PointCloud2, "/moving/input/pointcloud"),
                (TFMessage, "/tf"),
                (Clock, "/clock"),
            ):
                client.publisher(kind, topic)
            node.wait_for_log("Active")
            client.wait_matched()
            yield Live(node, client)
            code, _ = node.stop(signal.SIGINT)
            assert (code, "Traceback" in node.log()) == (0, False), node.log()


def play(live: Live, start_ns: int, count: int, *, tf_delay_s: float = 0.0) -> None:
    """Play clock, clouds and then their transforms at 20 Hz."""
    for i in range(count):
        stamp_ns = start_ns + i * S // 20
        clock = Clock()
        clock.clock.sec, clock.clock.nanosec = divmod(stamp_ns, S)
        live.client.publisher(Clock, "/clock").publish(clock)
        cloud = make_cloud(stamp_ns, seed=i)
        live.client.publisher(PointCloud2, "/moving/input/pointcloud").publish(cloud)
        time.sleep(tf_delay_s)
        live.client.publisher(TFMessage, "/tf").publish(make_transform(stamp_ns, float(i)))
        time.sleep(0.05)


def test_transform_50_ms_after_its_cloud_is_waited_for_and_time_may_start_again(
    moving: Live,
) -> None:
    topic = "/moving/output/detections"
    play(moving, 100 * S, 6, tf_delay_s=0.05)
    first = [m.header.stamp for m in moving.client.wait_count(topic, 6)]
    play(moving, 100 * S, 6, tf_delay_s=0.05)
    both = [m.header.stamp for m in moving.client.wait_count(topic, 12)]
    assert both == first + first
    assert moving.node.log().count("Time went back") == 1


def test_cloud_without_transform_is_dropped_with_both_times_and_later_ones_work(
    moving: Live,
) -> None:
    topic = "/moving/output/detections"
    play(moving, 200 * S, 1)
    moving.client.wait(lambda got: any(m.header.stamp.sec == 200 for m in got[topic]))
    moving.client.clear()
    publisher = moving.client.publisher(PointCloud2, "/moving/input/pointcloud")
    publisher.publish(make_cloud(203 * S))
    status = wait_for_status(moving.client, "is dropped")
    assert "203.000000 s" in status.message and "200.000000 s" in status.message
    assert moving.client.received[topic] == []
    play(moving, 204 * S, 2)
    assert [m.header.stamp.sec for m in moving.client.wait_count(topic, 2)] == [204, 204]


def test_incompatible_qos_and_silence_are_reported_by_topic_policy_and_hint(
    domain_id: int, tmp_path: Path
) -> None:
    params = {
        **SMALL_STILL,
        "input.reliability": "reliable",
        "diagnostics.no_data_hint_s": 1.0,
    }
    remap = ("--ros-args", "-r", "__node:=picky")
    topic = "/picky/input/pointcloud"
    with (
        started("lidar_node", tmp_path, domain_id, params=params, extra_args=remap) as node,
        RosClient(domain_id, "picky_client") as client,
    ):
        client.subscribe(DiagnosticArray, "/diagnostics")
        client.publisher(PointCloud2, topic, profile(best_effort=True))
        status = wait_for_status(client, "incompatible", 40.0)
        assert status.level == DiagnosticStatus.ERROR
        assert topic in status.message and "RELIABILITY" in status.message
        hint = wait_for_status(client, "FASTDDS_BUILTIN_TRANSPORTS=LARGE_DATA")
        assert topic in hint.message
        # SIGTERM ends it like Ctrl-C does.
        assert node.stop(signal.SIGTERM)[0] == 0
        assert "Traceback" not in node.log()


def test_two_interrupts_during_inference_end_the_process_in_time_without_traceback(
    domain_id: int, tmp_path: Path
) -> None:
    # The full network in a cloud of 60,000 points keeps one core busy for many seconds.
    params = {"densification_params.num_past_frames": 0, "num_threads": 1}
    remap = ("--ros-args", "-r", "__node:=busy")
    with (
        started("lidar_node", tmp_path, domain_id, params=params, extra_args=remap) as node,
        RosClient(domain_id, "busy_client") as client,
    ):
        client.subscribe(DiagnosticArray, "/diagnostics")
        publisher = client.publisher(PointCloud2, "/busy/input/pointcloud")
        node.wait_for_log("Active", 90.0)
        client.wait_matched()
        publisher.publish(make_cloud(S, count=60_000))
        client.wait(lambda got: any(is_busy(m) for m in got["/diagnostics"]))
        time.sleep(0.2)
        assert is_busy(client.received["/diagnostics"][-1])
        code, seconds = node.stop(signal.SIGINT, signal.SIGINT)
        assert (code, "Traceback" in node.log()) == (0, False), node.log()
        assert seconds < 2.0


def is_busy(msg: DiagnosticArray) -> bool:
    """Tell whether a cloud has arrived and is not processed yet."""
    found = {k: v for s in msg.status for k, v in values(s).items()}
    return (found["received"], found["processed"]) == ("1", "0")


def test_wrong_parameter_ends_the_process_with_one_sentence(domain_id: int, tmp_path: Path) -> None:
    params = {**SMALL, "voxelization.voxel_size": [0.1, 0.1]}
    with started("lidar_node", tmp_path, domain_id, params=params) as node:
        assert node.wait(60.0) == 1
        [sentence] = node.log().splitlines()
        assert "'voxelization.voxel_size' must hold 3 values, got 2" in sentence


@pytest.mark.parametrize(
    ("name", "value"),
    [("checkpoint_path", "/nowhere/weights.pth"), ("plan_path", "/nowhere/plan.json")],
)
def test_file_that_cannot_be_used_fails_the_configuration_by_name(
    name: str, value: str, domain_id: int
) -> None:
    context = Context()
    rclpy.init(args=[], context=context, domain_id=domain_id)
    node = LidarNode(context=context, cli_args=["--ros-args", "-p", f"{name}:={value}"])
    assert node.trigger_configure() == TransitionCallbackReturn.FAILURE
    assert value in node.fatal
    assert not node.parameters.frozen  # a better value may be set now
    node.destroy_node()
    rclpy.shutdown(context=context)


def test_build_only_configures_and_exits(domain_id: int, tmp_path: Path) -> None:
    params = {**SMALL, "build_only": True}
    with started("lidar_node", tmp_path, domain_id, params=params) as node:
        assert node.wait(60.0) == 0
        assert "Configured in" in node.log() and "Active" not in node.log()


def change_state(client: RosClient, transition: int) -> bool:
    request = ChangeState.Request(transition=Transition(id=transition))
    return client.call(ChangeState, "/lidar_node/change_state", request).success


def test_lifecycle_runs_in_circles_and_its_shutdown_ends_the_process(
    domain_id: int, tmp_path: Path
) -> None:
    params = {**SMALL_STILL, "autostart": False}
    with (
        started("lidar_node", tmp_path, domain_id, params=params) as node,
        RosClient(domain_id) as client,
    ):
        client.subscribe(Detection3DArray, DETECTIONS)
        client.publisher(PointCloud2, CLOUDS)
        node.wait_for_log("Waiting for the transition 'configure'")
        for top_k in (500, 1):
            # Unconfigured, every parameter may change; it takes effect at configure.
            name = "post_process_params.max_boxes_per_head"
            assert set_parameter(client, name, integer_value=top_k).successful
            assert set_parameter(client, "voxelization.max_voxels", integer_value=9999).successful
            assert change_state(client, Transition.TRANSITION_CONFIGURE)
            assert change_state(client, Transition.TRANSITION_ACTIVATE)
            client.wait_matched()
            client.clear()
            client.publisher(PointCloud2, CLOUDS).publish(make_cloud(S))
            [found] = client.wait_count(DETECTIONS, 1)
            assert 0 < len(found.detections) <= 6 * top_k
            assert change_state(client, Transition.TRANSITION_DEACTIVATE)
            assert change_state(client, Transition.TRANSITION_CLEANUP)
        assert len(found.detections) <= 6  # one box a head
        assert change_state(client, Transition.TRANSITION_UNCONFIGURED_SHUTDOWN)
        assert node.wait(5.0) == 0
        assert "Traceback" not in node.log()


def test_node_that_waits_for_configure_ends_on_sigterm(domain_id: int, tmp_path: Path) -> None:
    params = {**SMALL, "autostart": False}
    with started("lidar_node", tmp_path, domain_id, params=params) as node:
        node.wait_for_log("Waiting for the transition 'configure'")
        code, seconds = node.stop(signal.SIGTERM)
        assert (code, "Traceback" in node.log()) == (0, False)
        assert seconds < 2.0


def test_clouds_lost_by_the_default_transport_are_counted_with_the_remedy(
    domain_id: int, tmp_path: Path
) -> None:
    # Fast DDS loses most best-effort messages of this size unless told that they are large.
    with (
        started(
            "lidar_node", tmp_path, domain_id, params=SMALL_STILL, transports="DEFAULT"
        ) as node,
        RosClient(domain_id, transports="DEFAULT") as client,
    ):
        client.subscribe(DiagnosticArray, "/diagnostics")
        publisher = client.publisher(PointCloud2, CLOUDS, profile(5, best_effort=True))
        node.wait_for_log("Active")
        client.wait_matched()
        for i in range(20):
            publisher.publish(make_cloud(i * S, count=200_000))
            time.sleep(0.02)
        status = wait_for_status(client, "lost on their way")
        assert "FASTDDS_BUILTIN_TRANSPORTS=LARGE_DATA" in status.message
        assert int(values(status)["lost_by_transport"]) > 0


def test_interrupt_while_the_process_still_imports_ends_it_without_traceback(
    domain_id: int, tmp_path: Path
) -> None:
    with started("lidar_node", tmp_path, domain_id, params=SMALL_STILL) as node:
        time.sleep(0.8)  # Python is up, torch is not
        code, seconds = node.stop(signal.SIGINT)
        assert (code, "Traceback" in node.log()) == (0, False), node.log()
        assert seconds < 2.0
