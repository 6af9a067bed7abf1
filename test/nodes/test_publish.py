"""The order of publishing: results go out before pictures are even made."""

from __future__ import annotations

from typing import Any

import pytest

from driveRT_ros.core.frame import Detections
from driveRT_ros.nodes.handler import OUTPUTS
from driveRT_ros.nodes.publish import Outputs
from driveRT_ros.nodes.result import STAGES, FrameResult, Messages


class FakeNode:
    """Makes publishers that note what they are told."""

    output_qos = None

    def __init__(self) -> None:
        self.events: list[str] = []
        self.heard: set[str] = set()

    def create_publisher(self, kind: type, topic: str, profile: Any, **_: Any) -> Any:
        return FakePublisher(self, topic.rpartition("/")[2])


class FakePublisher:
    def __init__(self, node: FakeNode, name: str) -> None:
        self._node, self._name = node, name

    def publish(self, msg: Any) -> None:
        self._node.events.append(f"publish {self._name}")

    def get_subscription_count(self) -> int:
        return int(self._name in self._node.heard)


def result(node: FakeNode, names: list[str], faulty: str = "") -> FrameResult:
    def encoder(name: str) -> Any:
        def encode() -> str:
            node.events.append(f"make {name}")
            if name == faulty:
                raise ValueError("no such colour")
            return name

        return encode

    return FrameResult(
        stamp_ns=1,
        found=Detections.empty(),
        messages=Messages({name: encoder(name) for name in names}),
        stage_ms=dict.fromkeys(STAGES, 1.0),
    )


def test_every_message_goes_out_before_the_next_one_is_made() -> None:
    node = FakeNode()
    made = result(node, ["detections", "markers", "bev_image"])
    Outputs(node, OUTPUTS, "cloud").publish(made)
    assert node.events == [
        f"{step} {name}" for name in made.messages for step in ("make", "publish")
    ]
    assert made.stage_ms["publish"] > 1.0 and made.stage_ms["total"] > 1.0
    assert made.stage_ms["publish"] == made.stage_ms["total"]


def test_a_picture_that_cannot_be_made_is_a_fault_beside_the_detections() -> None:
    node = FakeNode()
    made = result(node, ["detections", "markers", "bev_image"], faulty="markers")
    Outputs(node, OUTPUTS, "cloud").publish(made)
    assert [e for e in node.events if "publish" in e] == ["publish detections", "publish bev_image"]
    [(kind, sentence)] = made.faults.items()
    assert kind == "output markers"
    assert sentence == "Output 'markers' is left out, ValueError: no such colour"


def test_a_frame_whose_first_message_cannot_be_made_has_no_result() -> None:
    node = FakeNode()
    with pytest.raises(ValueError, match="no such colour"):
        Outputs(node, OUTPUTS, "cloud").publish(
            result(node, ["detections", "markers"], faulty="detections")
        )
    assert node.events == ["make detections"]


def test_only_what_somebody_listens_to_is_wanted() -> None:
    node = FakeNode()
    outputs = Outputs(node, OUTPUTS, "cloud")
    assert outputs.wanted() == frozenset()
    node.heard = {"markers", "frame_fingerprint", "dropped_cloud"}
    assert outputs.wanted() == {"markers", "frame_fingerprint"}


def test_a_message_is_made_once_and_asking_for_its_name_makes_none() -> None:
    node = FakeNode()
    messages = result(node, ["detections", "markers"]).messages
    assert "detections" in messages and "objects" not in messages and len(messages) == 2
    assert list(messages) == ["detections", "markers"] and node.events == []
    assert messages["markers"] is messages["markers"]
    assert node.events == ["make markers"]
    with pytest.raises(KeyError):
        messages["objects"]
