"""Where files that travel with the package live, installed or not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from driveRT_ros.core.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parents[1]


def _candidates(name: str) -> list[Path]:
    roots = []
    if "DRIVERT_SHARE" in os.environ:
        roots.append(Path(os.environ["DRIVERT_SHARE"]))
    roots.append(_PACKAGE.parent)  # source tree, also under develop and symlink installs
    roots += [p / "share" / "driveRT_ros" for p in _PACKAGE.parents]  # <prefix>/lib/pythonX/...
    roots.append(Path(sys.prefix) / "share" / "driveRT_ros")
    return [root / name for root in roots]


def share_path(name: str) -> Path:
    """Return the folder or file ``name`` (``kernels``, ``config/...``, ``interfaces/...``).

    The search order is the environment variable ``DRIVERT_SHARE``, the source tree beside the
    package, then ``share/driveRT_ros`` below every prefix the package can be installed under.

    Raises:
        ConfigError: If it is in none of them; the message lists where it was looked for.
    """
    looked = _candidates(name)
    for path in looked:
        if path.exists():
            return path
    raise ConfigError(
        f"'{name}' of driveRT_ros was not found; looked in {', '.join(map(str, looked))}. "
        "Reinstall the package or set DRIVERT_SHARE to its share folder."
    )
