"""``drivert info BAG --sparsity``: how sparse the clouds of a bag are, in the terminal."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.bar import Bar
from rich.table import Table

from driveRT_ros.commands.common import config_from, console
from driveRT_ros.core.errors import ConfigError

if TYPE_CHECKING:
    from driveRT_ros.core.config import LidarConfig
    from driveRT_ros.core.sparsity import SparsityReport

_FRAMES = 10
_BAR_COLUMNS = 40


def show_sparsity(args: argparse.Namespace) -> None:
    """Print the sparsity of the first clouds of a bag, past sweeps joined as the detector does.

    Args:
        args: With ``bag``, ``topic``, ``frames`` and ``config``.

    Raises:
        ConfigError: If there is no such bag or topic, or no cloud in it can be used.
    """
    from driveRT_ros.core.config import LidarConfig

    frames = _FRAMES if args.frames is None else args.frames
    if frames < 1:
        raise ConfigError(f"Option --frames must be at least 1, got {frames}.")
    config = config_from(LidarConfig, args.config, None, ())
    found = _counted(args, config, frames)
    if not found:
        raise ConfigError(f"No cloud of '{args.bag}' can be used; the lines above say why.")
    joined = config.densification_params.num_past_frames
    console.print(
        f"Sparsity of {len(found)} clouds, each with up to {joined} past sweeps; voxels in order "
        "of appearance"
    )
    console.print(_numbers(found))
    console.print(_histogram(found))


def _counted(args: argparse.Namespace, config: LidarConfig, frames: int) -> list[SparsityReport]:
    from driveRT_ros.commands.fresh_pass import joined_clouds
    from driveRT_ros.core.reference.voxelize import voxelize
    from driveRT_ros.core.sparsity import SparsityMonitor
    from driveRT_ros.core.turn import Turn

    monitor = SparsityMonitor(config)

    def say(sentence: str) -> None:
        console.print(sentence, markup=False)

    clouds = joined_clouds(args.bag, args.topic, config, say, frames)
    turn = Turn.to_network(config)
    turned = (turn.rows(cloud.points) for cloud in clouds)
    return [monitor.count(voxelize(p, config.voxelization).coords_bzyx) for p in turned]


def _numbers(found: Sequence[SparsityReport]) -> Table:
    columns: dict[str, list[float]] = {
        f"voxels of level {level}": [float(r.voxels_per_level[level - 1]) for r in found]
        for level in range(1, len(found[0].voxels_per_level) + 1)
    }
    rows = found[0].tile_rows
    columns |= {
        "sets of neighbours": [float(r.distinct_masks) for r in found],
        "pairs of all layers": [float(r.layer_pairs) for r in found],
        f"executed / useful, tiles of {rows}": [r.tile_waste for r in found],
        "leaves of 8 x 8 x 8": [float(r.leaves) for r in found],
        "their cells filled, %": [100.0 * r.leaf_filled for r in found],
    }
    table = Table("", "mean", "least", "most", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, values in columns.items():
        whole = all(value.is_integer() for value in values)
        shown = (f"{v:,.0f}" if whole else f"{v:.3f}" for v in _summary(values))
        table.add_row(name, *shown)
    return table


def _summary(values: Sequence[float]) -> tuple[float, float, float]:
    return float(np.mean(values)), min(values), max(values)


def _histogram(found: Sequence[SparsityReport]) -> Table:
    counts = np.sum([r.degree_histogram for r in found], axis=0)
    shares = counts / max(counts.sum(), 1)
    last = int(np.flatnonzero(counts).max(initial=0))
    table = Table("neighbours", "voxels", "%", "", box=None)
    for column in table.columns[:3]:
        column.justify = "right"
    for degree in range(last + 1):
        bar = Bar(max(shares.max(), 1e-9), 0.0, shares[degree], width=_BAR_COLUMNS)
        table.add_row(str(degree), f"{counts[degree]:,}", f"{100 * shares[degree]:.1f}", bar)
    return table
