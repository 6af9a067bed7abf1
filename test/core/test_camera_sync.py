"""The synchroniser on hand-made streams: complete sets, lost images, dead and odd cameras."""

from __future__ import annotations

import numpy as np
import pytest

from driveRT_ros.core.camera_config import SyncConfig
from driveRT_ros.core.camera_sync import MAX_OPEN_SETS, CameraSet, CameraSync
from driveRT_ros.core.errors import ConfigError
from test.support.camera_streams import (
    MS,
    PERIOD_MS,
    RIG,
    Arrival,
    cycle_of,
    feed,
    rig_stream,
)


def rig(**config: object) -> CameraSync[int]:
    return CameraSync(RIG, SyncConfig(**config))


def states(sync: CameraSync[int], now_ms: int) -> dict[str, str]:
    return {status.name: status.state for status in sync.status(now_ms * MS)}


def status_of(sync: CameraSync[int], camera: str, now_ms: int):
    return next(s for s in sync.status(now_ms * MS) if s.name == camera)


def is_whole(ready: CameraSet[int]) -> bool:
    cycles = {cycle_of(stamp_ms) for stamp_ms in ready.items.values()}
    return tuple(ready.items) == RIG and len(cycles) == 1 and not ready.missing


def test_six_cameras_make_one_set_a_turn_as_soon_as_the_last_image_is_there():
    sync = rig()
    out = feed(sync, rig_stream(range(20)))
    assert len(out) == 20
    for cycle, (now_ms, ready) in enumerate(out):
        assert is_whole(ready) and cycle_of(ready.items["FRONT"]) == cycle
        assert now_ms == 1000 + cycle * PERIOD_MS + 43 + 30
        assert ready.stamp_ns == (1000 + cycle * PERIOD_MS + 43) * MS and ready.span_ns == 43 * MS
    for status in sync.status(out[-1][0] * MS):
        counts = status.counts
        assert (status.state, counts.received, counts.used) == ("ok", 20, 20)
        assert counts.missed == counts.late == counts.unpaired == 0
    assert sync.next_timeout_ns() is None


@pytest.mark.parametrize("begin", range(6))
def test_turns_do_not_mix_wherever_in_a_turn_the_stream_begins(begin):
    """Nobody starts a node when the camera that fires first does; in a window that holds the end
    of one turn and the begin of the next, sets of two turns would never come apart again."""
    sync = rig()
    out = [ready for _, ready in feed(sync, rig_stream(range(30))[begin:])]
    assert all(is_whole(ready) for ready in out[2:]) and len(out) >= 29


def test_no_image_fills_a_gap_of_another_turn():
    rng = np.random.default_rng(3)
    lost = [(c, k) for c in RIG for k in range(400) if rng.random() < 0.1]
    arrivals = [
        Arrival(a.camera, a.stamp_ms + int(rng.integers(-3, 4)), a.at_ms)
        for a in rig_stream(range(400), without=lost)
    ]
    sync = rig()
    out = [ready for _, ready in feed(sync, arrivals)] + sync.flush()
    turns = [{cycle_of(ms + 10) for ms in ready.items.values()} for ready in out]
    assert all(len(turn) == 1 for turn in turns)
    assert sum(len(ready.items) for ready in out) >= 0.99 * len(arrivals)


def test_at_twenty_turns_a_second_no_set_is_longer_than_a_turn():
    """The gap between turns is then that between neighbours: what matters is no older image."""
    phase_ms, period_ms = (0, 7, 14, 21, 30, 39), 50
    how = {"phase_ms": phase_ms, "period_ms": period_ms}
    out = [ready for _, ready in feed(rig(), rig_stream(range(100), **how))]
    turns = [{cycle_of(ms, period_ms) for ms in ready.items.values()} for ready in out]
    assert turns == [{k} for k in range(100)] and all(len(ready.items) == 6 for ready in out)

    rng = np.random.default_rng(5)
    lost = [(c, k) for c in RIG for k in range(400) if rng.random() < 0.05]
    arrivals = rig_stream(range(400), without=lost, **how)
    out = [ready for _, ready in feed(rig(), arrivals)]
    assert all(ready.span_ns <= period_ms * MS for ready in out)
    assert sum(len(ready.items) for ready in out) >= 0.99 * len(arrivals)


def test_cameras_of_different_latency_are_paired_by_stamp_and_not_by_arrival():
    sync = rig()
    out = feed(sync, rig_stream(range(20), latency_ms=(110, 20, 95, 5, 120, 60)))
    assert len(out) == 20 and all(is_whole(ready) for _, ready in out)


