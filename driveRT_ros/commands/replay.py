"""Play a rosbag2 over DDS: sensor topics, /tf, /tf_static (latched) and /clock."""

from __future__ import annotations

import argparse
import os

from driveRT_ros.commands.common import amount, dropped_topic, require_ros, whole_number
from driveRT_ros.nodes.process_env import node_command, node_environment

HELP = "play a bag over ROS 2 at sensor rate"
EXAMPLES = """\
examples:
  drivert replay my_bag
  drivert replay my_bag --rate 0.5 --loop
  drivert replay my_bag --start 10 --topics /LIDAR_TOP /tf /tf_static
  drivert replay my_bag --lockstep /lidar_node/output/detections   wait for each answer

ROS_DOMAIN_ID is respected. Subscribers in other processes want the transport that
'drivert info' names too, or they lose clouds.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``drivert replay``."""
    parser.add_argument("bag", metavar="BAG", help="a rosbag2 folder or storage file")
    parser.add_argument(
        "--rate", type=amount, default=1.0, help="1 is sensor rate, 0 as fast as possible"
    )
    parser.add_argument("--loop", action="store_true", help="start again at the end")
    parser.add_argument(
        "--start", type=amount, default=0.0, metavar="S", help="skip the first S seconds"
    )
    parser.add_argument(
        "--frames", type=whole_number, default=0, metavar="N", help="stop after N clouds"
    )
    parser.add_argument("--topics", nargs="+", default=[], metavar="TOPIC", help="play only these")
    parser.add_argument("--topic", default="", help="the point cloud to wait for, if several")
    parser.add_argument(
        "--lockstep", default="", metavar="TOPIC", help="never run ahead of the answers on TOPIC"
    )
    parser.add_argument(
        "--wait", type=amount, default=30.0, metavar="S", help="wait so long for a subscriber"
    )


def execute(args: argparse.Namespace) -> int:
    """Become the replay node, so that Ctrl-C and exit code are its own."""
    require_ros()
    params = {
        "bag_path": args.bag,
        "rate": args.rate,
        "loop": args.loop,
        "start_offset_s": args.start,
        "max_clouds": args.frames,
        "topics": args.topics,
        "cloud_topic": args.topic,
        "lockstep_topic": args.lockstep,
        "lockstep_dropped_topic": dropped_topic(args.lockstep),
        "wait_for_subscriber_s": args.wait,
    }
    argv = node_command("replay_node", params={k: v for k, v in params.items() if v != []})
    os.execve(argv[0], argv, node_environment())
