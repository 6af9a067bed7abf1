"""What a LiDAR node is told between two frames holds, whatever its life does in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter

from driveRT_ros.nodes import perception
from driveRT_ros.nodes.handler import LidarHandler
from driveRT_ros.nodes.lidar import LidarNode
from driveRT_ros.nodes.publish import Outputs
from test.support.lidar_messages import SECOND as S
from test.support.lidar_messages import make_cloud
from test.support.live_node import active_node


@pytest.fixture
def active(domain_id: int) -> Iterator[LidarNode]:
    """A node that listens."""
    with active_node(domain_id) as node:
        yield node
        assert node.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_parameters_changed_around_a_deactivation_hold_after_the_next_activation(
    when: str, active: LidarNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[Any] = []
    monkeypatch.setattr(Outputs, "publish", lambda self, result: results.append(result))
    active.handle_cloud(make_cloud(S))
    assert active.wait_idle(90.0)
    if when == "after":
        active.trigger_deactivate()
    [answer] = active.set_parameters(
        [Parameter("post_process_params.score_thresholds", value=[0.99])]
    )
    assert answer.successful
    if when == "before":  # no frame came that the worker could have met it with
        active.trigger_deactivate()
    active.trigger_activate()
    active.handle_cloud(make_cloud(2 * S))
    assert active.wait_idle(90.0)
    assert [len(result.found) > 0 for result in results] == [True, False]


def test_no_second_worker_starts_while_one_is_still_at_its_frame(
    active: LidarNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, done = threading.Event(), threading.Event()
    handle = LidarHandler.handle

    def slowly(*given: Any) -> Any:
        begun.set()
        assert done.wait(90.0)
        return handle(*given)

    monkeypatch.setattr(perception, "FRAME_GRACE_S", 0.05)
    monkeypatch.setattr(LidarHandler, "handle", slowly)
    active.handle_cloud(make_cloud(S))
    assert begun.wait(90.0)
    active.handle_cloud(make_cloud(S + 1))  # waits, and is never processed
    active.trigger_deactivate()
    assert active.health.state.dropped == {"deactivated": 1}
    active.trigger_activate()
    assert active.fatal is not None and "not done" in active.fatal
    assert not active.close(0.0)
    done.set()
    deadline_s = time.monotonic() + 90.0
    while not active.close(0.0) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    active.trigger_activate()
    assert active.fatal is None
    active.handle_cloud(make_cloud(2 * S))
    assert active.wait_idle(90.0)
    assert active.health.state.processed == 2


def test_a_node_that_has_nothing_to_do_sleeps_between_two_looks_at_its_health(
    active: LidarNode,
) -> None:
    """Every wake-up of rclpy holds the interpreter, which a frame in work then has to wait for."""
    looks = 1e3 / active.config.diagnostics.validation_callback_interval_ms
    executor = SingleThreadedExecutor(context=active.context)
    executor.add_node(active)
    try:
        counts: list[int] = []
        # In the first seconds there are discovery and the last look at what is parked.
        while not counts or (counts[-1] > 2 * looks and len(counts) < 60):
            counts.append(0)
            begin_s = time.monotonic()
            while time.monotonic() < begin_s + 1.0:
                executor.spin_once(timeout_sec=1.0)
                counts[-1] += 1
    finally:
        executor.shutdown(timeout_sec=0.0)
    assert counts[-1] <= 2 * looks, counts


def test_a_cloud_that_still_waits_for_its_transform_at_the_end_is_counted(domain_id: int) -> None:
    """Whoever compares what went in with what came out finds every cloud once."""
    with active_node(domain_id, densification_params__num_past_frames=1) as node:
        node.handle_cloud(make_cloud(S))
        node.trigger_deactivate()
        state = node.health.state
        assert (state.received, state.processed, dict(state.dropped)) == (1, 0, {"tf_missing": 1})
