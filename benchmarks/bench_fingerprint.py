"""Time what a fingerprint adds to a frame, from a serialized cloud to serialized detections.

    python benchmarks/bench_fingerprint.py --device cuda --precision fp16

Frames with and without take turns, and each first in every other round; the middle of the
differences is what counts. Nodes take the numbers of both messages after they published the result:
their part, on the host alone, is told apart. On a GPU the engine is warm, and the kernels of both
are summed, too: a busy host makes the first ratios larger, not the last.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

import torch  # noqa: E402

from driveRT_ros.bench.sensor import sensor_clouds  # noqa: E402
from driveRT_ros.bench.timing import kernel_times, warm_profiler  # noqa: E402
from driveRT_ros.core.config import LidarConfig  # noqa: E402
from driveRT_ros.core.pipeline import LidarPipeline  # noqa: E402
from driveRT_ros.core.sweeps import SweepBuffer  # noqa: E402
from driveRT_ros.io.cdr import cloud_crc32, detections_cdr  # noqa: E402
from driveRT_ros.io.pointcloud import decode  # noqa: E402
from driveRT_ros.io.topics import POINT_CLOUD  # noqa: E402
from driveRT_ros.io.typestore import deserialize  # noqa: E402


class Detector:
    """One cloud at a time, past sweeps included.

    Args:
        config: Of the detector.
        device: Where it runs.
    """

    def __init__(self, config: LidarConfig, device: str) -> None:
        self._config, self._pipeline = config, LidarPipeline(config, None, device)
        self._sweeps = SweepBuffer(config.densification_params)
        self._pipeline.warm_up()

    @property
    def on_gpu(self) -> bool:
        """Whether frames run on a GPU."""
        return self._pipeline.device.type == "cuda"

    def frame_ms(self, raw: bytes, with_fingerprint: bool) -> tuple[float, float]:
        """Return how long one frame took, and then the numbers of its messages."""
        begin = time.perf_counter()
        msg = deserialize(raw, POINT_CLOUD)
        cloud = decode(msg, config=self._config.input)
        points = self._sweeps.push(cloud, torch.eye(4, dtype=torch.float64).numpy())
        found = self._pipeline.process(points, with_fingerprint=with_fingerprint)
        message = detections_cdr(found, cloud.stamp_ns, cloud.frame_id)
        published = time.perf_counter()
        if with_fingerprint:
            numbers = {**found.report.fingerprint, "a": cloud_crc32(msg), "b": zlib.crc32(message)}
            assert len(numbers) == 7
        return (published - begin) * 1e3, (time.perf_counter() - published) * 1e3


def kernels_us(detector: Detector, raw: bytes, repeats: int) -> dict[str, float]:
    """Return the sums of the kernels of a frame without (plain) and with a fingerprint (marked)."""

    def run(mark: Callable[[str], None]) -> None:
        for stage, which in (("plain", False), ("marked", True)):
            mark(stage)
            detector.frame_ms(raw, which)

    stages = kernel_times(run, repeats)["stages"]
    return {stage: stages[stage]["median"] for stage in ("plain", "marked")}


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--mb", type=float, default=0.694, help="million bytes of a cloud")
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    detector = Detector(LidarConfig.from_dict({"precision": args.precision}), args.device)
    clouds = sensor_clouds(args.mb, 4).raw
    for raw in clouds:
        detector.frame_ms(raw, True)
    plain, stages, messages = [], [], []
    for i in range(args.rounds):
        raw, first = clouds[-1], bool(i % 2)  # the same past for both
        times = {which: detector.frame_ms(raw, which) for which in (first, not first)}
        plain.append(times[False][0])
        stages.append(times[True][0] - times[False][0])
        messages.append(times[True][1])
    frame_ms = statistics.median(plain)
    print(f"frame {frame_ms:.3f} ms")
    for part, times_ms in (("stages", stages), ("messages, behind it", messages)):
        added_ms = statistics.median(times_ms)
        print(f"fingerprint of {part}: {added_ms:.3f} ms, {added_ms / frame_ms:.1%}")
    if detector.on_gpu:
        warm_profiler()
        sums = kernels_us(detector, clouds[-1], 20)
        added_us = sums["marked"] - sums["plain"]
        share = added_us / sums["plain"]
        print(f"kernels {sums['plain']:.1f} us, of a fingerprint {added_us:.1f} us: {share:.2%}")


if __name__ == "__main__":
    main()