@pytest.mark.parametrize("window_s", (SyncConfig().window_s, 0.1))
def test_one_lost_image_costs_one_slot_and_no_later_pair_is_shifted(window_s):
    """In a window longer than the period, the next image of the camera that fires first would fit
    into the gap; taking it would leave that camera one turn behind for ever."""
    for camera in RIG:
        sync = rig(window_s=window_s)
        out = feed(sync, rig_stream(range(20), without=[(camera, 8)]))
        sets = [ready for _, ready in out]
        assert [k for k, ready in enumerate(sets) if not is_whole(ready)] == [8]
        assert len(sets) == 20 and sets[8].missing == (camera,)
        assert {cycle_of(stamp_ms) for stamp_ms in sets[8].items.values()} == {8}
        assert out[8][0] <= 1000 + 8 * PERIOD_MS + 43 + 30 + 150
        counts = status_of(sync, camera, out[-1][0]).counts
        assert (counts.received, counts.used, counts.missed, counts.late) == (19, 19, 1, 0)


def test_a_camera_that_dies_is_named_and_soon_not_waited_for_and_joins_again():
    """An input that stops must neither stop nor slow down the others, and must be reported."""
    sync = rig()
    arrivals = [
        *rig_stream(range(10)),
        *rig_stream(range(10, 30), dead=["BACK"]),
    ]
    out = feed(sync, arrivals)
    assert len(out) == 30
    assert all(is_whole(ready) for _, ready in out[:10])
    assert all(ready.missing == ("BACK",) and len(ready.items) == 5 for _, ready in out[10:])
    for cycle, (now_ms, _) in enumerate(out[13:], 13):
        assert now_ms == 1000 + cycle * PERIOD_MS + 43 + 30, "no timeout for a dead camera"
    end_ms = out[-1][0]
    assert states(sync, end_ms) == {c: "missing" if c == "BACK" else "ok" for c in RIG}
    status = status_of(sync, "BACK", end_ms)
    assert status.counts.missed == 20 and status.last_stamp_ns == (1000 + 9 * PERIOD_MS + 33) * MS
    again = feed(sync, rig_stream(range(30, 40)))
    assert sum(is_whole(ready) for _, ready in again) >= 9
    assert set(states(sync, again[-1][0]).values()) == {"ok"}


@pytest.mark.parametrize("camera", RIG)
def test_every_camera_can_drop_out_and_come_back_whatever_its_phase(camera):
    sync = rig()
    feed(sync, [*rig_stream(range(10)), *rig_stream(range(10, 20), dead=[camera])])
    again = [ready for _, ready in feed(sync, rig_stream(range(20, 32)))]
    assert all(is_whole(ready) for ready in again[2:]) and len(again) >= 12


def test_when_every_camera_goes_silent_all_are_missing():
    sync = rig()
    out = feed(sync, rig_stream(range(5)))
    assert set(states(sync, out[-1][0] + 3000).values()) == {"missing"}
    assert sync.poll((out[-1][0] + 3000) * MS) == []


def test_cameras_that_never_come_are_missing_and_the_only_one_is_used():
    sync = rig()
    out = feed(sync, rig_stream(range(30), dead=[c for c in RIG if c != "FRONT"]))
    assert len(out) >= 26 and all(tuple(ready.items) == ("FRONT",) for _, ready in out)
    now = states(sync, out[-1][0])
    assert now.pop("FRONT") == "ok" and set(now.values()) == {"missing"}
    assert [s.last_stamp_ns for s in sync.status(out[-1][0] * MS)].count(None) == 5


def test_fewer_than_min_cameras_give_no_set():
    sync = rig(min_cameras=6)
    out = feed(sync, rig_stream(range(20), without=[("FRONT", 4), ("BACK", 9)]))
    assert len(out) == 18 and all(is_whole(ready) for _, ready in out)
    assert status_of(sync, "BACK_LEFT", out[-1][0]).counts.unpaired == 2


def test_an_image_that_comes_after_its_set_has_closed_is_late():
    sync = rig(timeout_s=0.05)
    arrivals = rig_stream(range(12), latency_ms=(30, 30, 30, 30, 30, 300))
    out = feed(sync, arrivals)
    assert all(ready.missing == ("BACK_LEFT",) for _, ready in out[:10])
    status = status_of(sync, "BACK_LEFT", out[-1][0])
    assert status.state == "late" and status.counts.late >= 8 and status.counts.used == 0
    assert status_of(sync, "FRONT", out[-1][0]).state == "ok"


