"""Detect offline in a bag, or live on topics; with --camera, look through cameras instead.

With --bag one node reads the bag itself, as fast as it can detect: nothing is lost, and the
recorded detections are the same bytes at any speed. Without --bag the node listens until Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from driveRT_ros.commands.common import (
    LIDAR_NODE,
    RECORDED,
    add_detector_arguments,
    add_output_arguments,
    config_value,
    console,
    detector_config,
    follow_clouds,
    output_folder,
    require_ros,
    write_parameter_file,
)
from driveRT_ros.commands.demo import start_recorder, stop_recording, summary_line
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.nodes.process_env import node_command, node_environment, private_domain
from driveRT_ros.nodes.processes import Supervisor
from driveRT_ros.nodes.stop import PARTIAL

if TYPE_CHECKING:
    from driveRT_ros.core.config import LidarConfig

HELP = "detect offline in a bag (nothing is lost), or live on topics"
EXAMPLES = """\
examples:
  drivert run --bag my_bag
  drivert run --bag my_bag --topic /points_raw --out results --checkpoint voxelnext.safetensors
  drivert run --topic /sensing/lidar/pointcloud        live, until Ctrl-C
  drivert run --camera --bag my_bag                    all cameras of the bag, with pictures
  drivert run --camera --images /front/image_raw/compressed /back/image_raw/compressed
"""

SUBSCRIBER_S = 20.0


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
        "--frames", type=int, default=0, metavar="N", help="at most N clouds, or N of each camera"
    )
    parser.add_argument(
        "--record-all", action="store_true", help="record every output, grids and pictures too"
    )
    add_detector_arguments(parser)
    add_output_arguments(parser, "drivert_run")


def execute(args: argparse.Namespace) -> int:
    """Run ``drivert run``."""
    require_ros()
    if args.camera:
        from driveRT_ros.commands import run_cameras

        return run_cameras.execute(args)
    if args.images:
        raise ConfigError("Option --images needs --camera.")
    if args.bag:
        return _offline(args)
    return _live(args, detector_config(args))


def _offline(args: argparse.Namespace) -> int:
    from driveRT_ros.commands import results

    begin = time.monotonic()
    config = detector_config(args)
    bag, topic, clouds = results.look_at_bag(args.bag, args.topic)
    clouds = min(clouds, args.frames or clouds)
    out = output_folder(args)
    with ExitStack() as stack:
        domain = None
        if "ROS_DOMAIN_ID" not in os.environ:
            domain = stack.enter_context(private_domain())
        supervisor = stack.enter_context(Supervisor(out / "logs", node_environment(domain)))
        start_recorder(supervisor, out / "output_bag", RECORDED, record_all=args.record_all)
        node = supervisor.start(
            LIDAR_NODE,
            node_command(
                "offline_node",
                params_file=write_parameter_file(config, out / "lidar_node.yaml"),
                params={
                    "bag_path": bag,
                    "cloud_topic": topic,
                    "max_clouds": args.frames,
                    "wait_for_subscriber_s": SUBSCRIBER_S,
                    "use_sim_time": True,
                },
            ),
        )
        follow_clouds(supervisor, node, "detect")
        console.print(summary_line(node))
        partial = node.popen.returncode == PARTIAL
        stop_recording(supervisor)
    recorded = results.read_recorded(out / "output_bag")
    results.show_latency(recorded, out)
    code = results.report(recorded, clouds, out, bag=bag, seconds=time.monotonic() - begin)
    if partial:
        console.print("Part of the bag could not be read; the results cover the rest.")
    return code or (PARTIAL if partial else 0)


def _live(args: argparse.Namespace, config: LidarConfig) -> int:
    """Become the LiDAR node, so that Ctrl-C and exit code are its own."""
    from driveRT_ros.core.config import LidarConfig

    if not args.topic:
        raise ConfigError("Say what to detect in: --bag PATH for a recording, --topic NAME live.")
    if args.out or args.frames or args.record_all:
        raise ConfigError("Options --out, --frames and --record-all need --bag.")
    changed = {
        p.name: value
        for p in LidarConfig.parameters()
        if (value := config_value(config, p.name)) != p.default
    }
    argv = node_command(LIDAR_NODE, params=changed, remaps={"~/input/pointcloud": args.topic})
    os.execve(argv[0], argv, node_environment())
