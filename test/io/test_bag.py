"""Bags as people have them: compressed, split, without metadata, without index, cut off."""

from __future__ import annotations

import logging
import shutil
import struct

import numpy as np
import pytest
import yaml
from rosbags.highlevel import AnyReader

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.io.bag import BagReader, BagWriter
from driveRT_ros.io.mcap_scan import MAGIC, McapScan
from driveRT_ros.io.typestore import message_type, serialize
from test.support.text_bags import (
    CLOUD,
    STRING,
    edit_metadata,
    read_all,
    read_texts,
    split_bag,
    text,
    write_texts,
)

SECOND = 1_000_000_000
TIMES = [SECOND + k * 1000 for k in range(200)]
EXPECTED = [(t, str(t)) for t in TIMES]
STORAGES = ("mcap", "sqlite3")
MODES = [(s, c) for s in STORAGES for c in ("none", "message", "file", "chunk")]
MODES.remove(("sqlite3", "chunk"))


@pytest.mark.parametrize(("storage", "compression"), MODES)
def test_every_compression_gives_identical_messages(tmp_path, storage, compression):
    bag = write_texts(tmp_path / "bag", TIMES, storage=storage, compression=compression)
    with BagReader(bag) as reader:
        assert [(m.log_time_ns, m.deserialize().data) for m in reader] == EXPECTED
        assert reader.topics == {"/text": STRING}
        assert reader.message_counts == {"/text": 200}
        assert (reader.start_ns, reader.end_ns) == (TIMES[0], TIMES[-1])
        assert not reader.partial and not reader.warnings


@pytest.mark.parametrize(("storage", "compression"), MODES)
def test_a_bag_without_metadata_is_read_with_one_warning(tmp_path, storage, compression, caplog):
    """Also where only metadata would tell how it is compressed."""
    bag = write_texts(tmp_path / "bag", TIMES, storage=storage, compression=compression)
    (bag / "metadata.yaml").unlink()
    with caplog.at_level(logging.WARNING), BagReader(bag) as reader:
        assert [(m.log_time_ns, m.deserialize().data) for m in reader] == EXPECTED
        list(reader)
        assert len(reader.warnings) == 1 and "no metadata.yaml" in reader.warnings[0]
        assert not reader.partial, "nothing is missing"
    assert len(caplog.records) == 1


def test_unusable_metadata_counts_as_none(tmp_path):
    bag = write_texts(tmp_path / "bag", TIMES)
    (bag / "metadata.yaml").write_text("rosbag2_bagfile_information: {version: 8}")
    with BagReader(bag) as reader:
        assert len(list(reader)) == 200 and "cannot be used" in reader.warnings[0]


@pytest.mark.parametrize("storage", STORAGES)
def test_a_single_storage_file_is_a_bag(tmp_path, storage):
    bag = write_texts(tmp_path / "bag", TIMES, storage=storage)
    file = next(p for p in bag.iterdir() if p.suffix in (".mcap", ".db3"))
    assert read_texts(file) == EXPECTED


@pytest.mark.parametrize("storage", STORAGES)
def test_split_files_are_ordered_by_start_time_not_by_name(tmp_path, storage):
    """bag_10 sorts before bag_2 as text."""
    parts = [[SECOND + k * 100 + i for i in range(10)] for k in range(12)]
    bag = split_bag(tmp_path / "bag", parts, storage)
    with BagReader(bag) as reader:
        assert [m.log_time_ns for m in reader] == sum(parts, [])
        assert len(reader.warnings) == 1, "only the missing metadata is odd"


def test_overlap_gap_and_a_missing_split_are_reported(tmp_path):
    parts = [[SECOND, SECOND + 9], [SECOND + 5, SECOND + 20], [9 * SECOND]]
    bag = split_bag(tmp_path / "bag", parts)
    (bag / "bag_2.mcap").rename(bag / "bag_3.mcap")
    with BagReader(bag) as reader:
        assert [m.log_time_ns for m in reader] == sorted(sum(parts, []))
        warnings = "\n".join(reader.warnings)
        assert "'bag_0.mcap' and 'bag_1.mcap' overlap" in warnings
        assert "leave a gap of 8.000 s" in warnings
        assert "lack split 2 of 0 to 3" in warnings and reader.partial


