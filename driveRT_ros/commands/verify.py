"""Tell whether two recordings are equal, or a recording and a fresh pass over its own clouds.

Frames are compared by their fingerprints (CRC-32 of every stage), and by the detections messages
where there is none. Each recording is checked against its own fingerprints first: a byte of a
cloud or of detections that changed since it was sent is found, and its frame is named.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.table import Table

from driveRT_ros.commands.common import (
    add_detector_arguments,
    console,
    detector_config,
    progress,
)
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.fingerprint import stage_words

if TYPE_CHECKING:
    from driveRT_ros.commands.compare_frames import Comparison
    from driveRT_ros.commands.recorded_frames import RecordedFrames

HELP = "tell whether two recordings are equal, or a recording and a fresh pass over it"
EXAMPLES = """\
examples:
  drivert verify run_a run_b                     two bags, or result folders of drivert run
  drivert verify my_bag                          is every recorded byte as it was sent?
  drivert verify my_bag --replay --checkpoint voxelnext.safetensors
  drivert verify run_a --replay --clouds my_bag  with the parameters that run_a holds

exit codes: 0 equal, 1 different or damaged, 2 cannot be told
"""


_OF_REPLAY = ("topic", "config", "checkpoint", "set")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``drivert verify``."""
    parser.add_argument("a", metavar="A", help="a rosbag2, or a result folder of drivert run")
    parser.add_argument("b", metavar="B", nargs="?", help="another one")
    parser.add_argument(
        "--replay", action="store_true", help="compare A with a fresh pass over its clouds"
    )
    parser.add_argument(
        "--clouds", metavar="BAG", default="", help="bag that holds the clouds, if not A itself"
    )
    parser.add_argument("--topic", default="", help="the point cloud topic, if a bag has several")
    parser.add_argument("--json", action="store_true", help="print the result as JSON alone")
    add_detector_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    """Run ``drivert verify``."""
    from driveRT_ros.commands.compare_frames import compare
    from driveRT_ros.commands.recorded_frames import read_frames

    if args.replay and args.b:
        raise ConfigError("Option --replay compares A with a fresh pass: leave out B.")
    if args.clouds and args.b:
        raise ConfigError("Option --clouds is for one recording: leave out B.")
    given = [name for name in _OF_REPLAY if getattr(args, name)]
    if given and not args.replay:
        raise ConfigError(
            f"Option --{given[0]} is for a fresh pass: add --replay, or leave it out."
        )
    recordings = [read_frames(args.a, args.clouds)]
    comparison = None
    if args.b:
        recordings.append(read_frames(args.b))
        comparison = compare(*recordings)
    elif args.replay and recordings[0].frames:
        comparison = compare(*_replayed(args, recordings[0]))
    whole = not any(recording.damage for recording in recordings)
    if comparison is None and whole and not sum(recordings[0].checked.values()):
        raise ConfigError(
            f"Nothing in '{args.a}' can be checked: it needs fingerprints, and the detections or "
            "clouds that they were made of."
        )
    equal = whole and (comparison is None or comparison.equal)
    if args.json:
        sys.stdout.write(json.dumps(_as_json(recordings, comparison, equal), indent=1) + "\n")
    else:
        _show(recordings, comparison)
    return 0 if equal else 1


def _lidar_node(recorded: RecordedFrames) -> str:
    """Return the one LiDAR node of a recording, told by its fingerprints, else by its topic."""
    marked = {k.node for k, f in recorded.frames.items() if f.stages is not None}
    lidar = {k.node for k, f in recorded.frames.items() if f.stages and "points" in f.stages}
    plain = {
        k.node
        for k, f in recorded.frames.items()
        if f.detections is not None and f.detections.topic == f"{k.node}/output/detections"
    }
    nodes = sorted(lidar or plain - marked)
    if len(nodes) != 1:
        raise ConfigError(
            f"Option --replay takes the frames of one LiDAR node, but '{recorded.name}' has those "
            f"of {', '.join(nodes) or 'none'}."
        )
    return nodes[0]


