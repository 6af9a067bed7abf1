"""``drivert verify``: equal or not, which frame and stage first, and damage by one byte."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from driveRT_ros.cli import main
from driveRT_ros.commands.recorded_frames import read_frames
from driveRT_ros.core.fingerprint import STAGES
from driveRT_ros.io.bag import BagWriter
from driveRT_ros.io.fingerprint import FINGERPRINT, decode_fingerprint, encode_fingerprint
from driveRT_ros.io.typestore import deserialize, message_type, serialize
from test.support.bags import PERIOD_NS, START_NS, messages, write_drive
from test.support.recorded import (
    BOXES,
    MARKS,
    flipped,
    place_in_file,
    rewritten,
    write_recorded,
)

FRAMES = 4
BOX_TYPE = "vision_msgs/msg/Detection3DArray"
ALL_STAGES = [s for s in STAGES if s != "images"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recorded(tmp_path_factory.mktemp("verify") / "mcap", FRAMES, with_bev=True)


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run(*arguments: object) -> tuple[int, str]:
        code = main(["verify", *map(str, arguments)])
        out = capsys.readouterr()
        return code, " ".join((out.out + out.err).split())

    return run


def with_stage(stage: str, frame: int) -> Callable[[str, int, bytes], bytes]:
    """Return a change of a bag: one frame's number of one stage is another."""

    def change(topic: str, index: int, raw: bytes) -> bytes:
        if topic != MARKS or index < frame:
            return raw
        stamp_ns, stages = decode_fingerprint(deserialize(raw, FINGERPRINT))
        marks = encode_fingerprint(stamp_ns, stages | {stage: stages[stage] ^ 1}, message_type)
        return serialize(marks, FINGERPRINT)

    return change


def without(topic: str, *frames: int) -> Callable[[str, int, bytes], bytes | None]:
    return lambda t, i, raw: None if t == topic and (i in frames or not frames) else raw


def test_a_recording_is_whole_equal_to_its_copy_and_to_a_fresh_pass(recorded, verify) -> None:
    code, text = verify(recorded)
    assert code == 0 and "Whole: 4 detections messages, 4 cloud messages of" in text
    copy = shutil.copytree(recorded, recorded.parent / "copy")
    code, text = verify(recorded, copy)
    assert code == 0 and f"Equal: 4 frames of {recorded} and {copy}." in text
    code, text = verify(recorded, "--replay", "--config", recorded.parent / "network.yaml")
    assert code == 0 and "Equal: 4 frames" in text and "the fresh pass" in text
    assert all(f"{words} 4 0" in text for s, words in STAGES.items() if s in ALL_STAGES)
    code, text = verify(
        "--json", recorded, "--replay", "--config", recorded.parent / "network.yaml"
    )
    found = json.loads(text)  # nothing else is printed
    assert code == 0 and found["equal"] and found["compared"] == FRAMES


@pytest.mark.parametrize("stage", ALL_STAGES)
def test_the_first_frame_and_stage_that_differ_are_named(recorded, verify, tmp_path, stage) -> None:
    other = rewritten(recorded, tmp_path / "other", with_stage(stage, 2))
    code, text = verify(recorded, other)
    assert code == 1
    assert "frame 2 of /lidar_node, stamped 1700000000.100000000 s, differs first in" in text
    assert f"in its {STAGES[stage]} (CRC-32" in text and "2 of 4 frames differ" in text


def test_of_several_stages_the_earliest_counts(recorded, verify, tmp_path) -> None:
    late = rewritten(recorded, tmp_path / "late", with_stage("bev", 0))
    both = rewritten(late, tmp_path / "both", with_stage("coords", 0))
    code, text = verify("--json", recorded, both)
    found = json.loads(text)
    assert code == 1 and not found["equal"]
    assert [d["stage"] for d in found["differences"]] == ["coords"] * FRAMES
    assert found["stages"]["bev"] == {"equal": 0, "different": 4}
    assert found["stages"]["points"] == {"equal": 4, "different": 0}


def test_frames_missing_on_either_side_are_named(recorded, verify, tmp_path) -> None:
    """A frame that one run dropped is a difference, not something to pass over."""
    short = rewritten(
        recorded,
        tmp_path / "short",
        lambda t, i, raw: None if t in (MARKS, BOXES) and i == 1 else raw,
    )
    for arguments in ((recorded, short), (short, recorded)):
        code, text = verify(*arguments)
        assert code == 1
        assert "frame 1 of /lidar_node, stamped 1700000000.050000000 s, is missing in" in text
        assert f"is missing in {short} (1 such frames)" in text


