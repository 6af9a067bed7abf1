"""``drivert run --build-only``: fill the cache of compiled kernels, and detect nothing.

Without a value the node of this machine configures itself and ends. With a compute capability the
kernels of that GPU are compiled, which needs no GPU: for an image that is built elsewhere.
"""

from __future__ import annotations

import argparse
import re
import time

from driveRT_ros.commands.common import LIDAR_NODE, config_from, console, detector_config
from driveRT_ros.commands.supervised import become
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError

HERE = "here"
"""Value of the option without one: the GPU of this machine."""


def execute(args: argparse.Namespace) -> int:
    """Run ``drivert run --build-only``."""
    if args.bag or args.topic or args.images or args.out or args.frames or args.record_all:
        raise ConfigError(
            "Option --build-only detects nothing; leave out --bag, --topic, --images, --out, "
            "--frames and --record-all."
        )
    forced = {"build_only": True}
    if args.build_only != HERE:
        if args.camera:
            raise ConfigError(
                "The camera node compiles its few kernels on the GPU it runs on; use --build-only "
                "without a value there."
            )
        return _compile(detector_config(args), _capability(args.build_only))
    if args.camera:
        from driveRT_ros.commands.cameras import CAMERA_NODE  # needs OpenCV
        from driveRT_ros.core.camera_config import CameraConfig

        config = config_from(CameraConfig, args.config, args.checkpoint, args.set, forced)
        become(CAMERA_NODE, config, {})
    become(LIDAR_NODE, detector_config(args, forced), {})


def _capability(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)\.(\d)", text)
    if found is None:
        raise ConfigError(
            f"Option --build-only takes a compute capability such as 9.0, got '{text}'; "
            "'nvidia-smi --query-gpu=compute_cap --format=csv' shows that of a GPU."
        )
    return int(found[1]), int(found[2])


def _compile(config: LidarConfig, capability: tuple[int, int]) -> int:
    from driveRT_ros.core.kernel_builds import compile_builds, pipeline_builds
    from driveRT_ros.core.nvrtc import cache_folder
    from driveRT_ros.core.plan import Plan, default_plan
    from driveRT_ros.nodes.progress import Progress

    channels, arch = config.model.channels, "sm_{}{}".format(*capability)
    if config.plan_path:
        plan = Plan.load(config.plan_path)
        plan.check_layers(channels, capability)
        if plan.precision != config.precision:
            raise ConfigError(
                f"Plan '{config.plan_path}' is for precision '{plan.precision}', "
                f"'{config.precision}' is asked for; set 'precision' to that of the Plan."
            )
    else:
        plan = default_plan(channels, capability, config.precision)
    builds, start_s = pipeline_builds(config, plan, capability), time.monotonic()
    with Progress(len(builds), console.print, "kernels compiled") as progress:
        compile_builds(builds, arch, progress)
    seconds = time.monotonic() - start_s
    console.print(
        f"{len(builds)} kernels for {arch} in precision '{plan.precision}' are in "
        f"{cache_folder('cubins')} after {seconds:.1f} s."
    )
    return 0
