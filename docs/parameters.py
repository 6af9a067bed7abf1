"""Write the parameter table of README.md from the configuration: `python docs/parameters.py`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.schema import Parameter

README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN, END = "<!-- parameters -->\n", "<!-- /parameters -->"


def allowed(parameter: Parameter) -> str:
    """Return the values a parameter takes, as people write them."""
    info = parameter.info
    if info.choices:
        return ", ".join(f"`{choice}`" for choice in info.choices)
    if info.ge is None and info.le is None:
        return ""
    low = "" if info.ge is None else f"{info.ge:g} ≤ "
    high = "" if info.le is None else f" ≤ {info.le:g}"
    return f"{low}x{high}"


def default(parameter: Parameter) -> str:
    """Return the default as YAML, short."""
    value = parameter.default
    if parameter.is_list:
        text = "[" + ", ".join(str(v) for v in value) + "]"
        return f"`{text}`" if len(text) <= 60 else f"{len(value)} values"
    return f"`{value}`" if value != "" else "empty"


def table() -> str:
    """Return the markdown table of every parameter."""
    rows = ["| name | default | unit | values | meaning |", "|---|---|---|---|---|"]
    rows += [
        f"| `{p.name}` | {default(p)} | {p.info.unit} | {allowed(p)} | {p.info.doc} |"
        for p in LidarConfig.parameters()
    ]
    return "\n".join(rows) + "\n"


def with_table(text: str) -> str:
    """Return the README with its table made anew."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return head + BEGIN + table() + END + tail


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