def test_a_rejected_image_does_not_hold_up_its_set_and_is_reported_with_its_reason():
    sync = rig()
    feed(sync, rig_stream(range(3)))
    at_ms = 1000 + 3 * PERIOD_MS
    assert sync.reject("FRONT_LEFT", at_ms * MS, "size 640 x 480", (at_ms + 30) * MS) == []
    ((now_ms, ready),) = feed(sync, rig_stream([3], without=[("FRONT_LEFT", 3)]))
    assert now_ms == at_ms + 73 and ready.rejected == {"FRONT_LEFT": "size 640 x 480"}
    assert tuple(ready.items) == RIG[1:] and not ready.missing
    status = status_of(sync, "FRONT_LEFT", now_ms)
    assert (status.state, status.reason) == ("rejected", "size 640 x 480")
    assert (status.counts.rejected, status.counts.received, status.counts.used) == (1, 4, 3)
    feed(sync, rig_stream([4]))
    assert status_of(sync, "FRONT_LEFT", now_ms + 83).state == "ok"


def test_an_instant_without_one_usable_image_gives_no_set():
    sync = rig()
    for k, camera in enumerate(RIG):
        assert sync.reject(camera, (1000 + k) * MS, "dark", 1000 * MS) == []
    assert sync.flush() == [] and set(states(sync, 1000).values()) == {"rejected"}


def test_duplicates_are_dropped_and_counted_before_and_after_their_set_has_gone():
    sync = rig()
    arrivals = [a for a in rig_stream(range(4)) for _ in range(2)]
    out = feed(sync, arrivals)
    assert len(out) == 4 and all(is_whole(ready) for _, ready in out)
    counts = status_of(sync, "BACK_LEFT", out[-1][0]).counts
    assert (counts.received, counts.duplicates, counts.used) == (8, 4, 4)


def test_images_out_of_order_join_their_set_or_are_dropped():
    sync = rig()
    feed(sync, rig_stream(range(6)))
    early, late = 1000 + 6 * PERIOD_MS, 1000 + 7 * PERIOD_MS
    swapped = [Arrival("FRONT", late + 8, late + 30), Arrival("FRONT", early + 8, late + 31)]
    rest = [
        Arrival(a.camera, a.stamp_ms, late + 60)
        for a in rig_stream([6, 7], without=[("FRONT", 6), ("FRONT", 7)])
    ]
    sets = [ready for _, ready in feed(sync, [*swapped, *rest])]
    assert [is_whole(ready) for ready in sets] == [True, True]
    assert sets[0].stamp_ns < sets[1].stamp_ns
    # An image older than one whose set has gone, with no set to join, can only be dropped.
    assert sync.push("FRONT", 1050 * MS, 1050, (late + 200) * MS) == []
    assert status_of(sync, "FRONT", late + 200).counts.out_of_order == 1
    assert sync.jumps == 0


def test_a_bag_that_starts_again_loses_no_set():
    """Stamps go back by the length of the bag; nothing of the first pass may block the second."""
    sync, length_ms = rig(), 24 * PERIOD_MS
    arrivals = [
        Arrival(a.camera, a.stamp_ms, a.at_ms + turn * length_ms)
        for turn in range(3)
        for a in rig_stream(range(24))
    ]
    out = [ready for _, ready in feed(sync, arrivals)]
    assert len(out) == 72 and all(is_whole(ready) for ready in out)
    assert [cycle_of(ready.items["FRONT"]) for ready in out] == list(range(24)) * 3
    assert sync.jumps == 2
    assert status_of(sync, "FRONT", arrivals[-1].at_ms).counts.duplicates == 0


def test_the_last_images_of_a_pass_go_out_before_the_next_pass():
    sync = rig()
    whole = rig_stream(range(20))
    arrivals = [*whole[:-3], *(Arrival(a.camera, a.stamp_ms, 2700) for a in rig_stream(range(3)))]
    sets = [ready for _, ready in feed(sync, arrivals)]
    cycles = [cycle_of(ready.items["FRONT_LEFT"]) for ready in sets]
    assert cycles == [*range(20), 0, 1, 2]
    assert len(sets[19].items) == 3 and all(is_whole(ready) for ready in sets[20:])


def test_a_caller_that_knows_of_a_short_jump_can_clear():
    """A loop shorter than a second cannot be told from images out of order."""
    sync = rig()
    feed(sync, rig_stream(range(2)))
    sync.clear()
    assert [is_whole(ready) for _, ready in feed(sync, rig_stream(range(2)))] == [True, True]


def test_a_gap_in_the_recording_is_no_trouble():
    sync = rig()
    out = feed(sync, [*rig_stream(range(5)), *rig_stream(range(500, 505))])
    assert len(out) == 10 and all(is_whole(ready) for _, ready in out)


