"""Hand-made streams of camera images: who sees what, when it is stamped and when it arrives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from driveRT_ros.core.camera_sync import CameraSet, CameraSync

MS = 1_000_000
RIG = ("FRONT_LEFT", "FRONT", "FRONT_RIGHT", "BACK_RIGHT", "BACK", "BACK_LEFT")
PHASE_MS = (0, 8, 16, 23, 33, 43)
"""When in a turn of the LiDAR each camera fires, as on a nuScenes car."""
PERIOD_MS = 83


@dataclass(frozen=True)
class Arrival:
    """One image: its camera, stamp and time of arrival in ms."""

    camera: str
    stamp_ms: int
    at_ms: int


def rig_stream(
    cycles: Iterable[int],
    *,
    latency_ms: Sequence[int] = (30,) * 6,
    without: Sequence[tuple[str, int]] = (),
    dead: Sequence[str] = (),
    phase_ms: Sequence[int] = PHASE_MS,
    period_ms: int = PERIOD_MS,
) -> list[Arrival]:
    """Return the images of a six-camera rig, in order of arrival.

    Args:
        cycles: Turns to take part in.
        latency_ms: From stamp to arrival by camera.
        without: Camera and turn of images that got lost.
        dead: Cameras that deliver nothing.
        phase_ms: When in a turn each camera fires.
        period_ms: Time of a turn.
    """
    arrivals = [
        Arrival(camera, stamp_ms, stamp_ms + late_ms)
        for cycle in cycles
        for camera, phase, late_ms in zip(RIG, phase_ms, latency_ms)
        if camera not in dead and (camera, cycle) not in without
        for stamp_ms in (1000 + cycle * period_ms + phase,)
    ]
    return sorted(arrivals, key=lambda a: a.at_ms)


def feed(sync: CameraSync[int], arrivals: Iterable[Arrival], tick_ms: int = 5) -> list[tuple]:
    """Deliver images in order, polling in between, and return (ms, set) as they come out.

    The item of an image is its stamp in ms, so that pairs can be checked.
    """
    out: list[tuple[int, CameraSet[int]]] = []
    now_ms: int | None = None
    for arrival in arrivals:
        while now_ms is not None and now_ms + tick_ms <= arrival.at_ms:
            now_ms += tick_ms
            out += [(now_ms, ready) for ready in sync.poll(now_ms * MS)]
        now_ms = arrival.at_ms
        ready_sets = sync.push(arrival.camera, arrival.stamp_ms * MS, arrival.stamp_ms, now_ms * MS)
        out += [(now_ms, ready) for ready in ready_sets]
    return out


def cycle_of(stamp_ms: int, period_ms: int = PERIOD_MS) -> int:
    """Return the turn to which a stamp belongs."""
    return (stamp_ms - 1000) // period_ms
