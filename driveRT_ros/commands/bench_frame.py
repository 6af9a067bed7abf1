"""``drivert bench frame``: check, then time, the whole LiDAR detector, input to boxes."""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driveRT_ros.commands.bench_options import ALL_FRAMES, frame_names, peer_names, plans
from driveRT_ros.commands.bench_tables import show_tables
from driveRT_ros.commands.common import progress
from driveRT_ros.core.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    import torch

    from driveRT_ros.bench.frame import Candidate
    from driveRT_ros.bench.networks import Network
    from driveRT_ros.core.config import LidarConfig

PEERS = ("spconv", "torch")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return the report.

    Raises:
        ConfigError: If an option cannot be used here.
        DeviceError: If there is no GPU to measure on.
    """
    import torch

    on_gpu = args.device == "cuda"
    if not on_gpu and (args.plan or args.peers or args.precision not in (None, "fp32")):
        raise ConfigError("Options --plan, --peers and --precision need a GPU, not --device cpu.")
    peers = peer_names(args, PEERS)
    if on_gpu and not torch.cuda.is_available():
        raise DeviceError(
            f"torch {torch.__version__} finds no CUDA device to measure on; "
            "'drivert bench frame --device cpu' times the reference."
        )
    from driveRT_ros.bench import frame
    from driveRT_ros.bench.frames import load_frames
    from driveRT_ros.core.config import LidarConfig
    from driveRT_ros.core.turn import facing

    config = LidarConfig.from_yaml(args.config) if args.config else LidarConfig()
    config = facing(config, config.model.forward_yaw_deg)  # peers turn nothing
    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    names = frame_names(args, ALL_FRAMES if on_gpu else ALL_FRAMES[:1])
    device = torch.device(args.device, 0) if on_gpu else torch.device("cpu")
    with progress() as bar:
        task = bar.add_task("frames", total=len(names) * (1 + on_gpu))
        frames = list(load_frames(names, Path(args.data) if args.data else None, config))
        weights = frame.weights_of(config)
        candidates = frame.ours(config, weights, plans(args), device)
        tensors = weights.to(device, torch.float32)
        candidates += _peers(peers, candidates[0].precision, config, tensors)

        def told(part: str) -> None:
            bar.advance(task)
            bar.update(task, description=part)

        bench = frame.FrameBench(config, weights, candidates, device, args.rounds)
        return frame.measure(bench, frames, profile=on_gpu, told=told)


def _peers(
    names: list[str], precision: str, config: LidarConfig, tensors: Mapping[str, torch.Tensor]
) -> Iterator[Candidate]:
    """Yield peers in float32, and in the precision of this package's detector."""
    from driveRT_ros.bench.frame import Candidate
    from driveRT_ros.bench.networks import TorchNetwork
    from driveRT_ros.bench.peer_detector import PeerDetector
    from driveRT_ros.bench.peers_spconv import ALGORITHMS, PRECISIONS, SpconvNetwork

    def candidate(name: str, precision: str, make: Callable[[], Network]) -> Candidate:
        detector = functools.partial(PeerDetector, make, config, tensors)
        return Candidate(name, precision, detector, peer=True)

    if "spconv" in names:
        wanted = [each for each in PRECISIONS if each in ("fp32", precision)]
        for each, algorithm in itertools.product(wanted, ALGORITHMS):
            # Five channels of half precision fit no kernel of some versions.
            pad = 8 if each == "fp16" else 0
            make = functools.partial(
                SpconvNetwork, "spconv", each, algorithm, config, tensors, pad_input=pad
            )
            yield candidate(f"spconv {each} {algorithm}", each, make)
    if "torch" in names:
        yield candidate("torch fp32", "fp32", functools.partial(TorchNetwork, config, tensors))


def show(report: dict[str, Any]) -> None:
    """Print one line a frame, detector and input."""
    from driveRT_ros.bench.frame import stage_table, whole_table

    show_tables(report, whole_table(report), stage_table(report))
