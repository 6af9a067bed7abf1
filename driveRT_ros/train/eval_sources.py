"""Where frames to evaluate come from, and who answers: the pipeline, or a recording."""

from __future__ import annotations

import dataclasses
import heapq
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch

from driveRT_ros.core.config import InputConfig
from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.core.frame import Detections, SceneFrame
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.core.sweeps import SweepBuffer
from driveRT_ros.io import kitti
from driveRT_ros.io.bag import BagReader
from driveRT_ros.io.decode_messages import decode_detections, decode_objects
from driveRT_ros.io.dont_care import DontCare
from driveRT_ros.io.messages import stamp_ns_of
from driveRT_ros.io.nuscenes_eval import KeyframeFacts, NuScenesEval
from driveRT_ros.io.scene_bag import DETECTIONS, read_scene_frames
from driveRT_ros.io.topics import choose_topic
from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.drives import simulate_all
from driveRT_ros.sim.simulate import count_points
from driveRT_ros.train.eval_boxes import EvalFrame, EvalSettings, eval_frame, without_racks
from driveRT_ros.train.evaluate import Evaluator, Tally
from driveRT_ros.train.matching import FloatArray
from driveRT_ros.train.submission import Submission

_log = logging.getLogger(__name__)

BOX_MARGIN_M = 0.06
"""Points this far outside a box count as its own where nobody has counted: range noise."""
KITTI_SECTOR_RAD = math.radians(40.0)
"""KITTI labels what its front camera sees: 40 degrees to each side of the way ahead."""


@dataclasses.dataclass(frozen=True, eq=False)
class Moment:
    """One frame of a source.

    Args:
        token: Its name.
        frame: The frame.
        wanted: Evaluate it; else it only belongs to the past of the next ones.
        facts: What nuScenes tables know of it.
        sector_rad: Only objects within this of the vehicle's +x, seen from the LiDAR, are
            annotated; None: all around.
        dont_care: Where objects are not annotated: what is found there is not wrong.
    """

    token: str
    frame: SceneFrame
    wanted: bool = True
    facts: KeyframeFacts | None = None
    sector_rad: float | None = None
    dont_care: DontCare | None = None


Answer = Callable[[Moment], Detections | None]
"""Detections in the frame of the points; None where there is no answer, or none is wanted."""


class Detector:
    """Answer with a pipeline; it must see every moment, in order of time.

    Args:
        pipeline: Detects.
    """

    def __init__(self, pipeline: LidarPipeline) -> None:
        self._pipeline = pipeline
        self._sweeps = SweepBuffer(pipeline.config.densification_params)

    def __call__(self, moment: Moment) -> Detections | None:
        """Return what is found, or None where the moment is not wanted."""
        frame = moment.frame
        known = frame.T_world_ego is not None
        pose = frame.T_world_ego @ frame.T_ego_lidar if known else None
        points = self._sweeps.push(frame.points, pose)
        return self._pipeline.process(points) if moment.wanted else None


def detection_topics(topics: Mapping[str, str]) -> list[str]:
    """Return the topics of detections that are not ground truth, of type names by topic."""
    found = (t for t, kind in topics.items() if kind == DETECTIONS)
    return sorted(t for t in found if not t.startswith("/ground_truth/"))


