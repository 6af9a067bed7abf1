"""Write the voxels of recorded clouds as NanoVDB files that other tools open.

Each cloud becomes two files, numbered as in the bag and named after its stamp. NUMBER_STAMP.nvdb
has float grids (occupancy, intensity, height, point_count), which NanoVDB tools since OpenVDB 10
read. NUMBER_STAMP.index.nvdb has the same numbers as channels of one OnIndex grid, for tools since
NanoVDB 32.6. Voxels are those of the detector: its range, its voxel size, the mean of the first
max_points_per_voxel points, which are also what point_count counts. World coordinates are metres in
the LiDAR frame, whole indices the centres of cells.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from driveRT_ros.commands.common import (
    add_detector_arguments,
    add_output_arguments,
    console,
    detector_config,
    output_folder,
    progress,
)
from driveRT_ros.core.errors import ConfigError, InvalidFrame

if TYPE_CHECKING:
    import torch

    from driveRT_ros.core.config import LidarConfig
    from driveRT_ros.core.sparse_types import Voxels

HELP = "write the voxels of a bag as NanoVDB files for other tools"
EXAMPLES = """\
examples:
  drivert export nvdb --bag my_bag
  drivert export nvdb --bag my_bag --topic /points_raw --start 100 --frames 20 --out grids
  drivert export nvdb --bag my_bag --joined            with the past sweeps, as the detector sees it
  drivert export nvdb --bag my_bag --features --checkpoint voxelnext.safetensors
  drivert export nvdb --bag my_bag --set voxelization.max_points_per_voxel=1024

look at the files: nanovdb_print FILE, nanovdb_validate FILE, nanovdb_convert FILE out.vdb
"""


_LEFT_OUT = {
    "non_finite_points": "points that hold NaN or infinity",
    "out_of_range_points": "points outside of voxelization.point_cloud_range",
    "over_capacity_points": "points beyond voxelization.max_points_per_voxel of their voxel",
    "over_capacity_voxels": "voxels beyond voxelization.max_voxels",
    "over_capacity_voxel_points": "points of those voxels",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``drivert export``."""
    parser.add_argument("format", choices=("nvdb",), help="what to write")
    parser.add_argument(
        "--bag", metavar="PATH", required=True, help="a rosbag2 folder or storage file"
    )
    parser.add_argument("--topic", default="", help="the point cloud topic, if there are several")
    parser.add_argument(
        "--start", type=int, default=0, metavar="N", help="the first cloud; 0 is that of the bag"
    )
    parser.add_argument(
        "--frames", type=int, default=0, metavar="N", help="at most N clouds (default: all)"
    )
    parser.add_argument(
        "--joined", action="store_true", help="join each cloud with past sweeps, by the bag's /tf"
    )
    parser.add_argument(
        "--features", action="store_true", help="also what the first level of the network gives"
    )
    parser.add_argument(
        "--codec", choices=("zip", "none"), default="zip", help="compression (default: zip)"
    )
    add_detector_arguments(parser)
    add_output_arguments(parser, "drivert_export")


def execute(args: argparse.Namespace) -> int:
    """Run ``drivert export``."""
    from driveRT_ros.commands.results import look_at_bag
    from driveRT_ros.io.nvdb_frames import write_cloud_grid

    config = detector_config(args)
    for option in ("start", "frames"):
        if getattr(args, option) < 0:
            raise ConfigError(f"Option --{option} must be 0 or more, got {getattr(args, option)}.")
    if args.checkpoint and not args.features:
        raise ConfigError("Option --checkpoint needs --features: nothing else depends on weights.")
    bag, topic, total = look_at_bag(args.bag, args.topic)
    if args.start >= total:
        raise ConfigError(f"Option --start is {args.start}, but '{topic}' has {total} clouds.")
    features = _first_level(config) if args.features else None
    out = output_folder(args)
    stop = min(total, args.start + (args.frames or total))
    written, voxels, lost = 0, 0, Counter[str]()
    with progress() as bar:
        task = bar.add_task("export", total=stop - args.start)
        for index, stamp_ns, points in _clouds(bag, topic, config, args.start, stop, args.joined):
            path = out / f"{index:06d}_{stamp_ns}.nvdb"
            found = write_cloud_grid(path, points, config, features, args.codec)
            lost.update(found.dropped)
            written, voxels = written + 1, voxels + len(found)
            bar.update(task, completed=index + 1 - args.start)
    if not written:
        raise ConfigError(f"None of the clouds of '{topic}' could be decoded; nothing is written.")
    console.print(f"Wrote {voxels} voxels of {written} clouds to {out}.")
    if stop - args.start > written:
        console.print(f"{stop - args.start - written} clouds could not be decoded.")
    for reason, count in sorted(lost.items()):
        if count:
            console.print(f"Left out: {count} {_LEFT_OUT.get(reason, reason.replace('_', ' '))}.")
    return 0


def _clouds(
    bag: str, topic: str, config: LidarConfig, first: int, stop: int, joined: bool
) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Yield index, stamp in ns and (N, 5) points of the clouds from ``first`` up to ``stop``."""
    from driveRT_ros.core.sweeps import SweepBuffer
    from driveRT_ros.io.bag import BagReader
    from driveRT_ros.io.pointcloud import decode
    from driveRT_ros.io.scene_bag import read_poses

    buffer = SweepBuffer(config.densification_params)
    with BagReader(bag) as reader:
        poses = read_poses(reader) if joined else None
        for index, message in enumerate(reader.messages([topic])):
            if index >= stop:
                return
            if index < first and not joined:
                continue
            try:
                cloud = decode(message.deserialize(), config=config.input)
            except InvalidFrame as error:
                if index >= first:
                    console.print(f"Cloud {index} is left out: {error}")
                continue
            T_world_lidar = None
            if poses is not None:
                world = config.densification_params.world_frame_id
                T_world_lidar = poses.lookup(world, cloud.frame_id, cloud.stamp_ns)
                if T_world_lidar is None and index >= first:
                    console.print(f"Cloud {index} stands alone: its place in '{world}' is unknown.")
            points = buffer.push(cloud, T_world_lidar)
            if index >= first:
                yield index, cloud.stamp_ns, points


def _first_level(config: LidarConfig) -> Callable[[Voxels], torch.Tensor]:
    """Return what gives the (V, C) features of the first level at the voxels of a cloud."""
    import torch

    from driveRT_ros.core.ops import Ops
    from driveRT_ros.models.checkpoint import load_weights
    from driveRT_ros.models.voxelnext import Backbone, untrained_weights

    if config.checkpoint_path:
        weights = load_weights(config.checkpoint_path, config, layout=config.checkpoint_layout)
    else:
        weights = untrained_weights(config.model, config.seed)
        console.print("Features are those of untrained weights; name others with --checkpoint.")
    tensors = weights.to("cpu", torch.float32)
    backbone = Backbone(config.model, tensors, Ops.for_device("cpu"))
    shape = config.voxelization.sparse_shape_zyx
    return torch.no_grad()(lambda v: backbone.first_level(v.features, v.coords_bzyx, shape))
