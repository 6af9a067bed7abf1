"""Silence of an input: reported where it is a fault, and only there."""

from __future__ import annotations

import time
from typing import Any

from driveRT_ros.core.config import DiagnosticsConfig
from driveRT_ros.nodes.health import Health
from driveRT_ros.nodes.input_watch import InputWatch


class Crowd:
    """Stands for a node that sees publishers."""

    publishers = 1

    def count_publishers(self, topic: str) -> int:
        return self.publishers


class Quiet:
    def warning(self, text: str) -> None:
        pass


class Case:
    def __init__(self) -> None:
        self.node: Any = Crowd()
        self.health = Health(DiagnosticsConfig(), Quiet())
        self.watch = InputWatch(self.node, "/points", self.health)
        self.start_s = time.monotonic()
        self.watch.heard(self.start_s)

    def silent_after(self, seconds: float, *, at_work: bool = False) -> bool:
        now_s = self.start_s + seconds
        self.watch.check(now_s, 5.0, at_work)
        return any("No cloud on '/points'" in f.sentence for f in self.health.faults(now_s))


def test_silence_of_a_present_publisher_is_reported_until_the_next_cloud() -> None:
    case = Case()
    assert [case.silent_after(s) for s in (4.9, 5.1, 60.0)] == [False, True, True]
    case.watch.heard(case.start_s + 60.0)
    assert not case.silent_after(60.1)


def test_silence_without_publisher_is_no_fault() -> None:
    case = Case()
    case.node.publishers = 0
    assert not case.silent_after(60.0)
    case.node.publishers = 1  # it has just come, and gets as long as any other
    assert [case.silent_after(s) for s in (60.1, 64.9, 65.1)] == [False, False, True]


def test_silence_during_a_long_frame_is_no_fault_and_counts_from_its_end() -> None:
    # A replay that waits for the answer sends nothing meanwhile; on a slow CPU that takes a minute.
    case = Case()
    assert not any(case.silent_after(s, at_work=True) for s in range(60))
    assert not case.silent_after(63.9)
    assert case.silent_after(64.1)


def test_silence_already_reported_is_taken_back_when_work_is_found() -> None:
    case = Case()
    assert case.silent_after(6.0)
    assert not case.silent_after(6.1, at_work=True)
