"""Where the time of a training step goes, on one realistic batch of simulated frames.

    python benchmarks/bench_train.py

The batch is made of two drives, augmented to as many frames as the parameter file says, and kept
in a folder of temporary files for the next time. Each kernel comes first, in one step after a
first one; then steps in parts; then whole steps are timed and repeated from the start, which must
give the same losses. On a GPU parts are timed by events in its stream: host time without work for
the GPU counts, too.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

import numpy as np  # noqa: E402
import torch  # noqa: E402

from driveRT_ros.core.paths import share_path  # noqa: E402
from driveRT_ros.train.ahead import ahead  # noqa: E402
from driveRT_ros.train.augment import draw_motion  # noqa: E402
from driveRT_ros.train.config import TrainConfig  # noqa: E402
from driveRT_ros.train.data import Batch, collate  # noqa: E402
from driveRT_ros.train.drives import SimulatedDrives, each_drive  # noqa: E402
from driveRT_ros.train.loop import Trainer  # noqa: E402
from driveRT_ros.train.losses import detection_loss  # noqa: E402
from driveRT_ros.train.module import VoxelNeXtModule  # noqa: E402
from driveRT_ros.train.schedule import make_optimizer  # noqa: E402
from driveRT_ros.train.targets import assign_targets  # noqa: E402
from driveRT_ros.train.voxels import voxelize_batch  # noqa: E402

DRIVES = 2


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="config/train_voxelnext_small.yaml")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--frames", type=int, help="of the batch; by default as the file says")
    parser.add_argument("--steps", type=int, default=4, help="whole steps, and steps in parts")
    parser.add_argument("--tables", action="store_true", help="the way of a GPU on a CPU, too")
    parser.add_argument("--kernels", type=int, default=25, help="lines of the table of kernels")
    return parser.parse_args()


def make_batch(config: TrainConfig, frames: int) -> Batch:
    """Return a batch out of a few drives; they are made once."""
    cache = Path(tempfile.gettempdir()) / f"bench_train_{os.getuid()}.pickle"
    if not cache.is_file():
        found = dict(each_drive(_samples, SimulatedDrives(config), iter(range(DRIVES)), DRIVES))
        cache.write_bytes(pickle.dumps([s for n in range(DRIVES) for s in found[n]]))
    samples = pickle.loads(cache.read_bytes())
    rng = np.random.default_rng(0)
    chosen = [samples[k % len(samples)] for k in range(frames)]
    return collate([(sample, draw_motion(config.augment, rng)) for sample in chosen])


def _samples(drives: SimulatedDrives, number: int) -> list:
    return drives.samples(number)


class Marks:
    """The time between one mark and the next, in the stream of the device."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[tuple[str, object]] = []

    def __call__(self, name: str) -> None:
        """End the part of this name; the first mark begins."""
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append((name, event))
        else:
            self._marks.append((name, time.perf_counter()))

    def take(self) -> dict[str, float]:
        """Return the milliseconds of each part, and begin anew."""
        if self._cuda:
            torch.cuda.synchronize()
        parts: dict[str, float] = {}
        for (_, a), (name, b) in zip(self._marks, self._marks[1:]):
            took = a.elapsed_time(b) if self._cuda else (b - a) * 1e3
            parts[name] = parts.get(name, 0.0) + took
        self._marks = []
        return parts


class TimedModule(VoxelNeXtModule):
    """The network with a mark after each level, on the way back, too."""

    marks: Callable[[str], None]

    def _run(self, specs, rows, maps):
        where = specs[0].name.split(".")[0]
        self.marks(f"forward: before {where}")
        rows = super()._run(specs, rows, maps)
        self.marks(f"forward: {where}")
        if rows.requires_grad:
            rows.register_hook(lambda _: self.marks(f"backward: above {where}"))
        return rows

    def _heads(self, rows):
        out = super()._heads(rows)
        self.marks("forward: heads")
        return out


def step_in_parts(trainer: Trainer, batch: Batch, marks: Marks) -> None:
    """Do what ``Trainer.train_step`` does, with a mark after each part."""
    config, voxels = trainer.config, trainer.config.voxelization
    module, optimizer = trainer.module, trainer._optimizer
    module.train()
    marks("start")
    optimizer.zero_grad(set_to_none=True)
    batch = batch.to(trainer.device)
    marks("copy to the device")
    points = batch.points()
    marks("points")
    features, coords = voxelize_batch(points, batch.point_counts, voxels)
    marks("voxelize")
    maps = module.build_maps(coords, voxels.sparse_shape_zyx, len(batch))
    marks("maps")
    targets = assign_targets(
        module.head_cells(maps)[0], batch.boxes.split(batch.box_counts),
        batch.labels.split(batch.box_counts), len(config.model.class_names), voxels, config.loss,
    )  # fmt: skip
    marks("targets")
    with trainer._autocast():
        found = module(features, maps)
    loss, _ = detection_loss(found, targets, config.model, config.loss)
    marks("loss")
    loss.backward()
    marks("backward: the rest")
    norm = torch.nn.utils.clip_grad_norm_(module.parameters(), config.optimizer.clip_norm)
    torch.stack((loss.detach(), norm)).tolist()
    marks("gradient norm")
    optimizer.step()
    marks("optimizer")
    if trainer._average is not None:
        trainer._average.update(1)
    marks("running average")