@pytest.mark.parametrize("compression", ["none", "file"])
def test_paths_in_metadata_may_include_the_folder(tmp_path, compression):
    """Older compressed bags list 'bar/bar_0.mcap.zstd' from inside 'bar'."""
    bag = write_texts(tmp_path / "bar", TIMES, compression=compression)
    metadata = yaml.safe_load((bag / "metadata.yaml").read_text())["rosbag2_bagfile_information"]
    listed = metadata["relative_file_paths"]
    edit_metadata(bag, relative_file_paths=[f"bar/{name}" for name in listed])
    assert read_texts(bag) == EXPECTED
    edit_metadata(bag, relative_file_paths=["bar/" + listed[0].replace(".zstd", "")])
    assert read_texts(bag) == EXPECTED, "the suffix of the compression may be missing too"


def test_a_file_that_metadata_lists_and_nobody_has_is_reported(tmp_path):
    bag = write_texts(tmp_path / "bag", TIMES)
    edit_metadata(bag, relative_file_paths=["bag.mcap", "bag_1.mcap"])
    with BagReader(bag) as reader:
        assert len(list(reader)) == 200
        assert reader.partial and "lacks the file 'bag_1.mcap'" in reader.warnings[0]


# --- damage --------------------------------------------------------------------------------------


def big_bag(path, compression="none"):
    """Write several chunks of text that hardly compresses: a chunk is closed at 1 MiB."""
    rng = np.random.default_rng(0)
    with BagWriter(path, compression=compression) as writer:
        for t in TIMES:
            writer.write("/text", STRING, text(str(t) + rng.bytes(20_000).hex()), t)


@pytest.mark.parametrize("compression", ["none", "chunk"])
def test_a_cut_off_file_gives_all_whole_chunks_and_says_where_it_ends(tmp_path, compression):
    big_bag(tmp_path / "bag", compression)
    whole = tmp_path / "bag" / "bag.mcap"
    size = whole.stat().st_size * 7 // 10
    cut = tmp_path / "cut.mcap"
    cut.write_bytes(whole.read_bytes()[:size])
    with BagReader(cut) as reader:
        messages = [m.log_time_ns for m in reader]
        assert messages == TIMES[: len(messages)] and 100 <= len(messages) <= 140
        assert reader.partial and len(reader.warnings) == 1
        assert f"of {size}: a record" in reader.warnings[0]
        assert f"the {len(messages)} messages of" in reader.warnings[0]
        assert reader.message_counts == {"/text": len(messages)}


def test_a_cut_off_compressed_file_gives_what_can_be_unpacked(tmp_path):
    big_bag(tmp_path / "bag", "file")
    file = tmp_path / "bag" / "bag.mcap.zstd"
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 7 // 10])
    with BagReader(tmp_path / "bag") as reader:
        messages = [m.log_time_ns for m in reader]
        assert messages == TIMES[: len(messages)] and 100 <= len(messages) <= 140
        assert reader.partial and "bag.mcap.zstd" in reader.warnings[0]


def test_a_damaged_chunk_ends_the_reading_with_a_checksum_error(tmp_path):
    channel = struct.pack("<HH", 1, 1) + packed("/text") + packed("cdr") + struct.pack("<I", 0)
    good = record(
        3, struct.pack("<H", 1) + packed(STRING) + packed("ros2msg") + packed("string data")
    )
    good += record(4, channel) + message_record(5)
    file = tmp_path / "bad.mcap"
    file.write_bytes(
        MAGIC + record(1, packed("ros2") + packed("test")) + chunk_record(good)
        + chunk_record(message_record(6), crc=1)
    )  # fmt: skip
    with BagReader(file) as reader:
        assert [m.log_time_ns for m in reader] == [5]
        assert reader.partial and "fails its checksum" in reader.warnings[0]


@pytest.mark.parametrize("content", [b"", b"not a bag", MAGIC, MAGIC + b"\x01"])
def test_a_file_without_anything_readable_is_refused(tmp_path, content):
    file = tmp_path / "bag.mcap"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read"), BagReader(file):
        pass


def test_a_damaged_database_is_refused_in_a_sentence(tmp_path):
    bag = write_texts(tmp_path / "bag", TIMES, storage="sqlite3")
    (bag / "bag.db3").write_bytes((bag / "bag.db3").read_bytes()[:3000])
    with pytest.raises(ConfigError, match=r"bag\.db3"), BagReader(bag) as reader:
        list(reader)


# --- mcap files that rosbags does not write ----------------------------------------------------


def packed(value: str) -> bytes:
    return struct.pack("<I", len(value)) + value.encode()


def record(opcode: int, content: bytes) -> bytes:
    return struct.pack("<BQ", opcode, len(content)) + content


def message_record(time_ns: int) -> bytes:
    body = str(time_ns).encode() + b"\0"
    cdr = b"\0\x01\0\0" + struct.pack("<I", len(body)) + body
    return record(5, struct.pack("<HIQQ", 1, 0, time_ns, time_ns) + cdr)


