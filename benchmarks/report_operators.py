"""The tables of ``kernels/README.md`` about pooling and about operators on grids."""

from __future__ import annotations

from typing import Any

Table = dict[str, Any]
_BASELINES = ("V2-style", "V2+DO-style", "V3-style")
_FORMATS = ("fp16", "fp8")


def markdown(head: list[str], lines: list[list[str]]) -> str:
    """Return a table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def place(report: Table, name: str) -> str:
    """Return where and when it was measured, and the file that says so."""
    return (
        f"{report['gpu']}, driver {report['driver']}, torch {report['torch']}, {report['date']}, "
        f"commit {report['commit']} (`benchmarks/results/{name}`)."
    )


def source(report: Table, name: str) -> str:
    """Return what was measured where."""
    note = f" {report['note']}" if "note" in report else ""
    return f"{place(report, name)}{note} Medians in µs."


# ---- pooling ------------------------------------------------------------------------------------


def pool_tables(report: Table, name: str) -> str:
    """Return one line a case and format: ours, what it is compared with, and the floor.

    Args:
        report: Content of a result of ``bench_bevpool.py``.
        name: Its file name.
    """
    others = [*_BASELINES, "balanced"]
    head = ["case, features", "points", "C", "tiles"]
    head += [f"{other} (over tiles)" for other in others] + ["floor"]
    lines = []
    for case, found in report["cases"].items():
        for features in _FORMATS:
            ours = found["contenders"].get(f"tiles {features}")
            if ours is None:
                continue
            mine = ours["warm_us"]["median"]
            line = [f"{case}, {features}", f"{found['points']:,}", str(found["channels"])]
            line.append(f"{mine:.1f}")
            for other in others:
                theirs = found["contenders"].get(f"{other} {features}")
                time = theirs["warm_us"]["median"] if theirs else 0.0
                line.append(f"{time:.1f} ({time / mine:.1f}×)" if theirs else "")
            lines.append([*line, f"{found['floor'][features]['us']:.1f}"])
    text = (
        f"{source(report, name)} One launch, inputs in L2 from the launch before. V2, V2+DO and V3 "
        "are the ways of those papers, written here anew; `balanced` and `tiles` are ours. Floor: "
        "each byte of depth, features, map and result once, at the copy bandwidth."
    )
    return "\n\n".join((text, markdown(head, lines)))


# ---- grids --------------------------------------------------------------------------------------


def grid_tables(report: Table, name: str) -> str:
    """Return one line a grid and operator: ours three ways, then each peer.

    Args:
        report: Content of a result of ``bench_grid.py``.
        name: Its file name.
    """
    peers: dict[str, None] = {}
    lines, operators = [], {}
    for grid, found in report["grids"].items():
        for operator, times in found["operators"].items():
            peer, _, what = operator.rpartition(": ")
            if peer and "allocating" not in what:
                peers[peer] = None
            elif "graph_us" in times:
                operators[grid, operator] = times
    head = ["grid, operator", "kernels", "GB/s", "of read", "host", "call", "prepared"]
    head += [f"{peer} (over call, prepared)" for peer in peers]
    for (grid, operator), times in operators.items():
        line = [f"{grid}, {operator}", f"{times['graph_us']['median']:,.1f}"]
        share = times.get("of_read")
        line += [f"{times['gb_per_s']:,.0f}", f"{share:.0%}" if share else ""]
        ways = ("host_us", "wall_us", "repeated_us")
        line += [f"{times[way]['median']:,.1f}" if way in times else "" for way in ways]
        for peer in peers:
            theirs = report["grids"][grid]["operators"].get(f"{peer}: {operator}")
            line.append(_peer_cell(theirs) if theirs else "")
        lines.append(line)
    ceilings = report["ceilings"]
    text = (
        f"{source(report, name)} Kernels: replays of a graph. Call: until the host has a checksum, "
        "or the nodes hold their statistics; host: what of it keeps the host busy. Prepared: the "
        "same where the grid stays (`core/grid_repeat.py`). Peers: NanoVDB's own CUDA headers in "
        "the same process, on the same bytes, results compared, memory reserved outside of the "
        "call; time of the call. "
        f"Measured: copy {ceilings['copy_tb_per_s']:.2f} TB/s, read "
        f"{ceilings['read_tb_per_s']:.2f} TB/s.{_idle(report)}"
    )
    return "\n\n".join((text, markdown(head, lines)))


def _idle(report: Table) -> str:
    idle = [grid["idle_call_us"]["median"] for grid in report["grids"].values() if "load" in grid]
    return (
        f" A call that fills one word took {min(idle):.0f} to {max(idle):.0f} µs." if idle else ""
    )


def _peer_cell(theirs: Table) -> str:
    if "absent" in theirs:
        return f"absent: {theirs['absent']}"
    over = theirs["over_ours"]
    return (
        f"{theirs['wall_us']['median']:,.1f} ({over['wall_us']:.1f}×, {over['repeated_us']:.1f}×)"
    )
