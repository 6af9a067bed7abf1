"""Train the LiDAR detector, on simulated drives or on nuScenes, or the camera model.

The parameter file says which. A run lives in one folder: state, weights (weights.safetensors) and
parameters (detector.yaml or camera.yaml) for the node, log, loss curve.
It may be stopped at any time, by --time-limit or Ctrl-C, and goes on with the same command and
--resume as if it had never stopped. Under torchrun every process trains on its own GPU.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from driveRT_ros.commands.common import console, progress
from driveRT_ros.commands.train_kinds import LINE_EVERY_S, Kind, kind_of
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.paths import share_path

if TYPE_CHECKING:
    import torch

    from driveRT_ros.train.data import Place
    from driveRT_ros.train.loop import Progress, Trainer

HELP = "train the LiDAR detector or the camera model"
EXAMPLES = """\
examples:
  drivert train --out run                                  simulated drives, made meanwhile
  drivert train --make-shards frames --scenes 4000         write simulated drives to disk first
  drivert train --data frames --out run --time-limit 540   train on them for nine minutes ...
  drivert train --data frames --out run --time-limit 540 --resume    ... and for nine more
  drivert train --data /data/nuscenes --make-shards frames prepare nuScenes
  drivert train --config config/train_lss_small.yaml --make-shards images --scenes 1000
  drivert train --config config/train_lss_small.yaml --data images --out cameras
  torchrun --nproc-per-node 8 -m driveRT_ros train --data frames --out run
"""

DEFAULT_CONFIG = "config/train_voxelnext_small.yaml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``drivert train``."""
    parser.add_argument(
        "--config", metavar="YAML", help=f"training parameters (default: {DEFAULT_CONFIG})"
    )
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="one parameter, such as data.batch_size=16; repeatable",
    )
    parser.add_argument(
        "--data",
        metavar="sim|DIR",
        default="sim",
        help="'sim', a folder of --make-shards, or a nuScenes folder (default: sim)",
    )
    parser.add_argument("--out", metavar="DIR", help="folder of the run")
    parser.add_argument("--resume", action="store_true", help="go on where DIR holds a run")
    parser.add_argument(
        "--time-limit", metavar="S", type=float, help="stop, with everything written, by then"
    )
    parser.add_argument("--steps", metavar="N", type=int, help="steps of the whole run")
    parser.add_argument(
        "--device", default="auto", help="'auto', 'cpu', 'cuda' or 'cuda:N' (default: auto)"
    )
    parser.add_argument(
        "--make-shards", metavar="DIR", help="write frames of --data to DIR instead of training"
    )
    parser.add_argument(
        "--scenes", metavar="N", type=int, help="drives to write (nuScenes: all by default)"
    )


def execute(args: argparse.Namespace) -> int:
    """Run ``drivert train``."""
    started = time.monotonic()
    # Read when CUDA starts: products that repeat to the last bit, and less waste of memory where
    # every batch has another size.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    if args.time_limit is not None and not args.time_limit > 0:
        raise ConfigError(f"Option --time-limit must be positive, got {args.time_limit:g}.")
    deadline_s = started + (args.time_limit if args.time_limit is not None else float("inf"))
    kind = _kind(args)
    if args.make_shards and args.out:
        raise ConfigError(f"Option --make-shards writes to '{args.make_shards}'; leave out --out.")
    if args.scenes is not None and not args.make_shards:
        raise ConfigError("Option --scenes is for --make-shards; add that, or leave it out.")
    if args.make_shards:
        return _make_shards(args, kind, deadline_s)
    if not args.out:
        raise ConfigError("Option --out names the folder of the run; it is missing.")
    return _train(args, kind, deadline_s)


def _kind(args: argparse.Namespace) -> Kind:
    single = list(args.set)
    if args.steps is not None:
        single.append(f"optimizer.steps={args.steps}")
    return kind_of(args.config or str(share_path(DEFAULT_CONFIG)), single)


def _make_shards(args: argparse.Namespace, kind: Kind, deadline_s: float) -> int:
    from driveRT_ros.train.data import Place, num_workers

    data = kind.drives(args.data)
    count = args.scenes or data.count
    if count is None or count < 1:
        given = "it is missing" if count is None else f"got {count}"
        raise ConfigError(f"Option --scenes must say how many drives to write; {given}.")
    if data.count is not None:
        count = min(count, data.count)
    workers, folder = num_workers(kind.config, Place()), Path(args.make_shards)
    _make_folder(folder)
    with progress() as bar, _Stop() as stop:
        task = bar.add_task(f"drives of {data.name}", total=count)

        def on_done(done: int) -> bool:
            bar.update(task, completed=done)
            if stop():
                bar.update(task, description="finishing those begun")
            return stop() or time.monotonic() + 5.0 > deadline_s

        there = kind.write(data, folder, count, workers, on_done)
    rest = "" if there >= count else " The same command goes on."
    console.print(f"{there} of {count} drives, {kind.frames(folder)} frames in {folder}.{rest}")
    return 0


