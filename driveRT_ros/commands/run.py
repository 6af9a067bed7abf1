"""Detect offline in a bag, or live on topics; with --camera, look through cameras instead.

With --bag one node reads the bag itself, as fast as it can detect: nothing is lost, and the
recorded detections are the same bytes at any speed. Without --bag the node listens until Ctrl-C.
"""

from __future__ import annotations

import argparse
import time

from driveRT_ros.commands import build_only
from driveRT_ros.commands.common import (
    LIDAR_NODE,
    RECORDED,
    add_detector_arguments,
    add_output_arguments,
    detector_config,
    output_folder,
    require_ros,
    whole_number,
)
from driveRT_ros.commands.supervised import Offline, become, exit_code, refuse_bag_options
from driveRT_ros.core.errors import ConfigError

HELP = "detect offline in a bag (nothing is lost), or live on topics"
EXAMPLES = """\
examples:
  drivert run --bag my_bag
  drivert run --bag my_bag --topic /points_raw --out results --checkpoint voxelnext.safetensors
  drivert run --topic /sensing/lidar/pointcloud        live, until Ctrl-C
  drivert run --camera --bag my_bag                    all cameras of the bag, with pictures
  drivert run --build-only                             compile and load, then end: first boot
  drivert run --build-only 9.0                         the same for a GPU that is elsewhere
  drivert run --camera --images /front/image_raw/compressed /back/image_raw/compressed
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``drivert run``."""
    parser.add_argument("--bag", metavar="PATH", help="a rosbag2 folder or storage file")
    parser.add_argument(
        "--topic", default="", help="the point cloud topic; needed live, or if a bag has several"
    )
    parser.add_argument(
        "--camera", action="store_true", help="run the camera node instead of the LiDAR node"
    )
    parser.add_argument(
        "--images", nargs="+", default=[], metavar="TOPIC", help="live image topics, with --camera"
    )
    parser.add_argument(
        "--frames",
        type=whole_number,
        default=0,
        metavar="N",
        help="at most N clouds, or N of each camera",
    )
    parser.add_argument(
        "--record-all", action="store_true", help="record every output, grids and pictures too"
    )
    parser.add_argument(
        "--build-only",
        nargs="?",
        const=build_only.HERE,
        metavar="X.Y",
        help="compile kernels, load, warm up and end; with a compute capability (9.0) compile for "
        "that GPU, which need not be there",
    )
    add_detector_arguments(parser)
    add_output_arguments(parser, "drivert_run")


def execute(args: argparse.Namespace) -> int:
    """Run ``drivert run``."""
    if args.build_only in (None, build_only.HERE):
        require_ros()
    if args.build_only is not None:
        return build_only.execute(args)
    if args.camera:
        from driveRT_ros.commands import run_cameras

        return run_cameras.execute(args)
    if args.images:
        raise ConfigError("Option --images needs --camera.")
    return _offline(args) if args.bag else _live(args)


def _offline(args: argparse.Namespace) -> int:
    from driveRT_ros.commands import results

    begin = time.monotonic()
    config = detector_config(args)
    bag, topic, clouds = results.look_at_bag(args.bag, args.topic)
    clouds = min(clouds, args.frames or clouds)
    out = output_folder(args)
    params = {"bag_path": bag, "cloud_topic": topic, "max_clouds": args.frames}
    node = Offline(LIDAR_NODE, "offline_node", config, params, RECORDED, "detect")
    recorded_path, partial = node.run(out, record_all=args.record_all)
    recorded = results.read_recorded(recorded_path)
    results.show_latency(recorded, out)
    code = results.report(recorded, clouds, out, bag=bag, seconds=time.monotonic() - begin)
    return exit_code(code, partial)


def _live(args: argparse.Namespace) -> int:
    config = detector_config(args)
    if not args.topic:
        raise ConfigError("Say what to detect in: --bag PATH for a recording, --topic NAME live.")
    refuse_bag_options(args)
    become(LIDAR_NODE, config, {"~/input/pointcloud": args.topic})
