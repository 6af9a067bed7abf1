"""Write the parameter tables of README.md from the configuration: `python docs/parameters.py`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.schema import Config, Parameter

README = Path(__file__).resolve().parents[1] / "README.md"
TABLES: dict[str, type[Config]] = {"parameters": LidarConfig, "camera parameters": CameraConfig}


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


def table(config: type[Config]) -> str:
    """Return the markdown table of every parameter."""
    rows = ["| name | default | unit | values | meaning |", "|---|---|---|---|---|"]
    rows += [
        f"| `{p.name}` | {default(p)} | {p.info.unit} | {allowed(p)} | {p.info.doc} |"
        for p in config.parameters()
    ]
    return "\n".join(rows) + "\n"


def with_table(text: str) -> str:
    """Return the README with its tables made anew."""
    for name, config in TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        text = head + begin + table(config) + end + tail
    return text


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