@pytest.mark.parametrize("drift", (1, -1))
def test_a_drifting_clock_is_measured_and_never_stops_the_others(drift):
    """The stamps of one camera run away by 1 ms a second: first it is paired, then it is not."""
    sync = rig(window_s=0.06)
    arrivals, cycles = [], 1200
    for cycle in range(cycles):
        for a in rig_stream([cycle]):
            shift = drift * cycle * PERIOD_MS // 1000 if a.camera == "FRONT_RIGHT" else 0
            arrivals.append(Arrival(a.camera, a.stamp_ms + shift, a.at_ms))
    out = feed(sync, arrivals)
    others = [c for c in RIG if c != "FRONT_RIGHT"]
    served = [ready for _, ready in out if all(c in ready.items for c in others)]
    # While the window just cannot hold all six, sets come apart for some seconds of the 100.
    assert len(served) >= 0.95 * cycles
    assert all(ready.span_ns <= 60 * MS for _, ready in out)
    at = [now for now, _ in out]
    assert max(np.diff(at)) <= 400, "a set at least every 0.4 s"
    skew_ms = status_of(sync, "FRONT_RIGHT", at[-1]).skew_ns / MS
    assert abs(skew_ms - drift * cycles * PERIOD_MS / 1000) < PERIOD_MS


@pytest.mark.parametrize("offset_ms", (100_000, -100_000))
def test_a_camera_with_another_clock_leaves_the_others_alone(offset_ms):
    sync = rig()
    arrivals = [
        Arrival(a.camera, a.stamp_ms + offset_ms * (a.camera == "BACK"), a.at_ms)
        for a in rig_stream(range(200))
    ]
    out = feed(sync, arrivals)
    assert len(out) >= 196
    assert all(len(ready.items) == 5 and ready.missing == ("BACK",) for _, ready in out[4:])
    status = status_of(sync, "BACK", arrivals[-1].at_ms)
    assert abs(status.skew_ns / MS - offset_ms) < 2 * PERIOD_MS
    assert status.state == "late" and status.counts.unpaired > 190
    assert status_of(sync, "FRONT", arrivals[-1].at_ms).state == "ok"


def test_one_clock_that_is_set_back_costs_the_others_a_few_sets_and_shifts_none():
    sync = rig()
    arrivals = [
        Arrival(a.camera, a.stamp_ms - 50_000 * (a.camera == "BACK" and a.at_ms > 3000), a.at_ms)
        for a in rig_stream(range(100))
    ]
    out = feed(sync, arrivals)
    others = [c for c in RIG if c != "BACK"]
    assert sum(all(c in ready.items for c in others) for _, ready in out) >= 96
    assert all(len({cycle_of(ms) for ms in r.items.values()}) == 1 for _, r in out[-70:])


def test_random_losses_and_jitter_are_survived_without_wrong_pairs():
    rng = np.random.default_rng(7)
    lost = [(c, k) for c in RIG for k in range(300) if rng.random() < 0.05]
    arrivals = []
    for a in rig_stream(range(300), without=lost):
        jitter_ms, delay_ms = int(rng.integers(-2, 3)), int(rng.integers(40))
        arrivals.append(Arrival(a.camera, a.stamp_ms + jitter_ms, a.at_ms + delay_ms))
    arrivals.sort(key=lambda a: a.at_ms)
    sync = rig()
    out = [ready for _, ready in feed(sync, arrivals)] + sync.flush()
    assert 297 <= len(out) <= 303
    nearest = [{round((ms - 1020) / PERIOD_MS) for ms in ready.items.values()} for ready in out]
    assert sum(len(cycles) > 1 for cycles in nearest) <= 3
    used = sum(s.counts.used for s in sync.status(0))
    assert used >= 0.99 * len(arrivals)


def test_memory_is_bounded_when_the_clock_of_arrival_stands_still():
    sync = rig()
    sets = [
        ready
        for k in range(1000)
        for ready in sync.push("FRONT", 1000 * MS + k * 200 * MS, k, now_ns=0)
    ]
    assert len(sets) >= 1000 - 2 * MAX_OPEN_SETS
    assert len(sync.flush()) <= MAX_OPEN_SETS
    assert sync.flush() == []


def test_the_same_stream_gives_the_same_sets_at_any_polling_rate():
    arrivals = rig_stream(range(30), without=[("BACK", 5), ("FRONT_LEFT", 11)])
    fast, slow = (feed(rig(), arrivals, tick_ms) for tick_ms in (1, 40))
    assert [dict(r.items) for _, r in fast] == [dict(r.items) for _, r in slow]


def test_one_camera_alone_needs_no_partner():
    sync = CameraSync(("CAM",), SyncConfig())
    for k in range(5):
        (ready,) = sync.push("CAM", k * 100 * MS, k, k * 100 * MS)
        assert ready.items == {"CAM": k} and ready.span_ns == 0


def test_an_unknown_camera_is_refused_by_name():
    with pytest.raises(ConfigError, match="'CAM_TOP' is not configured"):
        rig().push("CAM_TOP", 1, 1, 1)
