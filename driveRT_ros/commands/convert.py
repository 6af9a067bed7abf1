"""Write a simulated drive or a data set as a rosbag2 that every ROS 2 tool plays.

Topics: /LIDAR_TOP (PointCloud2), /tf, /tf_static, /ground_truth/detections (Detection3DArray),
/ground_truth/objects (DetectedObjects), and of each camera /CAM_X/image_rect_compressed (or as it
came: image_rect, image_raw, image_raw/compressed) with its calibration /CAM_X/camera_info.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from driveRT_ros.commands.common import console, whole_number
from driveRT_ros.commands.sources import add_source_arguments, write_source_bag
from driveRT_ros.core.errors import ConfigError

HELP = "write a simulated drive, nuScenes or KITTI as a rosbag2"
EXAMPLES = """\
examples:
  drivert convert --sim my_bag --sim-seed 7 --duration 10
  drivert convert --sim my_bag --cameras      six images 10 times a second, too
  drivert convert --nuscenes /data/nuscenes my_bag --version v1.0-mini
  drivert convert --kitti /data/kitti my_bag
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``drivert convert``."""
    add_source_arguments(parser, bag=False, required=True)
    parser.add_argument("out", metavar="OUT", help="bag folder to write; it must not exist")
    parser.add_argument(
        "--frames", type=whole_number, default=0, metavar="N", help="at most N frames"
    )


def execute(args: argparse.Namespace) -> int:
    """Run ``drivert convert``."""
    out = Path(args.out)
    if out.exists():
        raise ConfigError(f"Bag '{out}' exists; name another folder.")
    try:
        count = write_source_bag(args, out, args.frames)
    except BaseException as error:
        shutil.rmtree(out, ignore_errors=True)  # a part would pass for the whole drive
        if isinstance(error, OSError):
            raise ConfigError(f"Bag '{out}' cannot be written: {error}.") from None
        raise
    console.print(f"Wrote {count} frames to {out}.")
    return 0
