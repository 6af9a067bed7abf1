"""The life of a node that runs a network on sensor data; what it runs is said by subclasses."""

from __future__ import annotations

import functools
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from diagnostic_msgs.msg import DiagnosticArray
from std_msgs.msg import Header
from tf2_msgs.msg import TFMessage

from driveRT_ros.core.errors import DeviceError
from driveRT_ros.core.kernel_builds import KernelBuild
from driveRT_ros.core.stages import device_named
from driveRT_ros.nodes import qos
from driveRT_ros.nodes.base import ManagedNode
from driveRT_ros.nodes.device_guard import DeviceGuard
from driveRT_ros.nodes.health import Health
from driveRT_ros.nodes.result import STAGES
from driveRT_ros.nodes.status import UNTRAINED
from driveRT_ros.nodes.warm_up import compile_kernels, warm_up

FRAME_GRACE_S = 30.0
"""How long deactivation waits for the frame in work."""

EXIT_GRACE_S = 1.0
"""How long the end of the process waits for it, and for files; shorter than EXIT_BOUND_S."""


def topics_help(inputs: dict[str, str], outputs: dict[str, str], noun: str) -> str:
    """Return what ``--help`` says about topics; type by name of each input and output."""
    return (
        "topics:\n"
        + "".join(f"  in   {name} [{kind}]\n" for name, kind in inputs.items())
        + "  in   /tf, /tf_static, /clock\n"
        + "".join(f"  out  ~/output/{name} [{kind}]\n" for name, kind in outputs.items())
        + "  out  ~/debug/{cyclic_time,processing_time,pipeline_latency}_ms and\n"
        + f"       ~/debug/processing_time/{{{','.join(STAGES)}}}_ms [std_msgs/msg/Float64]\n"
        + "  out  ~/debug/latency_percentiles [diagnostic_msgs/msg/DiagnosticStatus]\n"
        + "  out  ~/debug/frame_fingerprint [std_msgs/msg/UInt32MultiArray]\n"
        + f"  out  ~/debug/dropped_{noun} [std_msgs/msg/Header]\n"
        + "  out  /diagnostics [diagnostic_msgs/msg/DiagnosticArray]\n"
    )


