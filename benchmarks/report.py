"""Turn results of benchmarks on a GPU into the tables of ``kernels/README.md``.

    python benchmarks/report.py                 # print the tables of the newest results
    python benchmarks/report.py --write         # put them between the markers of the README

No number of those tables is typed by hand: a test compares them with the result file.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from benchmarks.report_frames import frame_tables, ros_tables  # noqa: E402
from benchmarks.report_operators import grid_tables, markdown, pool_tables  # noqa: E402
from driveRT_ros.bench.table import device_us  # noqa: E402

RESULTS = REPO / "benchmarks" / "results"
README = REPO / "kernels" / "README.md"
END = "<!-- /results -->"
OURS = "ours fp32"
PRECISIONS = ("fp32", "fp16")
"""Of the tables by stage."""
Table = dict[str, Any]


def newest(folder: Path = RESULTS, suite: str = "sparse") -> Path | None:
    """Return the result of a suite with the latest date, or None."""
    found = sorted(folder.glob(f"{suite}-*.json"))
    return max(found, key=lambda path: (load(path)["date"], path.name), default=None)


def load(path: Path) -> Table:
    """Return a result."""
    report: Table = json.loads(path.read_text(encoding="utf-8"))
    return report


def tables(report: Table, name: str) -> str:
    """Return all tables as Markdown.

    Args:
        report: Content of a result file.
        name: Its file name, which the text cites.
    """
    frames = {n: f for n, f in report["frames"].items() if "absent" not in f["candidates"][OURS]}
    parts = [heading(report, name), whole_table(report["frames"])]
    for precision in PRECISIONS:
        shown = [n for n in ("B", "C") if n in frames]
        parts += [stage_table(n, frames[n], precision) for n in shown if _has(frames[n], precision)]
    parts += [facts(report, frames)]
    return "\n\n".join(parts)


def heading(report: Table, name: str) -> str:
    """Return what was measured where, and how to read it."""
    clocks = [c for c in report["clocks"] if c["when"] not in ("start", "end")]
    shown = sorted({c["sm_mhz"] for c in clocks if c["sm_mhz"]})
    return (
        f"{report['gpu']}, driver {report['driver']}, torch {report['torch']}, {report['date']}, "
        f"commit {report['commit']}, SM clock while measuring: {', '.join(shown) or 'unknown'} "
        f"(`benchmarks/results/{name}`). Medians in µs. Ours: replays of one CUDA graph, from raw "
        "points to the last rows, voxelization included. Peers: the sum of their kernels, without "
        "any gap between them, from finished voxels; in brackets, that over ours in the precision "
        "of the peer. Wall: until the host has the result's completion. Error: the largest of any "
        "stage, relative to its largest float64 value."
    )


def whole_table(frames: Table) -> str:
    """Return the backbone of every frame, one line a candidate."""
    head = ["", *(f"{n}: {f['rows'][0]:,} voxels" for n, f in frames.items())]
    lines = []
    for candidate in _candidates(frames.values()):
        if candidate.startswith("cuBLAS"):
            continue
        cells = [_whole_cell(frame, candidate) for frame in frames.values()]
        lines.append([candidate, *cells])
    return markdown(head, lines)


def _candidates(frames: Iterable[Table]) -> list[str]:
    return list({name: None for frame in frames for name in frame["candidates"]})


def _whole_cell(frame: Table, candidate: str) -> str:
    found = frame["candidates"].get(candidate)
    if found is None:
        return ""
    if "absent" in found:
        # What follows in brackets is the peer's own log; the result file keeps it.
        return f"absent: {found['absent'].split(' (')[0]}"
    device = device_us(found)
    text = f"{device:,.0f}" if math.isfinite(device) else "no kernel times"
    ours = frame["candidates"].get(f"ours {_precision(candidate)}", {"absent": ""})
    if not candidate.startswith("ours") and "absent" not in ours and math.isfinite(device):
        text += f" ({device / device_us(ours):.2f}×)"
    wall, error = found["wall_us"]["median"], max(found["error"].values())
    return f"{text}, wall {wall:,.0f}, error {error:.1e}"


def _precision(candidate: str) -> str:
    """Return the precision that the name of a candidate holds, the second word."""
    return candidate.split()[1]


def _has(frame: Table, precision: str) -> bool:
    return "absent" not in frame["candidates"].get(f"ours {precision}", {"absent": ""})


def stage_table(name: str, frame: Table, precision: str) -> str:
    """Return one frame stage by stage: ours, cuBLAS on equal work, the fastest spconv."""
    everyone = frame["candidates"]
    ours = everyone[f"ours {precision}"]
    products = everyone.get(f"cuBLAS {precision}", {}).get("graph_us", {})
    peer = _fastest(everyone, f"spconv {precision}")
    theirs = everyone[peer]["kernels_us"]["stages"] if peer else {}
    head = [f"frame {name}, stage", "useful GFLOP", f"ours {precision} µs", "error"]
    head += [f"cuBLAS {precision} µs", "ours / cuBLAS"] if products else []
    head += [f"{peer} µs", "spconv / ours"] if peer else []
    lines = []
    for stage in ("maps", *ours["error"]):
        mine = ours["graph_us"][stage]["median"]
        work, error = ours["useful_gflop"].get(stage), ours["error"].get(stage)
        line = [stage, f"{work:.2f}" if work else "", f"{mine:.1f}"]
        line.append("" if error is None else f"{error:.1e}")
        if products:
            dense = products.get(stage, {}).get("median")
            line += [f"{dense:.1f}", f"{mine / dense:.2f}"] if dense else ["", ""]
        if peer:
            other = theirs.get(stage, {}).get("median")
            line += [f"{other:.1f}", f"{other / mine:.2f}"] if other else ["", ""]
        lines.append(line)
    return markdown(head, lines)


def _fastest(everyone: Table, prefix: str) -> str:
    """Return the candidate with the least kernel time among those of one package and precision."""
    fit = {n: device_us(f) for n, f in everyone.items() if n.startswith(f"{prefix} ")}
    fit = {n: time for n, time in fit.items() if math.isfinite(time)}
    return min(fit, key=lambda n: fit[n], default="")


def facts(report: Table, frames: Table) -> str:
    """Return start-up, work and capacity, one line each."""
    lines = []
    for name, frame in frames.items():
        ours = frame["candidates"][OURS]
        lines.append(
            f"- frame {name}: maps {ours['graph_us']['maps']['median']:.0f} µs, voxel features "
            f"{ours['voxel_features_us']:.0f} µs, executed / useful work "
            f"{ours['executed_over_useful']['all']:.3f}."
        )
    for name, start in report.get("start", {}).items():
        if "absent" in start:
            lines.append(f"- {name} start: absent: {start['absent']}")
            continue
        lines.append(
            f"- {name} start: {start['engine_s']:.1f} s from a ready GPU to the first frame "
            f"({start['compile_and_bind_s']:.1f} s of it compiling and binding), "
            f"{start['process_s']:.1f} s from the start of the process."
        )
    for voxels, edge in report.get("edges", {}).items():
        over = "; ".join(f"{n}: {a:,} of {b:,}" for n, (a, b) in edge["overflow"].items())
        lines.append(
            f"- {int(voxels):,} voxels: {edge['graph_us']['median']:.0f} µs"
            + (f", reported as overflow: {over}." if over else ".")
        )
    for name, value in report.get("ceilings", {}).items():
        lines.append(f"- measured ceiling `{name}`: {value}.")
    return "\n".join(lines)


SUITES: dict[str, Callable[[Table, str], str]] = {
    "sparse": tables,
    "frame": frame_tables,
    "ros": ros_tables,
    "bevpool": pool_tables,
    "grid": grid_tables,
}
"""What makes the tables of a result, by its suite."""


SECTIONS = {"grid": "## Grids", "frame": "## Whole frames", "ros": "## Over DDS"}
"""Where the tables of a suite go that had no result before."""


def begin(suite: str) -> str:
    """Return the marker before the tables of a suite."""
    return f"<!-- results:{suite} -->"


def with_markers(text: str, suite: str) -> str:
    """Return a README with markers at the end of the section of a suite, where it has none yet."""
    start = text.find(f"\n{SECTIONS.get(suite, '')}\n")
    if begin(suite) in text or suite not in SECTIONS or start < 0:
        return text
    end = text.find("\n## ", start + 1)
    end = len(text) if end < 0 else end
    section = text[:end].rstrip("\n")
    return f"{section}\n\n{begin(suite)}\n{END}\n{text[end:]}"


def with_tables(text: str, new: str, suite: str) -> str:
    """Return a README with what lies between the markers of a suite replaced.

    Raises:
        ValueError: If the markers are not there, the first once, and in order.
    """
    before, marker, rest = text.partition(begin(suite))
    _, end, after = rest.partition(END)
    if text.count(begin(suite)) != 1 or not end:
        raise ValueError(f"The text needs one '{begin(suite)}' and, after it, one '{END}'.")
    return f"{before}{marker}\n{new}\n{end}{after}"


def main() -> None:
    """Print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="*", type=Path, help="by default the newest of each suite")
    parser.add_argument("--write", action="store_true", help="change kernels/README.md")
    options = parser.parse_args()
    paths = options.results or [path for suite in SUITES if (path := newest(suite=suite))]
    if not paths:
        sys.exit(f"There is no result in {RESULTS}; run bench_sparse_gpu.py on a GPU first.")
    text = README.read_text(encoding="utf-8")
    for path in paths:
        result = load(path)
        suite = result["suite"]
        new = SUITES[suite](result, path.name)
        if options.write:
            text = with_tables(with_markers(text, suite), new, suite)
        else:
            print(new, end="\n\n")
    if options.write:
        README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
