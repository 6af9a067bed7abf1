"""Fixtures that every test folder shares."""

from __future__ import annotations

import fcntl
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from driveRT_ros.nodes.shared_memory import remove_dead
from driveRT_ros.nodes.transport import CHOICES, transport_environment

REPO = Path(__file__).resolve().parents[1]

# What nodes use where nothing is said, whatever the environment of the tests says. Fast DDS reads
# it once in a process.
for choice in CHOICES:
    os.environ.pop(choice, None)
os.environ.update(transport_environment({}))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked ``gpu`` where no CUDA device can be used."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch  # Slow to import; most runs select no GPU test.

    if torch.cuda.is_available():
        return
    reason = f"torch {torch.__version__} finds no CUDA device on this machine"
    for item in marked:
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of real frames and bags, which the project does not ship.

    Its place is the environment variable ``DRIVERT_DATA``, by default ``../shared/data`` beside the
    repository. Tests that need it are skipped where it is absent.
    """
    folder = Path(os.environ.get("DRIVERT_DATA") or REPO.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(
            f"real data not found in {folder}; set DRIVERT_DATA to the folder that holds it"
        )
    return folder


@pytest.fixture
def ros_env(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Environment of node processes that hear each other and nobody else.

    The domain is one that no other test on this machine uses at the moment: a file lock holds it
    until the test ends. Domains above 100 would put their ports into the ephemeral range.
    """
    locks = Path(tempfile.gettempdir()) / f"drivert-domains-{os.getuid()}"
    locks.mkdir(exist_ok=True)
    # Not seeded on purpose: runs that start together should try different domains first.
    domains = random.SystemRandom().sample(range(1, 101), 100)
    for domain in domains:
        with (locks / str(domain)).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            remove_dead()
            yield {
                **os.environ,
                "ROS_DOMAIN_ID": str(domain),
                "ROS_LOG_DIR": str(tmp_path / "ros_log"),
                "PYTHONUNBUFFERED": "1",
            }
            return
    pytest.fail("all 100 ROS domains are in use by other tests on this machine")
