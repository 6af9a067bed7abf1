"""Grouping rows by key and summing each group in a fixed order."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Groups(NamedTuple):
    """Rows with equal keys, G groups in ascending key order.

    Args:
        keys: (G,) int64, unique.
        order: (N,) int64 rows, group after group, each group in its original order.
        starts: (G,) int64 position of each group in ``order``.
        counts: (G,) int64 rows of each group, at least 1.
    """

    keys: torch.Tensor
    order: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor


def group_rows(keys: torch.Tensor) -> Groups:
    """Group the rows of ``keys`` (N,) int64 by value."""
    ascending, order = keys.sort(stable=True)
    unique, counts = torch.unique_consecutive(ascending, return_counts=True)
    return Groups(unique, order, counts.cumsum(0) - counts, counts)


def sum_groups(
    values: torch.Tensor, order: torch.Tensor, starts: torch.Tensor, counts: torch.Tensor
) -> torch.Tensor:
    """Add up rows of ``values``, group by group, one after the other.

    The loop runs over the rank within a group and touches each group at most once a turn, so the
    order of the additions, and every bit of the sums, is the same on any number of threads.

    Args:
        values: (N, C).
        order: Rows of ``values``, group after group.
        starts: (G,) first position in ``order`` of each group.
        counts: (G,) rows to add from there, at least 1.

    Returns:
        (G, C) sums.
    """
    total = values.index_select(0, order[starts])
    open_groups = torch.arange(len(starts), device=values.device)
    rank = 1
    while len(open_groups := open_groups[counts[open_groups] > rank]):
        rows = order[starts[open_groups] + rank]
        total.index_add_(0, open_groups, values.index_select(0, rows))
        rank += 1
    return total
