"""``drivert run --camera``: look through the cameras of a bag, or through live ones."""

from __future__ import annotations

import argparse
import os
import time
from contextlib import ExitStack

from driveRT_ros.commands.cameras import (
    CAMERA_NODE,
    CAMERA_RECORDED,
    BagCameras,
    camera_config,
    read_camera_recorded,
    require_cameras,
    show_camera_latency,
)
from driveRT_ros.commands.common import (
    config_value,
    console,
    follow_clouds,
    output_folder,
    write_parameter_file,
)
from driveRT_ros.commands.demo import start_recorder, stop_recording, summary_line
from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.io.animation import PngWriter
from driveRT_ros.io.camera_topics import (
    CAMERA_INFO,
    COMPRESSED_IMAGE,
    IMAGE,
    camera_topics,
    info_topic,
)
from driveRT_ros.nodes.process_env import node_command, node_environment, private_domain
from driveRT_ros.nodes.processes import Supervisor
from driveRT_ros.nodes.stop import PARTIAL

SUBSCRIBER_S = 20.0


def execute(args: argparse.Namespace) -> int:
    """Run ``drivert run --camera``."""
    if args.topic:
        raise ConfigError("Option --topic names a point cloud; with --camera use --images.")
    if not args.bag:
        return _live(args)
    if args.images:
        raise ConfigError("Option --images is for live topics; the cameras of a bag are found.")
    begin, cameras = time.monotonic(), require_cameras(args.bag)
    config = camera_config(cameras, args.config, args.checkpoint, args.set)
    out = output_folder(args)
    with ExitStack() as stack:
        domain = None
        if "ROS_DOMAIN_ID" not in os.environ:
            domain = stack.enter_context(private_domain())
        supervisor = stack.enter_context(Supervisor(out / "logs", node_environment(domain)))
        recorded_path = out / "output_bag"
        start_recorder(supervisor, recorded_path, CAMERA_RECORDED, record_all=args.record_all)
        node = supervisor.start(
            CAMERA_NODE,
            node_command(
                "offline_camera_node",
                params_file=write_parameter_file(config, out / "camera_node.yaml"),
                params={
                    "bag_path": os.path.abspath(args.bag),
                    "max_images": args.frames * len(config.cameras),
                    "wait_for_subscriber_s": SUBSCRIBER_S,
                    "use_sim_time": True,
                },
            ),
        )
        follow_clouds(supervisor, node, "look")
        console.print(summary_line(node))
        partial = node.popen.returncode == PARTIAL
        stop_recording(supervisor)
    seen = read_camera_recorded(recorded_path)
    show_camera_latency(seen, out / "latency.json")
    with PngWriter(out / "pictures") as writer:
        for picture in seen.pictures.values():
            writer.add(picture)
    console.print(f"{len(seen.stamps_ns)} sets in {time.monotonic() - begin:.1f} s; see {out}.")
    if seen.untrained:
        console.print("The weights are not trained: layers mean nothing. Give --checkpoint.")
    if partial:
        console.print("Part of the bag could not be read; the results cover the rest.")
        return PARTIAL
    return 0 if seen.stamps_ns else 1


def _live(args: argparse.Namespace) -> int:
    """Become the camera node, so that Ctrl-C and exit code are its own."""
    if not args.images:
        raise ConfigError("Say where the cameras are: --bag PATH, or --images TOPIC ... live.")
    if args.out or args.frames or args.record_all:
        raise ConfigError("Options --out, --frames and --record-all need --bag.")
    kinds = {t: COMPRESSED_IMAGE if "compressed" in t else IMAGE for t in args.images}
    if len(set(kinds.values())) > 1:
        raise ConfigError(f"Images must be all raw or all compressed, got {', '.join(kinds)}.")
    named = camera_topics({**kinds, **{info_topic(topic): CAMERA_INFO for topic in kinds}})
    transport = "compressed" if COMPRESSED_IMAGE in kinds.values() else "raw"
    cameras = BagCameras(named, transport)
    config = camera_config(cameras, args.config, args.checkpoint, args.set)
    remaps = {}
    for i, name in enumerate(config.cameras):
        remaps[f"~/input/image{i}"] = named[name]
        remaps[f"~/input/camera_info{i}"] = info_topic(named[name])
    changed = {
        p.name: value
        for p in CameraConfig.parameters()
        if (value := config_value(config, p.name)) != p.default
    }
    argv = node_command(CAMERA_NODE, params=changed, remaps=remaps)
    os.execve(argv[0], argv, node_environment())
