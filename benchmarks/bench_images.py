"""Time what a CPU core does for six cameras: decode, undistort, render.

Usage: python benchmarks/bench_images.py [--repeats 30] [--jpeg FILE ...]

Without files, a simulated image of 1600 x 900 pixels stands for a photograph; it is smaller.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np

from driveRT_ros.io.camera import Undistorter, decode_camera_info
from driveRT_ros.io.image import decode_compressed, decode_image
from driveRT_ros.sim.cameras import Cameras
from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.world import World

WIDTH, HEIGHT = 1600, 900


def median_ms(run: Callable[[], object], repeats: int) -> float:
    """Return the median process time of a call in milliseconds."""
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        run()
        times.append((time.process_time() - begin) * 1e3)
    return float(np.median(times))


def raw_message(encoding: str, bytes_per_pixel: float) -> SimpleNamespace:
    """Return an Image of noise."""
    row = round(WIDTH * (1 if encoding == "nv12" else bytes_per_pixel))
    data = np.random.default_rng(0).integers(
        0, 256, round(WIDTH * HEIGHT * bytes_per_pixel), dtype=np.uint8
    )
    return SimpleNamespace(
        encoding=encoding, width=WIDTH, height=HEIGHT, step=row, is_bigendian=0, data=data
    )


def calibration() -> SimpleNamespace:
    """Return a CameraInfo with five coefficients."""
    K = np.array([[1266.0, 0, 816], [0, 1266, 491], [0, 0, 1]])
    roi = SimpleNamespace(x_offset=0, y_offset=0, width=0, height=0)
    return SimpleNamespace(
        header=SimpleNamespace(frame_id="CAM"), width=WIDTH, height=HEIGHT, k=K.reshape(-1),
        d=[-0.3, 0.1, 0.0, 0.0, 0.0], distortion_model="plumb_bob", r=np.eye(3).reshape(-1),
        p=np.zeros(12), binning_x=0, binning_y=0, roi=roi,
    )  # fmt: skip


def main() -> None:
    """Print one line for each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--jpeg", nargs="*", type=Path, default=[])
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    config = {"num_sweeps": 1, "cameras.enabled": True}
    cameras = Cameras(World(SimConfig.from_dict(config)))
    files = [path.read_bytes() for path in arguments.jpeg]
    files = files or [frame.encoded or b"" for frame in cameras.frames(0)]
    for data in files:
        ms = median_ms(lambda data=data: decode_compressed(data, "jpeg"), arguments.repeats)
        print(f"decode jpeg {WIDTH} x {HEIGHT}, {len(data):,} bytes: {ms:.2f} ms")
    kinds = {"rgb8": 3, "bgr8": 3, "bgra8": 4, "mono8": 1, "bayer_rggb8": 1, "bayer_rggb16": 2}
    for encoding, size in (kinds | {"yuyv": 2, "nv12": 1.5}).items():
        message = raw_message(encoding, size)
        ms = median_ms(lambda message=message: decode_image(message), arguments.repeats)
        print(f"decode {encoding}: {ms:.2f} ms")
    image, undistorter = decode_compressed(files[0], "jpeg"), Undistorter()
    intrinsics = decode_camera_info(calibration())
    begin = time.process_time()
    undistorter.apply(image, intrinsics)
    first = (time.process_time() - begin) * 1e3
    ms = median_ms(lambda: undistorter.apply(image, intrinsics), arguments.repeats)
    print(f"undistort: {ms:.2f} ms, the first time {first:.1f} ms")
    for seed in range(3):
        for quality in (0, 90):
            values = config | {"seed": seed, "cameras.jpeg_quality": quality}
            cameras = Cameras(World(SimConfig.from_dict(values)))
            cameras.frames(0)
            ms = median_ms(lambda cameras=cameras: cameras.frames(0), 5)
            what = "with jpeg" if quality else "without jpeg"
            print(f"render six images {what}, seed {seed}: {ms:.0f} ms")


if __name__ == "__main__":
    main()