def whole_steps(trainer: Trainer, batch: Batch, steps: int, early: bool) -> list[float]:
    """Print the time of whole steps and return the loss of each.

    Args:
        trainer: A fresh one.
        batch: Learned from again and again.
        steps: How many.
        early: Prepare each while the one before it is learned from, as a run on a GPU does.
    """
    losses, took = [], []
    batches = itertools.repeat(batch)
    if early:
        batches = ahead(batches, trainer.prepare, trainer.device, steps)
    for _ in range(steps):
        started = time.perf_counter()
        losses.append(trainer.train_step(next(batches))["loss"])
        took.append((time.perf_counter() - started) * 1e3)
    losses = [float(loss) for loss in losses]
    middle = statistics.median(took[min(1, steps - 1) :])
    print(
        f"whole step{', prepared ahead' if early else ''}: {middle:.1f} ms (first {took[0]:.0f}), "
        f"{len(batch) / middle * 1e3:.1f} frames/s; losses {losses[0]:.3f} to {losses[-1]:.3f}"
    )
    return losses


def parts(trainer: Trainer, batch: Batch, steps: int) -> None:
    """Print the median time of each part."""
    marks = Marks(trainer.device)
    by_table = trainer.module.by_table
    timed = TimedModule(trainer.config.model, trainer.config.seed, by_table=by_table)
    timed = timed.to(trainer.device)
    timed.load_state_dict(trainer.module.state_dict())
    timed.marks = marks
    trainer.module = trainer._model = timed
    trainer._optimizer = make_optimizer(timed, trainer.config.optimizer)
    found = []
    for _ in range(steps):
        step_in_parts(trainer, batch, marks)
        found.append(marks.take())
    for name in found[-1]:
        print(f"{statistics.median(part[name] for part in found):9.2f} ms  {name}")


def kernels(trainer: Trainer, batch: Batch, lines: int) -> None:
    """Print which kernels take the time of a second step, and how many launches it has."""
    from torch.profiler import ProfilerActivity, profile

    trainer.train_step(batch)
    cuda = trainer.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as recorded:
        trainer.train_step(batch)
        if cuda:
            torch.cuda.synchronize()
    rows = recorded.key_averages()
    counts = {
        what: sum(row.count for row in rows if row.key.startswith(start))
        for what, start in (
            ("launches", ("cudaLaunchKernel", "cuLaunchKernel")),
            ("waits", "cudaStreamSynchronize"),
            ("operators", "aten::"),
        )
    }
    print(", ".join(f"{what} {count}" for what, count in counts.items()))
    key = "self_device_time_total" if cuda else "self_cpu_time_total"
    rows = sorted(rows, key=lambda row: getattr(row, key), reverse=True)
    if cuda:
        rows = [row for row in rows if not row.key.startswith(("aten::", "cuda"))]
    for row in rows[:lines]:
        print(f"{getattr(row, key) / 1e3:9.2f} ms  {row.count:6d} x  {row.key[:140]}")


def main() -> None:
    """Run everything."""
    sys.stdout.reconfigure(line_buffering=True)  # whoever stops this has what it measured
    args = arguments()
    config = TrainConfig.from_yaml(share_path(args.config))
    device = torch.device(args.device)
    started = time.perf_counter()
    batch = make_batch(config, args.frames or config.data.batch_size)
    batch = batch.pin_memory() if device.type == "cuda" else batch
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}; {len(batch)} frames of "
          f"{len(batch.xyz) // len(batch):,} points, made in "
          f"{time.perf_counter() - started:.1f} s")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:

        def fresh() -> Trainer:
            trainer = Trainer(config, Path(folder), device)
            trainer.module.by_table = True if args.tables else None
            return trainer

        kernels(fresh(), batch, args.kernels)
        parts(fresh(), batch, args.steps)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        losses = [whole_steps(fresh(), batch, args.steps, early) for early in (False, True, True)]
        print("the same losses again: " + ("yes" if losses[0] == losses[1] == losses[2] else "NO"))
        if device.type == "cuda":
            print(f"most memory: {torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB")


if __name__ == "__main__":
    main()