def chunk_record(records: bytes, crc: int = 0) -> bytes:
    head = struct.pack("<QQQI", 0, 2**62, len(records), crc)
    return record(6, head + packed("") + struct.pack("<Q", len(records)) + records)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_file_without_index_is_read_in_time_order(tmp_path, chunked):
    """Times out of order and no index: the whole file is scanned and sorted."""
    times = [50, 10, 40, 20, 30]
    schema = struct.pack("<H", 1) + packed(STRING) + packed("ros2msg") + packed("string data")
    channel = struct.pack("<HH", 1, 1) + packed("/text") + packed("cdr") + struct.pack("<I", 0)
    parts = [record(3, schema) + record(4, channel), *map(message_record, times)]
    body = b"".join(map(chunk_record, parts)) if chunked else b"".join(parts)
    end = record(15, b"\0" * 4) + record(2, b"\0" * 20) + MAGIC
    file = tmp_path / "plain.mcap"
    file.write_bytes(MAGIC + record(1, packed("ros2") + packed("test")) + body + end)
    assert read_texts(file) == [(t, str(t)) for t in sorted(times)]
    with BagReader(file) as reader:
        assert not reader.partial and not reader.warnings
        assert [m.log_time_ns for m in reader.messages(start_ns=20, stop_ns=50)] == [20, 30, 40]


def test_the_scan_finds_what_the_index_lists(tmp_path):
    """Two ways to read one file must agree."""
    big_bag(tmp_path / "bag", "chunk")
    file = tmp_path / "bag" / "bag.mcap"
    scanned = [(t, raw) for _, t, raw in McapScan(file).messages()]
    assert scanned == [(m.log_time_ns, m.raw) for m in read_all(file)]


# --- topics ------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", STORAGES)
def test_a_topic_without_messages_is_there_and_is_no_error(tmp_path, storage):
    bag = tmp_path / "bag"
    with BagWriter(bag, storage=storage) as writer:
        writer.add_topic("/cloud", CLOUD)
        writer.write("/text", STRING, text("a"), 1)
    with BagReader(bag, ["/cloud"]) as reader:
        assert list(reader) == []
        assert reader.topics_of_type(CLOUD) == ["/cloud"]
        assert reader.message_counts == {"/cloud": 0, "/text": 1}


def test_a_bag_without_any_message_is_read(tmp_path):
    for storage in STORAGES:
        bag = write_texts(tmp_path / storage, [], storage=storage)
        with BagReader(bag) as reader:
            assert list(reader) == [] and reader.start_ns is None and "/text" in reader.topics


def test_a_missing_topic_is_refused_with_the_list_of_topics(tmp_path):
    bag = write_texts(tmp_path / "bag", TIMES)
    with pytest.raises(ConfigError, match=r"no topic '/nope'; its topics are: /text \(std_msgs"):
        read_all(bag, ["/nope"])
    with BagReader(bag) as reader, pytest.raises(ConfigError, match="/nope"):
        next(reader.messages(["/nope"]))
    assert len(read_all(bag, ["/text"])) == 200
    assert read_all(bag, []) == []


def test_two_topics_of_one_type_are_both_listed(tmp_path):
    bag = tmp_path / "bag"
    with BagWriter(bag) as writer:
        for topic in ("/b", "/a"):
            writer.add_topic(topic, CLOUD)
    with BagReader(bag) as reader:
        assert reader.topics_of_type(CLOUD) == ["/a", "/b"]
        assert reader.topics_of_type(STRING) == []


def test_a_bag_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"), BagReader(tmp_path / "none"):
        pass
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"no \.mcap or \.db3"), BagReader(tmp_path / "empty"):
        pass
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ConfigError, match="is not a bag"), BagReader(tmp_path / "notes.txt"):
        pass


# --- writing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("storage", "compression"), MODES)
def test_the_same_messages_give_the_same_bytes(tmp_path, storage, compression):
    for run in ("one", "two"):
        (tmp_path / run).mkdir()
        write_texts(tmp_path / run / "bag", TIMES, storage=storage, compression=compression)
    files = sorted(p.name for p in (tmp_path / "one" / "bag").iterdir())
    assert len(files) == 2
    for name in files:
        one, two = ((tmp_path / run / "bag" / name).read_bytes() for run in ("one", "two"))
        assert one == two, name