def _replayed(
    args: argparse.Namespace, recorded: RecordedFrames
) -> tuple[RecordedFrames, RecordedFrames]:
    """Return the frames of the LiDAR node, and those of a fresh pass."""
    from driveRT_ros.commands import fresh_pass
    from driveRT_ros.commands.recorded_frames import bag_of
    from driveRT_ros.io.bag import BagReader
    from driveRT_ros.io.topics import POINT_CLOUD, choose_topic

    node = _lidar_node(recorded)
    mine = recorded.of_node(node)
    args.config = args.config or fresh_pass.parameters_of(args.a)
    config = detector_config(args)
    bag = args.clouds or str(bag_of(args.a))
    with BagReader(bag) as reader:
        topics = reader.topics
    if not args.clouds and POINT_CLOUD not in topics.values():
        raise ConfigError(
            f"'{args.a}' has no clouds for a fresh pass: name the bag that has with --clouds."
        )
    topic = choose_topic(topics, args.topic, bag=bag)
    with_bev = any("grid" in (frame.stages or {}) for frame in mine.frames.values())
    skipped: list[str] = []
    with ExitStack() as stack:
        advance: Callable[[], object] = int  # nothing but JSON may be printed
        if not args.json:
            bar = stack.enter_context(progress())
            advance = partial(bar.advance, bar.add_task("detect", total=len(mine.frames)))
        fresh = fresh_pass.fresh_frames(
            fresh_pass.joined_clouds(bag, topic, config, skipped.append),
            fresh_pass.make_pipeline(config),
            {key.stamp_ns for key in mine.frames},
            node=node,
            with_bev=with_bev,
            advance=advance,
        )
    recorded.notes += dict.fromkeys(skipped)
    return mine, fresh


def _sentences(recordings: Sequence[RecordedFrames], comparison: Comparison | None) -> list[str]:
    damage = [f"Damaged: {d.sentence}" for r in recordings for d in r.damage]
    if comparison is not None:
        return damage + comparison.sentences()
    checked = ", ".join(
        f"{count} {stage_words(stage)}s" for stage, count in recordings[0].checked.items()
    )
    whole = f"Whole: {checked or 'nothing'} of {recordings[0].name} checked, all as they were sent."
    return damage or [whole]


def _show(recordings: Sequence[RecordedFrames], comparison: Comparison | None) -> None:
    if comparison is not None:
        table = Table("stage", "equal", "different", box=None)
        for stage in comparison.stages:
            equal, other = comparison.equal_stages[stage], comparison.unequal_stages[stage]
            style = "bold" if other else ""
            table.add_row(stage_words(stage), str(equal), str(other), style=style)
        if table.row_count:
            console.print(table)
    notes = [note for recording in recordings for note in recording.notes]
    for sentence in notes + _sentences(recordings, comparison):
        console.print(sentence, markup=False)


def _as_json(
    recordings: Sequence[RecordedFrames], comparison: Comparison | None, equal: bool
) -> dict[str, Any]:
    out: dict[str, Any] = {
        "equal": equal,
        "sentences": _sentences(recordings, comparison),
        "recordings": [
            {
                "name": r.name,
                "frames": len(r.frames),
                "checked": dict(r.checked),
                "notes": r.notes,
                "damage": [
                    {
                        "sentence": d.sentence,
                        "stamp_ns": d.key and d.key.stamp_ns,
                        "index": d.index,
                        "stage": d.stage,
                    }
                    for d in r.damage
                ],
            }
            for r in recordings
        ],
    }
    if comparison is not None:
        out["compared"] = comparison.compared
        out["missing_in_a"] = [key.stamp_ns for key in comparison.missing_in_a]
        out["missing_in_b"] = [key.stamp_ns for key in comparison.missing_in_b]
        out["differences"] = [
            {
                "stamp_ns": d.key.stamp_ns,
                "index": d.index,
                "stage": d.stage,
                "detail": d.detail,
            }
            for d in comparison.unequal
        ]
        out["stages"] = {
            stage: {
                "equal": comparison.equal_stages[stage],
                "different": comparison.unequal_stages[stage],
            }
            for stage in comparison.stages
        }
    return out
