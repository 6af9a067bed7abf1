"""Bags with damage that is lived with: odd metadata, files astray, definitions that lie."""

from __future__ import annotations

import logging
import shutil
import struct

import numpy as np
import pytest

from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.io.bag import BagReader, BagWriter
from driveRT_ros.io.encode import encode_transforms
from driveRT_ros.io.scene_bag import read_poses
from driveRT_ros.io.typestore import message_type
from test.support.text_bags import STRING, write_texts

SECOND = 1_000_000_000
TIMES = [SECOND + k * 1000 for k in range(200)]


@pytest.mark.parametrize(
    "text",
    ["rosbag2_bagfile_information: 3", "[", "- 1", "", "\xff", "rosbag2_bagfile_information: {}"],
)
def test_metadata_of_any_other_form_counts_as_none(tmp_path, text):
    bag = write_texts(tmp_path / "bag", TIMES[:2])
    (bag / "metadata.yaml").write_bytes(text.encode("latin-1"))
    with BagReader(bag) as reader:
        assert reader.message_counts["/text"] == 2
        assert "cannot be used" in reader.warnings[0] and "\n" not in reader.warnings[0]


def test_files_that_were_renamed_or_added_are_read_or_named(tmp_path):
    bag = write_texts(tmp_path / "bag", TIMES[:2])
    [file] = bag.glob("*.mcap")
    shutil.copy(file, bag / "other.mcap")
    with BagReader(bag) as reader:
        assert reader.message_counts["/text"] == 2
        assert "'other.mcap', which its metadata.yaml does not list" in reader.warnings[0]
    file.unlink()
    with BagReader(bag) as reader:
        assert reader.message_counts["/text"] == 2
        assert f"lacks the file '{file.name}'" in reader.warnings[0]


def test_a_folder_that_holds_a_bag_is_told_from_none(tmp_path):
    bag = write_texts(tmp_path / "results" / "output_bag", TIMES[:1])
    with pytest.raises(ConfigError, match=f"Did you mean '{bag}'"):
        BagReader(tmp_path / "results").__enter__()
    with pytest.raises(ConfigError, match="neither a folder nor a file"):
        BagReader("/dev/null").__enter__()


def test_a_damaged_definition_of_a_type_is_replaced_by_that_of_this_package(tmp_path):
    [file] = write_texts(tmp_path / "bag", TIMES[:3]).glob("*.mcap")
    raw = file.read_bytes()
    assert b"string data" in raw
    file.write_bytes(raw.replace(b"string data", b"str'ng data"))
    with BagReader(file) as reader:
        assert [m.deserialize().data for m in reader] == [str(t) for t in TIMES[:3]]
        assert "cannot be read" in reader.warnings[0] and STRING in reader.warnings[0]


def test_damaged_bytes_of_a_message_are_one_kind_of_error(tmp_path):
    with BagWriter(tmp_path / "bag") as writer:
        writer.add_topic("/text", STRING)
        for raw in (b"", b"\0\1\0\0", b"\0\1\0\0\xff\xff\xff\x7fabc", b"\0\1\0\0\2\0\0\0\xff\0"):
            writer._writer.write(writer._connections["/text"], SECOND, raw)
    with BagReader(tmp_path / "bag") as reader:
        for message in reader:
            with pytest.raises(InvalidFrame, match="bytes of '/text' are damaged"):
                message.deserialize()


def test_transforms_that_are_none_are_skipped_with_a_warning(tmp_path, caplog):
    place = np.eye(4)
    place[:3, 3] = 1.0, 2.0, 3.0
    good = encode_transforms([(SECOND, "map", "base_link", place)], message_type)
    bad = encode_transforms([(SECOND + 1, "map", "base_link", place)], message_type)
    bad.transforms[0].transform.rotation.w = 2.0
    with BagWriter(tmp_path / "bag") as writer:
        for message in (bad, good):
            writer.write("/tf", "tf2_msgs/msg/TFMessage", message, SECOND)
    with BagReader(tmp_path / "bag") as reader, caplog.at_level(logging.WARNING):
        poses = read_poses(reader)
    np.testing.assert_allclose(poses.lookup("map", "base_link", SECOND), place)
    assert "'/tf' is skipped" in caplog.text and "unit quaternion" in caplog.text


def test_messages_that_are_announced_and_not_found_are_missed(tmp_path, caplog):
    """A damaged index hides messages from a reader that trusts it."""
    [file] = write_texts(tmp_path / "bag", TIMES).glob("*.mcap")
    raw = bytearray(file.read_bytes())
    at = raw.rindex(struct.pack("<Q", len(TIMES)))  # of the topic, in the statistics
    raw[at : at + 8] = struct.pack("<Q", 300)
    file.write_bytes(raw)
    with caplog.at_level(logging.WARNING), BagReader(file) as reader:
        assert len(list(reader)) == len(TIMES)
    assert "announces 300 messages, but 200 were found" in caplog.text