class Recorded:
    """Answer with the detections that a bag holds, by stamp.

    Velocities come from the topic ``objects`` beside ``detections``, where it was recorded.

    Args:
        path: The bag.
        topic: Topic of its vision_msgs/msg/Detection3DArray; empty takes the only one that is not
            ground truth.

    Raises:
        ConfigError: If there is no such topic, or nothing on it.
    """

    def __init__(self, path: str | Path, topic: str = "") -> None:
        self._by_stamp: dict[int, Detections] = {}
        with BagReader(path) as reader:
            others = {t: k for t, k in reader.topics.items() if not t.startswith("/ground_truth/")}
            option = "--detections"
            self.topic = choose_topic(
                others, topic, bag=str(path), type_name=DETECTIONS, option=option
            )
            objects = self.topic.removesuffix("detections") + "objects"
            moving: dict[int, Detections] = {}
            for message in reader.messages([self.topic, *({objects} & set(reader.topics))]):
                content = message.deserialize()
                stamp_ns = stamp_ns_of(content.header.stamp)
                if message.topic == self.topic:
                    self._by_stamp[stamp_ns] = decode_detections(content)
                else:
                    moving[stamp_ns] = decode_objects(content)
        if not self._by_stamp:
            raise ConfigError(f"Topic '{self.topic}' of bag '{path}' has no messages to evaluate.")
        for stamp_ns, found in self._by_stamp.items():
            self._by_stamp[stamp_ns] = _moving(found, moving.get(stamp_ns))

    def __call__(self, moment: Moment) -> Detections | None:
        """Return what was recorded for the cloud."""
        return self._by_stamp.get(moment.frame.points.stamp_ns)


def _moving(found: Detections, objects: Detections | None) -> Detections:
    if objects is None or len(objects) != len(found):
        return found
    boxes = found.boxes.clone()
    boxes[:, 7:9] = objects.boxes[:, 7:9]
    return dataclasses.replace(found, boxes=boxes)


def simulated(
    scenes: int, seed: int, past_sweeps: int, config: SimConfig | None = None, jobs: int = 1
) -> Iterator[Moment]:
    """Yield simulated drives; the last sweep of each is evaluated.

    Args:
        scenes: Drives, with consecutive seeds.
        seed: The first of them.
        past_sweeps: Sweeps before the one that counts.
        config: Everything else.
        jobs: Processes that simulate; their number changes nothing.
    """
    base = config or SimConfig()
    numbers = range(seed, seed + scenes)
    drives = [dataclasses.replace(base, seed=n, num_sweeps=past_sweeps + 1) for n in numbers]
    for number, frames in zip(numbers, simulate_all(drives, jobs)):
        for index, frame in enumerate(frames):
            yield Moment(f"simulated-{number}", frame, wanted=index == past_sweeps)


def kitti_frames(root: str | Path) -> Iterator[Moment]:
    """Yield the labelled frames of a KITTI folder, reflectance scaled to 0..255.

    Ahead is along +x of the LiDAR: a detector needs ``input.forward_yaw_deg`` at
    :data:`kitti.FORWARD_YAW_DEG`.
    """
    read = kitti.frames_and_regions(root, intensity_scale=255.0)
    for index, (frame, dont_care) in enumerate(read):
        if frame.ground_truth is not None:
            yield Moment(f"kitti-{index}", frame, sector_rad=KITTI_SECTOR_RAD, dont_care=dont_care)


def nuscenes_frames(data: NuScenesEval, split: str, keyframes_only: bool) -> Iterator[Moment]:
    """Yield the frames of a split; keyframes are evaluated.

    Args:
        data: The tables.
        split: As :meth:`NuScenesEval.split_frames`.
        keyframes_only: Leave out the sweeps in between.
    """
    for frame in data.split_frames(split, keyframes_only=keyframes_only):
        facts = data.facts_at(frame.points.stamp_ns)
        token = facts.token if facts is not None else ""
        yield Moment(token, frame, wanted=facts is not None, facts=facts)


def bag_frames(path: str | Path, topic: str, config: InputConfig) -> Iterator[Moment]:
    """Yield the clouds of a bag; those with ground truth at their stamp are evaluated.

    Args:
        path: The bag.
        topic: Topic of its clouds; empty takes the only one.
        config: How clouds are decoded.

    Raises:
        ConfigError: If there is no such topic.
    """
    for frame in read_scene_frames(path, cloud_topic=topic, config=config):
        yield Moment(str(frame.points.stamp_ns), frame, wanted=frame.ground_truth is not None)