def test_without_fingerprints_the_messages_are_compared_field_by_field(
    recorded, verify, tmp_path
) -> None:
    plain = rewritten(recorded, tmp_path / "plain", without(MARKS))

    def move(topic: str, index: int, raw: bytes) -> bytes:
        if topic != BOXES or index != 3:
            return raw
        message = deserialize(raw, BOX_TYPE)
        message.detections[1].bbox.center.position.y += 0.5
        return serialize(message, BOX_TYPE)

    moved = rewritten(plain, tmp_path / "moved", move)
    assert verify(plain, recorded)[0] == verify(plain, plain)[0] == 0
    code, text = verify(plain, moved)
    assert code == 1
    assert "frame 3 of /lidar_node, stamped 1700000000.150000000 s, differs first in its" in text
    assert "detections message (detections[1].bbox.center.position.y is " in text
    assert "1 of 4 frames differ" in text
    code, text = verify(moved, "--replay", "--config", recorded.parent / "network.yaml")
    assert code == 1 and "detections[1].bbox.center.position.y" in text


def test_another_threshold_shows_in_the_detections_of_a_fresh_pass(recorded, verify) -> None:
    code, text = verify(
        recorded, "--replay", "--config", recorded.parent / "network.yaml",
        "--set", "post_process_params.score_thresholds=[0.9]",
    )  # fmt: skip
    assert code == 1 and "frame 0" in text and "differs first in its detections (CRC-32" in text


@pytest.mark.parametrize(
    ("topic", "what"),
    [(BOXES, "its detections"), ("/points", "its cloud"), (MARKS, "the fingerprint logged at")],
)
def test_one_changed_byte_anywhere_in_a_frame_is_found_and_the_frame_is_named(
    recorded, topic, what
) -> None:
    """Storage that forgets a bit: also in headers, padding, covariances and unused fields."""
    file, start, end = place_in_file(recorded, topic, 2)
    rng = np.random.default_rng(7)
    head = range(start, start + 16)
    for at in (*head, *rng.integers(start, end, 12).tolist(), end - 1):
        with flipped(file, at, int(rng.integers(1, 256))):
            found = read_frames(str(recorded))
        assert found.damage, f"byte {at - start} of {topic}"
        assert any(what in d.sentence for d in found.damage), found.damage
        if topic != MARKS:
            named = {(d.index, d.key.stamp_ns) for d in found.damage}
            assert named == {(2, START_NS + 2 * PERIOD_NS)}
    assert read_frames(str(recorded)).damage == []


def test_damage_in_sqlite_is_found_too_and_makes_equal_fingerprints_unequal(
    recorded, verify, tmp_path
) -> None:
    bag = write_recorded(tmp_path / "sqlite", FRAMES, storage="sqlite3", with_bev=True)
    assert verify(recorded, bag)[0] == 0
    (file,) = bag.glob("*.db3")
    with sqlite3.connect(file) as db:
        query = "SELECT m.id, m.data FROM messages m JOIN topics t ON t.id = m.topic_id"
        rows = db.execute(f"{query} WHERE t.name = ? ORDER BY m.timestamp", (BOXES,)).fetchall()
        row, data = rows[1]
        damaged = bytearray(data)
        damaged[len(damaged) // 2] ^= 64
        db.execute("UPDATE messages SET data = ? WHERE id = ?", (bytes(damaged), row))
    code, text = verify(recorded, bag)
    assert code == 1
    assert f"Damaged: {bag}: frame 1 of /lidar_node, stamped 1700000000.050000000 s" in text
    code, text = verify("--json", bag)
    (damage,) = json.loads(text)["recordings"][0]["damage"]
    assert (damage["index"], damage["stage"]) == (1, "detections_msg")


def test_a_lost_message_is_damage_where_its_topic_is_recorded(recorded, verify, tmp_path) -> None:
    lost = rewritten(recorded, tmp_path / "lost", without(BOXES, 3))
    code, text = verify(lost)
    assert code == 1 and "frame 3" in text and "its detections are not in the bag" in text
    lost = rewritten(recorded, tmp_path / "lost_cloud", without("/points", 0))
    code, text = verify(lost)
    assert code == 1 and "frame 0" in text and "its cloud is not in the bag" in text


def test_what_cannot_be_told_ends_with_2_and_says_why(recorded, verify, tmp_path) -> None:
    code, text = verify(write_drive(tmp_path / "drive", 2))
    assert code == 2 and "neither fingerprints nor detections" in text
    code, text = verify(tmp_path / "nowhere")
    assert code == 2 and "nowhere" in text
    bare = rewritten(
        recorded, tmp_path / "bare", lambda t, i, raw: raw if t in (MARKS, "/tf") else None
    )
    code, text = verify(bare)
    assert code == 2 and "can be checked" in text
    assert verify(recorded, recorded, "--replay")[0] == 2
    code, text = verify(recorded, "--checkpoint", "weights")  # it would have no effect
    assert code == 2 and "--checkpoint is for a fresh pass: add --replay" in text
    blind = rewritten(
        recorded, tmp_path / "blind", lambda t, i, raw: None if t == "/points" else raw
    )
    code, text = verify(blind, "--replay")
    assert code == 2 and "has no clouds" in text and "--clouds" in text
    with BagWriter(tmp_path / "truth") as writer:
        for stamp_ns, raw in messages(recorded, BOXES):
            writer.write("/ground_truth/detections", BOX_TYPE, raw, stamp_ns)
    code, text = verify(tmp_path / "truth", "--replay")  # what is true, no node has found
    assert code == 2 and "one LiDAR node" in text and "none" in text
