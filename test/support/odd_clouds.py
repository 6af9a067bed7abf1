"""Clouds of any layout, any type and any values, reproducibly."""

from __future__ import annotations

from typing import Any

import numpy as np

from driveRT_ros.core.config import InputConfig
from test.support.clouds import DATATYPES, make_cloud

TIME, COUNTS = "time_stamp", (1, 2, 100, 101, 255, 256, 257, 300)
ODD_VALUES = (
    np.nan, np.inf, -np.inf, 8192.0, -8192.0, 8191.9999, 1e300, -1e300, -0.0, 3.4028235e38, 1e8,
    2.0**31, 255.00001, 1e-45,
)  # fmt: skip
CLOCKS_S = (0.0, 1.7e9, 1.7e9, 1.7e9, 1.7e9)
UNITS = (1.0, 1.0, 1e3, 1e6, 1e9)
"""Of a second: what a time counts from, and in."""


def odd_cloud(rng: np.random.Generator) -> tuple[Any, InputConfig]:
    """Return a message, which may be unsound in its values, and how to decode it."""
    count = int(rng.choice(COUNTS))
    names = ["x", "y", "z", *(n for n in ("intensity", "ring", TIME) if rng.random() < 0.7)]
    rng.shuffle(names)
    offset, columns = int(rng.integers(4)), {}
    for name in names:
        code = "f4" if rng.random() < 0.5 else str(rng.choice(list(DATATYPES)))
        columns[name] = (_column(rng, name, code, count), code, offset)
        offset += int(code[1]) + int(rng.integers(3))
    message = make_cloud(
        columns,
        offset + int(rng.integers(5)),
        height=int(rng.choice([h for h in (1, 2, 3, 5) if count % h == 0])),
        row_padding=int(rng.integers(6)),
        big_endian=bool(rng.random() < 0.3),
        stamp_ns=int(rng.choice([0, 1_700_000_000_000_000_000, 1_700_000_000_050_000_000])),
    )
    return message, InputConfig(
        intensity_scale=float(rng.choice([1.0, 1.0, 0.7, 255.0, 0.0])),
        intensity_clip=float(rng.choice([255.0, 99.9])),
        point_capacity=int(rng.choice([400_000, 1, 7, 150])),
        default_intensity=float(rng.choice([0.0, 3.3])),
    )


def _column(rng: np.random.Generator, name: str, code: str, count: int) -> np.ndarray:
    if code[0] != "f":
        limits = np.iinfo(code)
        low, high = limits.min, limits.max
        if rng.random() < 0.6:
            low, high = max(low, -50), min(high, 60)
        return rng.integers(low, high, count, endpoint=True).astype(code)
    most = rng.choice([50.0, 1e4] if name in "xyz" else [1e-3, 0.2, 1.0, 255.0, 4e3, 1e12])
    values = rng.uniform(-most if rng.random() < 0.5 else 0.0, most, count)
    if name == TIME and rng.random() < 0.6:
        which = rng.integers(len(UNITS))
        values = (CLOCKS_S[which] + rng.uniform(-0.1, 0.05, count)) * UNITS[which]
    if rng.random() < 0.5:
        some = rng.integers(0, count, max(1, count // 20))
        values[some] = rng.choice(ODD_VALUES, len(some))
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(code)
