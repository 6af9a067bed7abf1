"""Detect objects over real ROS 2 nodes, look through cameras, and draw what they saw.

A scene is simulated (or a data set converted, or a bag given). A replay node plays it over DDS at
sensor rate with /clock and transforms, a LiDAR node detects, a camera node makes a bird's-eye view
of the images where there are some, a recorder keeps the results; each is a process of its own. The
replay waits for both where they are slower than the sensors, so that nothing is lost. At the end
there are pictures, a latency table and the recorded bag.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from driveRT_ros.commands.cameras import (
    CAMERA_RECORDED,
    DROPPED_SETS,
    OCCUPANCY,
    BagCameras,
    CameraRecorded,
    add_camera_arguments,
    camera_config,
    look_at_cameras,
    read_camera_recorded,
    show_camera_latency,
    start_camera_node,
)
from driveRT_ros.commands.common import (
    DETECTIONS,
    LIDAR_NODE,
    RECORDED,
    add_detector_arguments,
    add_output_arguments,
    amount,
    console,
    detector_config,
    dropped_topic,
    follow_clouds,
    output_folder,
    require_ros,
    whole_number,
    write_parameter_file,
)
from driveRT_ros.commands.sources import (
    PARAMETERS,
    add_source_arguments,
    source_name,
    write_source_bag,
)
from driveRT_ros.commands.supervised import finish, start_recorder, supervised
from driveRT_ros.nodes.process_env import node_command

if TYPE_CHECKING:
    from driveRT_ros.core.camera_config import CameraConfig
    from driveRT_ros.core.config import LidarConfig

HELP = "simulate (or take data), run the nodes on it over ROS 2, draw pictures"
EXAMPLES = """\
examples:
  drivert demo
  drivert demo --sim-seed 7 --duration 3 --checkpoint voxelnext.safetensors
  drivert demo --no-cameras
  drivert demo --bag my_bag --topic /points_raw --frames 20
  drivert demo --nuscenes /data/nuscenes --version v1.0-mini --frames 40
  drivert demo --kitti /data/kitti
"""

READY_S = 300.0
"""Loading weights and the first pass take this long at most, on the slowest machine."""

CAMERA_DEFAULTS = {"every_nth_sweep": 5}
"""Images four times a second keep the demo short on a small machine."""

REPLAY_PARAMETERS = {"input.back_pressure": True, "input.reliability": "reliable"}
"""While a bag is played, every cloud counts."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``drivert demo``."""
    add_source_arguments(parser, bag=True, required=False)
    parser.add_argument("--topic", default="", help="the point cloud topic, if a bag has several")
    parser.add_argument(
        "--frames", type=whole_number, default=0, metavar="N", help="at most N clouds"
    )
    parser.add_argument(
        "--rate", type=amount, default=1.0, help="1 is sensor rate, 0 as fast as the detector"
    )
    parser.add_argument(
        "--record-all", action="store_true", help="record every topic, inputs and grids too"
    )
    add_detector_arguments(parser)
    add_camera_arguments(parser)
    add_output_arguments(parser, "drivert_demo")
    parser.set_defaults(camera_defaults=CAMERA_DEFAULTS)


def execute(args: argparse.Namespace) -> int:
    """Run ``drivert demo``."""
    require_ros()
    from driveRT_ros.commands import results

    begin, source = time.monotonic(), source_name(args)
    args.cameras = source == "sim" and not args.no_cameras
    forced = REPLAY_PARAMETERS | PARAMETERS[source]
    config = detector_config(args, forced)
    bag, topic, clouds = results.look_at_bag(args.bag, args.topic) if args.bag else ("", "", 0)
    out = output_folder(args)
    if not args.bag:
        bag = str(out / "input_bag")
        write_source_bag(args, Path(bag), args.frames)
        bag, topic, clouds = results.look_at_bag(bag, args.topic)
    clouds = min(clouds, args.frames or clouds)
    recorded_path = out / "output_bag"
    cameras = None if args.no_cameras else look_at_cameras(bag)
    _run_nodes(args, config, bag, topic, cameras, out, recorded_path)
    recorded = results.read_recorded(recorded_path)
    seen = read_camera_recorded(recorded_path) if cameras else CameraRecorded()
    title = {"sim": f"simulated, seed {args.sim_seed}"}.get(source, Path(bag).name)
    files = results.draw_pictures(
        bag, topic, recorded, config, out / "pictures", title=title, seen=seen
    )
    results.show_latency(recorded, out)
    if cameras:
        show_camera_latency(seen, out / "camera_latency.json")
        console.print(f"{len(seen.stamps_ns)} sets of images of {len(seen.cameras)} cameras.")
    code = results.report(
        recorded, clouds, out, bag=bag, files=files, seconds=time.monotonic() - begin
    )
    return code or int(cameras is not None and not seen.stamps_ns)


def _run_nodes(
    args: argparse.Namespace,
    config: LidarConfig,
    bag: str,
    topic: str,
    cameras: BagCameras | None,
    out: Path,
    recorded: Path,
) -> None:
    camera_settings = camera_settings_of(args, cameras) if cameras else None
    with supervised(out) as supervisor:
        supervisor.start(
            LIDAR_NODE,
            node_command(
                "lidar_node",
                params_file=write_parameter_file(config, out / "lidar_node.yaml"),
                params={"use_sim_time": True},
                remaps={"~/input/pointcloud": topic},
            ),
        )
        if cameras and camera_settings:
            camera = start_camera_node(supervisor, camera_settings, cameras, out)
            with console.status("starting the camera node"):
                supervisor.wait_for_line(camera, "Active", READY_S)
        topics = (*RECORDED, *CAMERA_RECORDED) if cameras else RECORDED
        recorder = start_recorder(supervisor, recorded, topics, record_all=args.record_all)
        with console.status("starting the recorder"):
            supervisor.wait_for_line(recorder, "Recording", READY_S)
        replay = supervisor.start(
            "replay_node",
            node_command(
                "replay_node",
                params={
                    "bag_path": bag,
                    "cloud_topic": topic,
                    "rate": float(args.rate),
                    "max_clouds": args.frames,
                    "min_subscribers": 2 if args.record_all else 1,
                    "lockstep_topic": DETECTIONS,
                    "lockstep_dropped_topic": dropped_topic(DETECTIONS),
                    "lockstep_images_topic": OCCUPANCY if cameras else "",
                    "lockstep_images_dropped_topic": DROPPED_SETS if cameras else "",
                },
            ),
        )
        follow_clouds(supervisor, replay, "detect")
        finish(supervisor, replay)


def camera_settings_of(args: argparse.Namespace, cameras: BagCameras) -> CameraConfig:
    """Return the parameters of the camera node of a demo."""
    options = args.camera_config, args.camera_checkpoint, args.camera_set
    return camera_config(cameras, *options, REPLAY_PARAMETERS)
