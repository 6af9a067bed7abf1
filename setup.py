"""Build recipe for pip (the .venv of the Makefile) and for colcon (a ROS 2 workspace)."""

from pathlib import Path

from setuptools import find_packages, setup

NAME = "driveRT_ros"


def share(folder: str, *patterns: str) -> list[tuple[str, list[str]]]:
    """List the files of a folder that matches as data files of the share folder.

    Args:
        folder: Folder of the repository; sub-folders keep their place.
        patterns: File name patterns.

    Returns:
        Pairs (installed folder, source files), as setuptools wants them.
    """
    by_folder: dict[str, list[str]] = {}
    for path in sorted(p for pattern in patterns for p in Path(folder).rglob(pattern)):
        if path.is_file() and "__pycache__" not in path.parts:
            by_folder.setdefault(f"share/{NAME}/{path.parent}", []).append(str(path))
    return list(by_folder.items())


setup(
    name=NAME,
    version="0.1.0",
    description="ROS 2 perception nodes: LiDAR detector and cameras in the bird's-eye view",
    license="Apache-2.0",
    maintainer="driveRT_ros maintainers",
    maintainer_email="maintainers@example.org",
    python_requires=">=3.10",
    packages=find_packages(include=[NAME, f"{NAME}.*"]),
    package_data={NAME: ["models/weights/*"]},
    data_files=[
        # The marker lets ROS find the package; it lies in config/ to keep the top level short.
        ("share/ament_index/resource_index/packages", [f"config/ament/{NAME}"]),
        (f"share/{NAME}", ["package.xml"]),
        *share("launch", "*"),
        *share("config", "*.xml", "*.yaml", "*.json", "*.rviz", "*.md"),
        *share("kernels", "*"),
        *share("interfaces", "*"),
    ],
    zip_safe=False,
    entry_points={
        "console_scripts": [
            f"drivert = {NAME}.__main__:main",
            f"camera_node = {NAME}.nodes.camera_node:main",
            f"lidar_node = {NAME}.nodes.lidar_node:main",
            f"offline_camera_node = {NAME}.nodes.offline_camera_node:main",
            f"offline_node = {NAME}.nodes.offline_node:main",
            f"recorder_node = {NAME}.nodes.recorder_node:main",
            f"replay_node = {NAME}.nodes.replay_node:main",
        ],
    },
)