def _train(args: argparse.Namespace, kind: Kind, deadline_s: float) -> int:
    from driveRT_ros.train.data import num_workers
    from driveRT_ros.train.loop import WEIGHTS
    from driveRT_ros.train.state import newest_state

    folder = Path(args.out)
    begun = newest_state(folder) is not None
    if begun and not args.resume:
        raise ConfigError(f"'{folder}' holds a run; add --resume to go on, or name another folder.")
    data = kind.open(args.data)
    device, place = _join(args.device)
    name = args.data if not hasattr(data, "name") else data.name
    if place.rank == 0:
        if args.resume and not begun:
            console.print(f"'{folder}' holds no run yet: this begins one.")
        _make_folder(folder)
    trainer = kind.trainer(folder, device, place, name)
    if place.rank == 0:
        _introduce(trainer, kind.introduce(), name)
    with (
        kind.batches(data, trainer, num_workers(kind.config, place)) as batches,
        _Stop() as stop,
        _Display(trainer) as display,
    ):
        done = trainer.run(batches, deadline_s=deadline_s, stop=stop, on_step=display.on_step)
    _leave(place)
    if place.rank == 0:
        rest = "" if done else "; the same command with --resume goes on"
        console.print(
            f"{trainer.step} of {kind.config.optimizer.steps} steps done{rest}. "
            f"Weights: {folder / WEIGHTS}; their parameters: --config {folder / kind.parameters}"
        )
    return 0


def _introduce(trainer: Trainer, network: str, data: str) -> None:
    config = trainer.config
    learned = sum(p.numel() for p in trainer.module.parameters())
    console.print(
        f"{network}, {learned:,} parameters, on {trainer.device}; "
        f"{data}, {config.data.batch_size * trainer.place.world} frames a step; "
        f"step {trainer.step} of {config.optimizer.steps}."
    )
    if trainer.note:
        console.print(trainer.note.strip())


def _join(device: str) -> tuple[torch.device, Place]:
    """Return the device and place of this process; under torchrun, after meeting the others."""
    import torch
    from torch import distributed

    from driveRT_ros.core.stages import device_named
    from driveRT_ros.train.data import Place

    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return device_named(device), Place()
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    if device == "auto":
        device = f"cuda:{local}" if torch.cuda.is_available() else "cpu"
    elif device == "cuda":
        device = f"cuda:{local}"
    mine = device_named(device)
    if mine.type == "cuda":
        torch.cuda.set_device(mine)
    distributed.init_process_group("nccl" if mine.type == "cuda" else "gloo")
    return mine, Place(rank, world)


def _leave(place: Place) -> None:
    if place.world > 1:
        from torch import distributed

        distributed.barrier()
        distributed.destroy_process_group()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"Folder '{folder}' cannot be made: {error}.") from None
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"Folder '{folder}' cannot be written to.")


class _Stop:
    """True once the process was asked to end; a second Ctrl-C ends it at once."""

    def __init__(self) -> None:
        self._asked = False

    def __call__(self) -> bool:
        return self._asked

    def __enter__(self) -> _Stop:
        self._old = {s: signal.signal(s, self._ask) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _: object) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True


class _Display:
    """A progress bar on a terminal, else a line now and then; only rank 0 shows anything."""

    def __init__(self, trainer: Trainer) -> None:
        self._on = trainer.place.rank == 0
        self._total, self._printed = trainer.config.optimizer.steps, time.monotonic()
        self._bar = progress()
        self._task = self._bar.add_task("training", total=self._total, completed=trainer.step)

    def __enter__(self) -> _Display:
        if self._on and console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar.live.is_started:
            self._bar.stop()

    def on_step(self, at: Progress) -> None:
        """Show how the run stands."""
        if not self._on:
            return
        text = f"loss {at.loss:.3g} wait {at.wait_share:.0%}"
        self._bar.update(self._task, completed=at.step, description=text)
        if not console.is_terminal and time.monotonic() - self._printed > LINE_EVERY_S:
            self._printed = time.monotonic()
            console.print(
                f"step {at.step} of {self._total}: loss {at.loss:.4g}, {at.frames_per_s:.1f} "
                f"frames/s, waiting for data {at.wait_share:.0%} of the time"
            )
