"""Replay pacing, lockstep and recording order, tested without ROS."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest

from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.io.encode import encode_transforms
from driveRT_ros.io.typestore import message_type, serialize
from driveRT_ros.nodes.lockstep import Lockstep, SetLockstep
from driveRT_ros.nodes.pacing import Pacer
from driveRT_ros.nodes.playback import Playback
from driveRT_ros.nodes.raw import canonical, header_stamp_ns
from driveRT_ros.nodes.recording import ReorderBuffer, TopicFilter
from driveRT_ros.nodes.replay_config import ReplayConfig

MS = 1_000_000


@dataclass
class Recorded:
    topic: str
    log_time_ns: int
    raw: bytes


def stamp_of(raw: bytes) -> int:
    if b"@" not in raw:
        raise InvalidFrame("no stamp")
    return int(raw.split(b"@")[1])


def bag(clouds: int = 5, period_ms: int = 50, start_ms: int = 1_000) -> list[Recorded]:
    """A static transform in the middle, then clouds with a transform each, as drivers log them."""
    out = []
    for i in range(clouds):
        t = (start_ms + i * period_ms) * MS
        out.append(Recorded("/tf", t, b"tf@%d" % t))
        out.append(Recorded("/points", t + MS, b"cloud@%d" % t))
    out.insert(3, Recorded("/tf_static", (start_ms + 60) * MS, b"static"))
    return out


class Sink:
    """Collects what a playback sends and, as a consumer would, answers clouds after a delay."""

    def __init__(self, messages, config: ReplayConfig, answer_s: float | None = None):
        self.sent: list[tuple[str, bytes]] = []
        self.when: list[float] = []
        self.clock: list[int] = []
        self.warnings: list[str] = []
        self.in_flight = self.most_in_flight = 0
        self.answer_s = answer_s
        self.messages = messages
        self.pending: queue.Queue[int] = queue.Queue()
        threading.Thread(target=self.answer_all, daemon=True).start()
        self.playback = Playback(config, self.publish, self.clock.append, self.warnings.append)
        self.answer = self.playback.lockstep.answer

    def read(self, topics):
        return (m for m in self.messages if topics is None or m.topic in topics)

    def publish(self, topic, raw):
        self.sent.append((topic, raw))
        self.when.append(time.monotonic())
        if topic == "/points" and self.answer_s is not None and b"@" in raw:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            self.pending.put(stamp_of(raw))

    def answer_all(self):
        while True:
            stamp_ns = self.pending.get()
            time.sleep(self.answer_s)
            self.in_flight -= 1
            self.answer(stamp_ns)

    def run(self):
        return self.playback.run(self.read, stamp_of)


def test_static_transforms_come_first_wherever_they_lie_in_the_bag():
    sink = Sink(bag(), ReplayConfig(cloud_topic="/points", rate=0.0, start_offset_s=0.1))
    sink.run()
    assert sink.sent[0] == ("/tf_static", b"static")
    assert [topic for topic, _ in sink.sent].count("/tf_static") == 1


def test_every_message_is_sent_once_in_order_and_at_sensor_rate():
    messages = bag(clouds=5, period_ms=100_000)
    sink = Sink(messages, ReplayConfig(cloud_topic="/points", rate=1000.0))
    report = sink.run()
    moving = [(m.topic, m.raw) for m in messages if m.topic != "/tf_static"]
    assert sink.sent[1:] == moving
    assert report.clouds == 5 and report.published == {"/tf_static": 1, "/tf": 5, "/points": 5}
    span = sink.when[-1] - sink.when[1]
    assert 0.4 <= span < 40.0  # 400 s of bag at a thousand times the speed


def test_the_clock_rises_through_a_pass_and_falls_back_when_the_bag_loops():
    config = ReplayConfig(cloud_topic="/points", rate=4.0, loop=True, passes=2)
    sink = Sink(bag(), config)
    report = sink.run()
    falls = [i for i in range(1, len(sink.clock)) if sink.clock[i] <= sink.clock[i - 1]]
    assert report.passes == 2 and len(falls) == 1
    assert sink.clock[0] == sink.clock[falls[0]] == 1_000 * MS
    half = len(sink.sent) // 2
    assert sink.sent[:half] == sink.sent[half:]


def test_lockstep_never_runs_ahead_of_a_slow_consumer_and_loses_nothing():
    config = ReplayConfig(cloud_topic="/points", rate=0.0, lockstep_topic="/out", lockstep_depth=2)
    sink = Sink(bag(clouds=8), config, answer_s=0.1)
    report = sink.run()
    assert sink.most_in_flight == 2
    assert report.clouds == 8 and sink.in_flight == 0 and not report.unanswered_stamps_ns


def test_a_slow_consumer_delays_the_replay_instead_of_causing_a_burst():
    config = ReplayConfig(cloud_topic="/points", rate=1.0, lockstep_topic="/out")
    sink = Sink(bag(clouds=3, period_ms=20), config, answer_s=0.1)
    report = sink.run()
    times = [t for t, (topic, _) in zip(sink.when, sink.sent) if topic == "/points"]
    assert all(b - a >= 0.09 for a, b in zip(times, times[1:]))
    assert report.behind_s > 0.1


def test_a_cloud_without_answer_is_named_counted_and_passed_over():
    config = ReplayConfig(
        cloud_topic="/points", rate=0.0, lockstep_topic="/out", lockstep_timeout_s=0.1
    )
    sink = Sink(bag(clouds=2), config)
    report = sink.run()
    assert report.unanswered_stamps_ns == [1_000 * MS, 1_050 * MS]
    assert "1000000000 ns" in sink.warnings[0] and "/out" in sink.warnings[0]
    assert "2 clouds got no answer" in report.sentence()


def test_an_answer_settles_what_was_sent_before_it_even_when_stamps_repeat():
    lockstep, cancelled = Lockstep(), threading.Event()
    for stamp in (5, 5, 7):
        lockstep.sent(stamp)
    lockstep.answer(5)
    assert lockstep.wait(2, 0.05, cancelled) is None
    assert lockstep.wait(1, 0.05, cancelled) == 5  # the second 5 is still out
    lockstep.answer(9)  # nobody sent 9: all older ones are settled
    assert lockstep.wait(0, 0.05, cancelled) is None


def test_a_dropped_cloud_is_settled_alone_however_early_the_consumer_says_so():
    lockstep, cancelled = Lockstep(), threading.Event()
    for stamp in (5, 6, 7):
        lockstep.sent(stamp)
    lockstep.drop(6)  # while 5 is still in work
    lockstep.drop(99)  # sent by somebody else
    assert lockstep.wait(2, 0.05, cancelled) is None
    assert lockstep.wait(1, 0.05, cancelled) == 5
    lockstep.answer(7)
    assert lockstep.wait(0, 0.05, cancelled) is None
    assert (lockstep.answered, lockstep.dropped) == (1, 2)


def test_dropped_clouds_are_not_waited_for_and_counted():
    config = ReplayConfig(cloud_topic="/points", rate=0.0, lockstep_topic="/out")
    sink = Sink(bag(clouds=4), config)
    note = sink.playback.lockstep
    sink.answer = lambda stamp_ns: (
        note.drop(stamp_ns) if stamp_ns % (100 * MS) else note.answer(stamp_ns)
    )
    sink.answer_s = 0.0
    report = sink.run()
    assert (report.clouds, report.dropped, report.unanswered_stamps_ns) == (4, 2, [])
    assert "2 clouds were dropped by the consumer" in report.sentence()


def test_a_cloud_without_readable_stamp_is_played_and_not_waited_for():
    messages = bag(clouds=2)
    messages[1].raw = b"garbage"
    config = ReplayConfig(cloud_topic="/points", rate=0.0, lockstep_topic="/out")
    sink = Sink(messages, config)
    sink.answer_s = 0.0
    report = sink.run()
    assert report.clouds == 2 and not report.unanswered_stamps_ns
    assert ("/points", b"garbage") in sink.sent and "has no stamp" in sink.warnings[0]


def test_cancelling_ends_a_wait_at_once():
    config = ReplayConfig(cloud_topic="/points", rate=0.001)
    sink = Sink(bag(), config)
    threading.Timer(0.1, sink.playback.cancelled.set).start()
    assert sink.run().clouds <= 1  # the second is due after 50 s


def test_max_clouds_stops_before_the_next_cloud():
    sink = Sink(bag(), ReplayConfig(cloud_topic="/points", rate=0.0, max_clouds=2))
    assert sink.run().clouds == 2
    assert sink.sent[-1][0] == "/tf"


def test_selected_topics_only():
    sink = Sink(bag(), ReplayConfig(cloud_topic="/points", rate=0.0, topics=("/points",)))
    assert set(sink.run().published) == {"/points"}


def test_an_offset_beyond_the_end_is_refused_with_a_sentence():
    sink = Sink(bag(), ReplayConfig(cloud_topic="/points", rate=0.0, start_offset_s=60.0))
    with pytest.raises(ConfigError, match="start_offset_s = 60.0"):
        sink.run()


def test_pacer_forgives_a_stall_once():
    now = [0]
    pacer = Pacer(1.0, lambda: now[0])
    pacer.start(100 * MS)
    now[0] = 80 * MS
    assert pacer.remaining_s(200 * MS) == pytest.approx(0.02)
    assert pacer.slip(200 * MS) == 0.0
    now[0] = 150 * MS
    assert pacer.slip(200 * MS) == pytest.approx(0.05)
    assert pacer.remaining_s(250 * MS) == pytest.approx(0.05)


@pytest.mark.parametrize("endian, flag", [("<", 1), (">", 0)])
def test_header_stamp_is_read_in_both_byte_orders(endian, flag):
    import struct

    raw = bytes([0, flag, 0, 0]) + struct.pack(endian + "iI", 1_532_402_927, 647_951_000) + b"\0"
    assert header_stamp_ns(raw) == 1_532_402_927_647_951_000


def test_a_message_too_short_for_a_header_is_refused():
    with pytest.raises(InvalidFrame, match="too short"):
        header_stamp_ns(b"\0\1\0\0\5")


def test_equal_messages_become_equal_bytes_whatever_lies_between_their_fields():
    kind = "geometry_msgs/msg/TransformStamped"
    message = encode_transforms([(7, "map", "x", np.eye(4))], message_type).transforms[0]
    clean = serialize(message, kind)
    gap = clean.index(b"x\0") + 2  # behind the name, before the aligned doubles
    dirty = clean[:gap] + b"\xee" + clean[gap + 1 :] + b"\x2c"
    assert canonical(clean, kind) == canonical(dirty, kind) == clean
    with pytest.raises(InvalidFrame, match="are no geometry_msgs"):
        canonical(clean[:30], kind)


def test_reordering_writes_by_log_time_then_topic_and_survives_a_backward_jump():
    written = []
    buffer = ReorderBuffer(lambda *m: written.append(m), hold_s=1.0)
    s = 1_000_000_000
    for raw, topic, t, now_s in [
        (b"1", "/b", 5 * s, 0.0), (b"2", "/a", 5 * s, 0.1), (b"3", "/a", 5 * s - 9, 0.2),
        (b"4", "/a", 6 * s, 0.3),
    ]:  # fmt: skip
        buffer.add(topic, raw, t, now_s)
    buffer.write_old(0.9)
    assert written == []
    buffer.write_old(1.25)
    assert [raw for _, raw, _ in written] == [b"3", b"2", b"1"]
    buffer.add("/b", b"5", 2 * s, 1.3)  # the bag starts again
    buffer.add("/a", b"6", 1 * s + 1, 1.4)
    buffer.flush()
    assert [raw for _, raw, _ in written] == [b"3", b"2", b"1", b"4", b"6", b"5"]


def test_what_is_heard_before_simulated_time_begins_gets_its_first_time():
    written = []
    buffer = ReorderBuffer(lambda *m: written.append(m), hold_s=1.0)
    for topic, t in [("/log", 0), ("/points", 1_000), ("/log", 0)]:
        buffer.add(topic, b"", t, 0.0)
    buffer.flush()
    assert written == [("/log", b"", 1_000), ("/log", b"", 1_000), ("/points", b"", 1_000)]


def test_topic_filter_takes_names_patterns_and_types():
    wanted = TopicFilter.parse(["/lidar/output/*", "/tf", "/x:std_msgs/msg/Empty"])
    assert wanted.wants("/lidar/output/detections") and wanted.wants("/tf") and wanted.wants("/x")
    assert not wanted.wants("/tf_static")
    assert wanted.named() == ["/x", "/tf"]
    with pytest.raises(ConfigError, match="'/x:nonsense'"):
        TopicFilter.parse(["/x:nonsense"])
    with pytest.raises(ConfigError, match="'points'"):
        TopicFilter.parse(["points"])


def settled(lock: SetLockstep) -> bool:
    """Tell whether nobody has to wait."""
    return lock.wait(0.01, threading.Event())


def test_images_are_waited_for_once_every_stream_has_sent_one():
    lock = SetLockstep(["a", "b", "c"])
    for stamp, stream in enumerate("ab", 10):
        lock.sent(stream, stamp)
        assert settled(lock)  # nobody can answer half a set
    lock.sent("c", 12)
    threading.Timer(0.1, lambda: lock.answer(12)).start()
    assert lock.wait(90.0, threading.Event())
    assert lock.answered == 1


def test_answer_to_an_older_set_settles_no_newer_one():
    lock = SetLockstep(["a", "b"])
    for stream in "ab":
        lock.sent(stream, 20)
    lock.answer(10)
    assert not settled(lock)


def test_set_that_went_without_a_newer_refused_image_is_settled_as_a_whole():
    lock = SetLockstep(["a", "b"])
    lock.sent("a", 20)
    lock.sent("b", 21)  # refused by the consumer: the set has the stamp 20
    lock.answer(20)
    lock.sent("a", 30)
    assert settled(lock)


def test_dead_stream_stops_the_waiting_and_not_the_playing():
    lock = SetLockstep(["a", "b"])
    for stamp in range(50):
        lock.sent("a", stamp)
        assert settled(lock)


def test_after_an_answer_that_never_came_images_are_not_waited_for():
    lock = SetLockstep(["a"])
    lock.sent("a", 1)
    assert not settled(lock)
    lock.sent("a", 2)
    assert settled(lock)


def test_playback_sends_no_second_image_before_the_first_set_is_answered():
    images = ["/l/image", "/r/image"]
    recorded = [
        Recorded(topic, t * 10 * MS, b"image@%d" % (t * 10 * MS))
        for t in range(1, 6)
        for topic in images
    ]
    outstanding, most = set(), 0
    answers: queue.Queue[int] = queue.Queue()

    def publish(topic, raw):
        nonlocal most
        assert topic not in outstanding, "a camera was played before its set was answered"
        outstanding.add(topic)
        most = max(most, len(outstanding))
        if len(outstanding) == 2:
            answers.put(stamp_of(raw))

    config = ReplayConfig(rate=0.0, lockstep_images_topic="/grid", wait_for_subscriber_s=0.0)
    playback = Playback(config, publish, lambda _: None, lambda _: None, images)

    def consume():
        while (stamp := answers.get()) >= 0:
            time.sleep(0.02)
            outstanding.clear()
            playback.images.answer(stamp)

    consumer = threading.Thread(target=consume)
    consumer.start()
    report = playback.run(lambda topics: [m for m in recorded if topics is None], stamp_of)
    answers.put(-1)
    consumer.join()
    assert report.published == {"/l/image": 5, "/r/image": 5}
    assert (most, playback.images.answered) == (2, 5)
