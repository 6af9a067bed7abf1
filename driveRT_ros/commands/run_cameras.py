"""``drivert run --camera``: look through the cameras of a bag, or through live ones."""

from __future__ import annotations

import argparse
import os
import time

from driveRT_ros.commands.cameras import (
    CAMERA_NODE,
    CAMERA_RECORDED,
    BagCameras,
    camera_config,
    read_camera_recorded,
    require_cameras,
    show_camera_latency,
)
from driveRT_ros.commands.common import console, output_folder
from driveRT_ros.commands.supervised import Offline, become, exit_code, refuse_bag_options
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.io.animation import PngWriter
from driveRT_ros.io.camera_topics import (
    CAMERA_INFO,
    COMPRESSED_IMAGE,
    IMAGE,
    camera_topics,
    info_topic,
)


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
    params = {
        "bag_path": os.path.abspath(args.bag),
        "max_images": args.frames * len(config.cameras),
    }
    node = Offline(CAMERA_NODE, "offline_camera_node", config, params, CAMERA_RECORDED, "look")
    recorded, partial = node.run(out, record_all=args.record_all)
    seen = read_camera_recorded(recorded)
    show_camera_latency(seen, out / "latency.json")
    with PngWriter(out / "pictures") as writer:
        for picture in seen.pictures.values():
            writer.add(picture)
    console.print(f"{len(seen.stamps_ns)} sets in {time.monotonic() - begin:.1f} s; see {out}.")
    if seen.untrained:
        console.print("The weights are not trained: layers mean nothing. Give --checkpoint.")
    return exit_code(int(not seen.stamps_ns), partial)


def _live(args: argparse.Namespace) -> int:
    if not args.images:
        raise ConfigError("Say where the cameras are: --bag PATH, or --images TOPIC ... live.")
    refuse_bag_options(args)
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
    become(CAMERA_NODE, config, remaps)
