"""The tactics of pooling that a search measures."""

from __future__ import annotations

import dataclasses
import itertools

from driveRT_ros.core.pool_tactics import (
    MOST_CHANNELS,
    USUAL_CHANNELS,
    PoolShape,
    PoolTactic,
    default_tactic,
)


def candidates(shape: PoolShape, frustum_shape: tuple[int, int, int, int]) -> list[PoolTactic]:
    """Return the tactics that may be fastest, the default first."""
    found = [default_tactic(shape, frustum_shape)]
    least = -(-shape.channels // USUAL_CHANNELS)
    for warps, steps, groups in itertools.product((4, 8, 16), (1, 2, 3, 4), (least, 2 * least)):
        tiles = PoolTactic("tiles", warps=warps, steps=steps, groups=groups)
        # Twenty warps of a multiprocessor have 102 registers each.
        found += [tiles, dataclasses.replace(tiles, min_blocks=max(1, 20 // warps))]
    if shape.channels >= USUAL_CHANNELS:
        found += _wide_candidates(shape)
    for slots, chunk, in_flight in (
        *((16, 32, 4), (16, 32, 8), (16, 16, 4), (8, 32, 4)),
        *((32, 16, 4), (16, 64, 4), (16, 16, 8)),
    ):
        found.append(PoolTactic("balanced", block_slots=slots, chunk=chunk, in_flight=in_flight))
    return [t for t in dict.fromkeys(found) if not t.supports(shape, frustum_shape)]


def _wide_candidates(shape: PoolShape) -> list[PoolTactic]:
    """Return tactics for many channels, where a warp needs more registers than it may have.

    A quarter of a multiprocessor runs 4 warps of 128 registers, 3 of 168 or 2 of 255; features of
    eight bits need the fewest. One group for all channels reads depths once, not once a group. More
    steps of a tile make fewer warps, which may then all be at work at once.
    """
    least = -(-shape.channels // USUAL_CHANNELS)
    whole = -(-shape.channels // MOST_CHANNELS)
    layouts = [  # warps, groups, passes, warps of a multiprocessor, bytes of a load
        *((4, least, 1, 16, 16), (2, least, 1, 16, 16)),
        *((4, least, 2, 16, 16), (4, least, 1, 16, 8), (4, least, 1, 12, 8)),
    ]
    if whole < least:
        layouts += [(4, whole, 1, 8, 16), (2, whole, 1, 8, 16), (4, whole, 2, 8, 16)]
        layouts.append((4, whole, 2, 12, 16))
    return [
        PoolTactic(
            "tiles",
            vector=vector,
            warps=warps,
            steps=steps,
            groups=groups,
            min_blocks=together // warps,
            passes=passes,
            whole_sectors=sectors,
        )
        for (warps, groups, passes, together, vector), steps, sectors in itertools.product(
            layouts, (2, 3, 4, 6), (False, True)
        )
    ]