class PerceptionNode(ManagedNode):
    """Load weights, warm up, listen, process, publish.

    Live, topics drive it. Offline, configure and activate it, hand over what the recording holds in
    its order, ``wait_idle`` for back-pressure, and ``flush`` at the end; the results go out on the
    same topics.
    """

    def __init__(self, **kwargs: Any) -> None:
        self._session: Any = None
        self._late: Any = None  # session closed while its frame was in work
        self._handler = self._guard = self._weights = self._diagnostics = self._timer = None
        self._plan_note = ""
        super().__init__(**kwargs)
        self._health = Health(self.config.diagnostics, self.get_logger())

    @abstractmethod
    def load_weights(self, config: Any) -> Any:
        """Return the weights of ``checkpoint_path``."""

    @abstractmethod
    def make_pipeline(self, config: Any, weights: Any) -> Any:
        """Return the pipeline; without weights (None) it runs untrained ones."""

    def kernels(self, config: Any, weights: Any, device: torch.device) -> Sequence[KernelBuild]:
        """Return what the pipeline will compile, where that is known and takes long."""
        return ()

    @abstractmethod
    def make_handler(self, config: Any, pipeline: Any) -> Any:
        """Return the :class:`driveRT_ros.nodes.worker.Handler` around the pipeline."""

    @abstractmethod
    def make_session(self) -> Any:
        """Return the :class:`driveRT_ros.nodes.session.Session`, which opens the topics."""

    @abstractmethod
    def make_statuses(self, now_s: float) -> list[Any]:
        """Return the statuses of one ``/diagnostics`` message."""

    def do_configure(self) -> None:
        """Load the weights, build the pipeline, run it once."""
        config = self.config
        log, start_s = self.get_logger(), time.monotonic()
        if config.num_threads:
            torch.set_num_threads(config.num_threads)
        weights = None
        if config.checkpoint_path:
            log.info(f"Loading weights from '{config.checkpoint_path}'.")
            weights = self.load_weights(config)
        device = device_named(config.device)
        compile_kernels(self.kernels(config, weights, device), device, log)
        log.info(f"Building the pipeline on device '{device}'.")
        pipeline = self.make_pipeline(config, weights)
        self._weights, self._plan_note = pipeline.weights, getattr(pipeline, "plan_note", "")
        if not self._weights.trained:
            log.warning(UNTRAINED)
        if self._plan_note:
            log.warning(self._plan_note)
        warm_up(pipeline, log)
        self._health = Health(config.diagnostics, log)
        make = functools.partial(self.make_pipeline, weights=weights)
        self._guard = DeviceGuard(pipeline, make, self._health, log)
        self._handler = self.make_handler(config, self._guard)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
        self._start_timer()
        log.info(
            f"Configured in {time.monotonic() - start_s:.2f} s on {pipeline.device}, weights "
            f"'{self._weights.source}', sha256 {self._weights.sha256[:16]}."
        )
        self.finished = self.finished or config.build_only

    def do_activate(self) -> None:
        """Open the topics and start the worker, unless the one before is still at its frame."""
        if not self.close(0.0):  # the two would share a pipeline
            raise DeviceError("The frame in work at the last deactivation is not done; try later.")
        if self._handler.config is not self.config:  # changed while no frame came to meet it
            self._handler.reconfigure(self.config)
        self._session = self.make_session()
        self.get_logger().info(f"Active, listening on '{self._session.topic}'.")

    def do_deactivate(self) -> None:
        """Finish the frame in work and close the topics."""
        self.close(FRAME_GRACE_S)

    def do_cleanup(self) -> None:
        """Free the pipeline and everything it holds."""
        if self._timer is not None:
            self.destroy_timer(self._timer)
            self.destroy_publisher(self._diagnostics)
        self._handler = self._guard = self._weights = self._diagnostics = self._timer = None

    def do_reconfigure(self, config: Any) -> None:
        """Take over thresholds, limits and grid; without a pipeline there is nothing to tell."""
        if self._handler is None:
            return
        self._health.reconfigure(config.diagnostics)
        self.destroy_timer(self._timer)
        self._start_timer()
        if self._session is not None:  # else the next activation sees to it
            self._session.reconfigure(config)

    def close(self, timeout_s: float = EXIT_GRACE_S) -> bool:
        """Close the session; return False where the frame in work takes longer."""
        session, self._session = self._session, None
        if session is not None and not session.close(timeout_s):
            self._late = session
        if self._late is not None and self._late.ended():
            self._late = None
        return self._late is None

    def handle_transforms(self, msg: TFMessage, *, static: bool = False) -> None:
        """Take transforms as if they had arrived on ``/tf`` or ``/tf_static``."""
        session = self._active()
        (session.static_transforms if static else session.transforms)(msg)

    def handle_drop(self, header: Header, reason: str, sentence: str) -> None:
        """Count and announce a frame that cannot even be handed over."""
        self._active().drop(header, reason, sentence)

    def wait_idle(self, timeout_s: float | None = None) -> bool:
        """Wait until every frame that is complete is processed; False on timeout."""
        return bool(self._active().wait_idle(timeout_s))

    def flush(self) -> None:
        """Give up frames that wait for a transform, at the end of the data."""
        self._active().flush()

    @property
    def health(self) -> Health:
        """Counts, drops by reason, faults and latencies."""
        return self._health

    def _active(self) -> Any:
        assert self._session is not None, "the node must be active"
        return self._session

    def _start_timer(self) -> None:
        period_s = self.config.diagnostics.validation_callback_interval_ms / 1e3
        self._timer = self.create_steady_timer(period_s, self._publish_diagnostics)

    def _publish_diagnostics(self) -> None:
        ending = self._guard.ending  # before the statuses are made: they give the reason, too
        if self._session is not None:
            self._session.check_input()
        if self._diagnostics.get_subscription_count() > 0:
            msg = DiagnosticArray(status=self.make_statuses(time.monotonic()))
            msg.header.stamp = self.get_clock().now().to_msg()
            self._diagnostics.publish(msg)
        if ending:
            self.fail(ending)
