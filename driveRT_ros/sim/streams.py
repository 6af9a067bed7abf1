"""Independent seeded random streams, so that what is drawn never depends on how far one drives."""

from __future__ import annotations

import numpy as np

ROAD, STYLE, CELL, FLOW, SLOT, SWEEP, EGO, CAMERA = range(8)
"""First key of a stream: which part of the world draws from it."""

_OFFSET = 1 << 24  # keys of cells behind the start are negative; a seed sequence takes none


def stream(seed: int, *keys: int) -> np.random.Generator:
    """Return the generator of one part of the world.

    A cell of the roadside, a place in a traffic flow and a sweep each own a stream keyed by their
    number: a longer drive draws the same numbers for the part it shares with a shorter one.

    Args:
        seed: The seed of the scene.
        keys: What draws, such as ``(CELL, side, index)``; integers above -2**24.
    """
    return np.random.default_rng([seed, *(key + _OFFSET for key in keys)])