@dataclasses.dataclass(frozen=True, eq=False)
class Shown:
    """A frame to look at: what was there, what was found, and how it went."""

    token: str
    frame: SceneFrame
    found: Detections
    tally: Tally


@dataclasses.dataclass
class Outcome:
    """What a comparison leaves behind.

    Args:
        unanswered: Frames without detections: they count as frames in which nothing was found.
        worst: The frames with the most missed and wrong boxes, the worst first.
    """

    unanswered: int = 0
    worst: list[Shown] = dataclasses.field(default_factory=list)


def compare(
    moments: Iterable[Moment],
    answer: Answer,
    evaluator: Evaluator,
    settings: EvalSettings,
    *,
    num_worst: int = 0,
    submission: Submission | None = None,
) -> Outcome:
    """Let every moment be answered, and compare.

    Args:
        moments: In order of time.
        answer: Detections of each.
        evaluator: Takes every frame that has ground truth.
        settings: What counts.
        num_worst: Frames to keep for pictures.
        submission: Takes the detections of every wanted frame.

    Raises:
        ConfigError: If a submission is asked for and a pose is unknown.
    """
    outcome, heap = Outcome(), []
    for number, moment in enumerate(moments):
        try:
            found = answer(moment)
        except InvalidFrame as error:
            _log.warning("Frame '%s' gets no answer: %s", moment.token, error)
            found = None
        if not moment.wanted:
            continue
        if found is None:
            outcome.unanswered += 1
            found = Detections.empty()
        if submission is not None:
            submission.add(moment.token, moment.frame, found)
        if moment.frame.ground_truth is None:
            continue
        frame, compared = compared_frame(moment, found, settings)
        tally = evaluator.add(compared)
        if num_worst:
            shown = Shown(moment.token, frame, found, tally)
            heapq.heappush(heap, (tally.missed + tally.wrong, -number, shown))
            if len(heap) > num_worst:
                heapq.heappop(heap)
    outcome.worst = [shown for _, _, shown in sorted(heap, key=lambda h: h[:2], reverse=True)]
    return outcome


def compared_frame(
    moment: Moment, found: Detections, settings: EvalSettings
) -> tuple[SceneFrame, EvalFrame]:
    """Return a moment with the points of every ground truth counted, and the boxes to compare."""
    frame, facts, truth = moment.frame, moment.facts, moment.frame.ground_truth
    assert truth is not None, "only frames with ground truth are compared"
    counts = None if facts is None else facts.num_points
    if counts is None:
        counts = None if truth.num_points is None else truth.num_points.numpy()
    if counts is None:
        counts = count_points(frame.points.xyz, truth.boxes.numpy(), BOX_MARGIN_M)
    truth = dataclasses.replace(truth, num_points=torch.from_numpy(counts))
    attributes = None if facts is None else facts.attributes
    if moment.sector_rad is not None:
        ahead = frame.T_ego_lidar[:3, :3]
        truth, found = (_in_sector(b, ahead, moment.sector_rad) for b in (truth, found))
    frame = dataclasses.replace(frame, ground_truth=truth)
    ignored = None
    if moment.dont_care is not None:
        ignored = moment.dont_care.holds(found, frame.T_ego_lidar)
    boxes = eval_frame(
        frame, found, moment.token, settings=settings, attributes=attributes, ignored=ignored
    )
    return frame, boxes if facts is None else without_racks(boxes, facts.racks)


def _in_sector(boxes: Detections, R_ego_lidar: FloatArray, half_rad: float) -> Detections:
    x, y, _ = R_ego_lidar @ boxes.boxes[:, :3].numpy().T
    angle = np.arctan2(y, x)
    keep = np.flatnonzero(np.abs(angle) < half_rad)
    points = boxes.num_points
    return dataclasses.replace(
        boxes,
        boxes=boxes.boxes[keep],
        scores=boxes.scores[keep],
        labels=boxes.labels[keep],
        num_points=None if points is None else points[keep],
        track_ids=None,
    )
