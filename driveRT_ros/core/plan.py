"""A Plan: which kernel variant runs each stage of one network on one GPU, as a frozen value."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from driveRT_ros.core.errors import ConfigError, PlanMismatch

PLAN_VERSION = 1
"""Raised whenever a tactic would mean another order of additions, so that old Plans are refused."""


@dataclasses.dataclass(frozen=True)
class Tactic:
    """One variant of the exact FP32 implicit GEMM (``kernels/sparse_conv.cu``).

    Args:
        groups: Groups the taps are divided into: 3 planes or 9 lines of a 3x3x3 kernel, 1 plane or
            3 lines of a 3x3 one.
        tile_rows: Output rows of a tile.
        slab: Input channels staged at once.
        thread_rows: Rows of a tile that one thread multiplies.
        thread_channels: Output channels that one thread multiplies.
        stages: Slabs in flight.
        min_blocks: Blocks that must fit a multiprocessor: the register limit.
    """

    groups: int
    tile_rows: int
    slab: int
    thread_rows: int
    thread_channels: int
    stages: int
    min_blocks: int

    def threads(self, c_out: int) -> int:
        """Threads of a block."""
        return (c_out // self.thread_channels) * (self.tile_rows // self.thread_rows)

    def shared_bytes(self, c_out: int) -> int:
        """Dynamic shared memory of a block."""
        return 4 * self.stages * (self.tile_rows * (self.slab + 4) + self.slab * c_out)

    def supports(self, c_in: int, c_out: int, taps: int) -> str:
        """Return why this variant cannot run a layer, or an empty string where it can."""
        threads = self.threads(c_out) if self.thread_channels and self.thread_rows else 0
        per_thread = {
            "tile_rows": self.tile_rows in (32, 64, 128) and self.tile_rows % self.thread_rows == 0,
            "thread_channels": self.thread_channels % 4 == 0 and c_out % self.thread_channels == 0,
            "slab": self.slab % 4 == 0 and c_in % self.slab == 0,
            "groups": (taps, self.groups) in ((27, 3), (27, 9), (9, 1), (9, 3)),
            "stages": self.stages >= 2,
            "threads": 0 < threads <= 1024 and threads % 32 == 0,
        }
        bad = [name for name, good in per_thread.items() if not good]
        if not bad:
            copies = (self.tile_rows * self.slab // 4, self.slab * c_out // 4)
            bad = ["copies"] if any(c % threads for c in copies) else []
        return f"{', '.join(bad)} of {self} do not fit {taps} taps {c_in} -> {c_out}" if bad else ""

    @property
    def defines(self) -> dict[str, int]:
        """Compile-time constants of the kernel, but for the channels."""
        return {
            "TM": self.tile_rows,
            "KC": self.slab,
            "RPT": self.thread_rows,
            "CPT": self.thread_channels,
            "STAGES": self.stages,
            "MIN_BLOCKS": self.min_blocks,
        }


@dataclasses.dataclass(frozen=True)
class Plan:
    """The tactic of every domain; a domain is a coordinate map with its channels.

    Same Plan, same input, same bytes: a tactic fixes the order of every addition.

    Args:
        tactics: Tactic by domain (``subm3``, ``spconv4``, ``spconv_out`` ...).
        gpu: Name of the GPU it was measured on; empty for a default.
        weights_sha256: Weights it was measured with; empty where it does not depend on them.
    """

    tactics: Mapping[str, Tactic]
    gpu: str = ""
    weights_sha256: str = ""

    def to_json(self) -> str:
        """Return the Plan as JSON text."""
        return json.dumps({"version": PLAN_VERSION, **dataclasses.asdict(self)}, indent=1)

    @staticmethod
    def from_json(text: str) -> Plan:
        """Read a Plan.

        Raises:
            ConfigError: If the text is no Plan.
            PlanMismatch: If it was written for other kernels.
        """
        try:
            values: dict[str, Any] = json.loads(text)
            version = values.pop("version")
            tactics = {name: Tactic(**t) for name, t in values.pop("tactics").items()}
            plan = Plan(tactics=tactics, **values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"This is no Plan: {error}.") from None
        if version != PLAN_VERSION:
            raise PlanMismatch(
                f"The Plan has version {version}, these kernels need {PLAN_VERSION}; tune again."
            )
        return plan

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a Plan from a file; see :meth:`from_json`."""
        try:
            return Plan.from_json(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"Plan '{path}' cannot be read: {error}.") from None

    def check_gpu(self, gpu: str) -> None:
        """Raise PlanMismatch where the Plan was measured on another GPU."""
        if self.gpu and self.gpu != gpu:
            raise PlanMismatch(
                f"The Plan was tuned on '{self.gpu}', this is '{gpu}'; tune again or use the "
                "default Plan."
            )


def default_plan(channels: tuple[int, ...], capability: tuple[int, int]) -> Plan:
    """Return the Plan that runs without a search.

    Args:
        channels: Channels of the six backbone levels.
        capability: CUDA compute capability; GPUs before 8.0 have too little shared memory a block
            for three stages of the widest tile.
    """
    wide = capability >= (8, 0)

    def tactic(c_in: int, c_out: int, taps: int, rows: str) -> Tactic:
        groups = 3 if taps == 9 or rows == "many" else 9
        if c_out >= 128:
            if rows == "few" or taps == 9:
                return Tactic(groups, 32, 16, 4, 8, 3 if wide else 2, 4 if wide else 3)
            return Tactic(groups, 64, 16, 8, 8, 3 if wide else 2, 3)
        if c_out >= 64:
            return Tactic(groups, 64, 16, 4, 8, 3 if wide else 2, 4)
        if c_out >= 32:
            return Tactic(groups, 64, min(32, c_in), 4, 4, 2, 8)
        return Tactic(groups, 64, 16, 4, 4, 3 if wide else 2, 8)

    tactics = {}
    for number, c_out in enumerate(channels, start=1):
        rows = "few" if number >= 5 else "many"
        tactics[f"subm{number}"] = tactic(c_out, c_out, 27, rows)
        if number > 1:
            tactics[f"spconv{number}"] = tactic(channels[number - 2], c_out, 27, rows)
    width = channels[-1]
    tactics["spconv_out"] = tactics["subm_out"] = tactic(width, width, 9, "few")
    return Plan(tactics)
