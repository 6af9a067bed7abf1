"""What an active perception node holds: topics, gate, mailbox, worker. Made and closed as one."""

from __future__ import annotations

import time
from typing import Any

from rclpy.clock import JumpThreshold
from rclpy.duration import Duration
from std_msgs.msg import Header
from tf2_msgs.msg import TFMessage

from driveRT_ros.nodes import qos
from driveRT_ros.nodes.base import ManagedNode
from driveRT_ros.nodes.health import WARN, Health
from driveRT_ros.nodes.input_watch import InputWatch
from driveRT_ros.nodes.mailbox import Mailbox, Work
from driveRT_ros.nodes.publish import Outputs
from driveRT_ros.nodes.replay_config import TF, TF_STATIC
from driveRT_ros.nodes.timejump import Jump
from driveRT_ros.nodes.worker import Handler, Worker

PARKED_CHECK_S = 0.02


class Session:
    """Listen, pair data with poses, hand frames to the worker; subclasses add the inputs.

    All methods are called from one thread, the one that spins the node.

    Args:
        node: Owner of the topics.
        config: As configured.
        handler: Processes frames; from here on used by the worker alone.
        health: Where counts and faults go.
        outputs: The output topics.
        history: Past frames that the handler uses.
        moving: Whether poses change with time, so that ``/tf`` is needed.
    """

    def __init__(
        self,
        node: ManagedNode,
        config: Any,
        handler: Handler,
        health: Health,
        outputs: Outputs,
        *,
        history: int,
        moving: bool,
    ) -> None:
        self._node, self._config, self._health = node, config, health
        self._log, self._noun, self._outputs = node.get_logger(), handler.noun, outputs
        handler.forget()
        self._mailbox = Mailbox(keep_all=config.input.back_pressure, history=history)
        self._worker = Worker(self._mailbox, handler, outputs, health, self._log)
        self._watches: list[InputWatch] = []
        self._gate = self.make_gate(config)
        self._subscriptions = [
            node.create_subscription(TFMessage, TF_STATIC, self.static_transforms, qos.LATCHED)
        ]
        if moving:
            self._subscriptions.append(
                node.create_subscription(TFMessage, TF, self.transforms, qos.TF)
            )
        self._timer = node.create_steady_timer(PARKED_CHECK_S, self._check_parked)
        backward = JumpThreshold(
            min_forward=None, min_backward=Duration(nanoseconds=-1), on_clock_change=False
        )
        self._jump_handle = node.get_clock().create_jump_callback(
            backward, post_callback=self._clock_jumped
        )

    def make_gate(self, config: Any) -> Any:
        """Return the :class:`~driveRT_ros.nodes.gate.Gate` of this kind of data."""
        raise NotImplementedError

    def listen(self, kind: Any, topic: str, take: Any, noun: str, *, raw: bool = False) -> str:
        """Subscribe to a sensor topic, ``raw`` to its serialized bytes; return its full name."""
        settings = self._config.input
        profile = qos.sensor_data(settings.queue_depth, settings.reliability)
        resolved: str = self._node.resolve_topic_name(topic)
        watch = InputWatch(self._node, resolved, self._health, noun)

        def heard(msg: Any) -> None:
            watch.heard(time.monotonic())
            take(msg)
            self._watch_parked()

        self._watches.append(watch)
        self._subscriptions.append(
            self._node.create_subscription(
                kind, topic, heard, profile, event_callbacks=watch.events, raw=raw
            )
        )
        return resolved

    # Data in: the callbacks of the topics, and the entrance of an offline source.

    def transforms(self, msg: TFMessage) -> None:
        """Take moving transforms."""
        self._gate.transforms(msg, time.monotonic(), static=False)

    def static_transforms(self, msg: TFMessage) -> None:
        """Take transforms that hold at any time."""
        self._gate.transforms(msg, time.monotonic(), static=True)

    def drop(self, header: Header, reason: str, sentence: str) -> None:
        """Count and announce a frame that gets no result."""
        self._health.dropped(reason)
        self._health.fault(reason, WARN, sentence, time.monotonic())
        self._outputs.publish_dropped(header)

    def flush(self) -> None:
        """Stop waiting for transforms and the like: no more data will come."""
        self._gate.flush()

    def wait_idle(self, timeout_s: float | None = None) -> bool:
        """Wait until every frame handed on is processed; return False on timeout."""
        return self._mailbox.wait_idle(timeout_s)

    def reconfigure(self, config: Any) -> None:
        """Use other thresholds from the next frame on."""
        self._config = config
        self._gate.reconfigure(config)
        self._worker.reconfigure(config)

    def check_input(self) -> None:
        """Say what to do where a publisher exists, nothing is heard, and nothing is in work."""
        self._watch_parked()  # an offline source hands frames over beside the topics
        at_work = len(self._gate) > 0 or not self.wait_idle(0.0)
        for watch in self._watches:
            watch.check(time.monotonic(), self._config.diagnostics.no_data_hint_s, at_work)

    def close(self, timeout_s: float) -> bool:
        """Stop listening, end the worker, close the topics; False where a frame takes longer."""
        self._jump_handle.unregister()
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        self._node.destroy_timer(self._timer)
        if self._node.context.ok():  # else nobody can be told
            waiting = self._mailbox.close()  # first, so that no frame begins now
            self._gate.flush()
            self._lose("deactivated", [*waiting, *self._mailbox.close()])
        if ended := self._worker.stop(timeout_s):  # else the worker may be publishing
            self._outputs.destroy()
        return ended

    def ended(self) -> bool:
        """Return whether the frame that :meth:`close` did not wait for is done by now."""
        return self._worker.stop(0.0)

    # What the gate and the clock report.

    def forward(self, item: Any, arrived_s: float) -> None:
        """Hand a complete frame to the worker."""
        self._lose("superseded", self._mailbox.put(item, arrived_s))

    def _lose(self, reason: str, lost: list[Work]) -> None:
        for work in lost:
            self._health.dropped(reason)
            self._outputs.publish_dropped(work.item.header)

    def refuse(self, sentence: str) -> None:
        """Report a transform that is not usable."""
        self._health.fault("invalid_transform", WARN, sentence, time.monotonic())

    def time_jumped(self, jump: Jump) -> None:
        """Forget what lies before a jump of time."""
        self._lose("time_jump", self._mailbox.time_jumped())
        self._health.time_jumped()
        self._log.warning(
            f"Time went back from {jump.from_ns / 1e9:.3f} s to {jump.to_ns / 1e9:.3f} s (first "
            f"seen on {jump.source}): past frames, transforms and latencies are forgotten."
        )

    def _clock_jumped(self, jump: Any) -> None:
        now_ns = self._node.get_clock().now().nanoseconds
        # rclpy hands over a dictionary, its documentation promises an object.
        delta = jump["delta"] if isinstance(jump, dict) else jump.delta.nanoseconds
        self._gate.clock_jumped(now_ns - int(delta), now_ns)

    def _watch_parked(self) -> None:
        if len(self._gate) and self._timer.is_canceled():
            self._timer.reset()

    def _check_parked(self) -> None:
        """Let the gate look at what waits; where nothing does, sleep until something will.

        Every wake-up of rclpy holds the interpreter for a while, at the cost of a frame in work.
        """
        self._gate.tick(time.monotonic())
        if not len(self._gate):
            self._timer.cancel()