@pytest.mark.parametrize("storage", STORAGES)
def test_other_tools_find_type_hash_and_latched_static_transforms(tmp_path, storage):
    """A volatile /tf_static would not reach a subscriber that starts after the player."""
    bag = tmp_path / "bag"
    with BagWriter(bag, storage=storage) as writer:
        writer.add_topic("/tf_static", "tf2_msgs/msg/TFMessage")
        writer.add_topic("/objects", "autoware_perception_msgs/msg/DetectedObjects")
        writer.write("/text", STRING, text("a"), 5)
    tree = yaml.safe_load((bag / "metadata.yaml").read_text())["rosbag2_bagfile_information"]
    topics = {
        t["topic_metadata"]["name"]: t["topic_metadata"] for t in tree["topics_with_message_count"]
    }
    assert all(t["type_description_hash"].startswith("RIHS01_") for t in topics.values())
    qos = {name: yaml.safe_load(t["offered_qos_profiles"])[0] for name, t in topics.items()}
    reliable, transient_local, volatile = 1, 1, 2
    assert qos["/tf_static"]["durability"] == transient_local
    assert qos["/text"]["durability"] == volatile
    assert {q["reliability"] for q in qos.values()} == {reliable}
    with AnyReader([bag]) as reader:  # checks the hashes against the embedded definitions
        assert sorted(reader.topics) == ["/objects", "/text", "/tf_static"]


def test_a_message_that_cannot_be_written_is_refused(tmp_path):
    with BagWriter(tmp_path / "bag") as writer:
        writer.write("/text", STRING, text("a"), 1)
        with pytest.raises(ConfigError, match="is written as std_msgs/msg/String"):
            writer.write("/text", CLOUD, b"", 2)
        with pytest.raises(ConfigError, match="needs CDR bytes"):
            writer.write("/text", STRING, "a", 2)
        with pytest.raises(ConfigError, match="'no_msgs/msg/No' of topic"):
            writer.write("/no", "no_msgs/msg/No", b"", 2)
    assert len(read_all(tmp_path / "bag")) == 1
    with pytest.raises(ConfigError, match="exists already"):
        BagWriter(tmp_path / "bag")
    with pytest.raises(ConfigError, match="storage must be one of mcap, sqlite3"):
        BagWriter(tmp_path / "other", storage="rosbag1")
    with pytest.raises(ConfigError, match="needs storage 'mcap'"):
        BagWriter(tmp_path / "other", storage="sqlite3", compression="chunk")


def test_bytes_between_fields_do_not_reach_the_bag(tmp_path):
    """Fast CDR pads with whatever was in memory; equal messages must give equal recordings."""
    header_type = message_type("std_msgs/msg/Header")
    image = message_type("sensor_msgs/msg/Image")(
        header=header_type(stamp=message_type("builtin_interfaces/msg/Time")(1, 2), frame_id="a"),
        height=1,
        width=3,
        encoding="rgb8",
        is_bigendian=0,
        step=3,
        data=np.array([1, 2, 3], np.uint8),
    )
    clean = serialize(image, "sensor_msgs/msg/Image")
    padding = slice(18, 20)  # after encapsulation, stamp, and "a" with its length and its end
    assert clean[padding] == b"\0\0"
    dirty = clean[:18] + b"??" + clean[20:]
    with BagWriter(tmp_path / "bag") as writer:
        writer.write("/image", "sensor_msgs/msg/Image", dirty, 1)
        writer.write("/image", "sensor_msgs/msg/Image", b"not an image", 2)
    read = [m.raw for m in read_all(tmp_path / "bag")]
    assert read == [clean, b"not an image"], "what cannot be parsed is recorded as it came"


def test_what_was_recorded_before_an_error_stays_readable(tmp_path):
    with pytest.raises(RuntimeError), BagWriter(tmp_path / "bag") as writer:
        writer.write("/text", STRING, text("a"), 1)
        raise RuntimeError
    assert read_texts(tmp_path / "bag") == [(1, "a")]


def test_types_that_only_the_bag_defines_are_deserialized(tmp_path):
    """The definition in the bag is the one its bytes were written with."""
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    store = get_typestore(Stores.ROS2_KILTED)
    store.register(get_types_from_msg("int32 x\nstd_msgs/String s", "my_msgs/msg/Mine"))
    message = store.types["my_msgs/msg/Mine"](x=7, s=text("a"))
    with BagWriter(tmp_path / "bag") as writer:
        writer.add_topic("/mine", "my_msgs/msg/Mine", store=store)
        raw = store.serialize_cdr(message, "my_msgs/msg/Mine")
        writer.write("/mine", "my_msgs/msg/Mine", raw, 1)
    (read,) = read_all(tmp_path / "bag")
    assert read.deserialize().x == 7 and read.deserialize().s.data == "a"
    shutil.rmtree(tmp_path / "bag")
