"""A ROS domain for every test, so that no participant of an earlier one is around."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from driveRT_ros.nodes.process_env import private_domain


@pytest.fixture
def domain_id() -> Iterator[int]:
    """A ROS domain that nobody else on this machine uses."""
    with private_domain() as domain:
        yield domain
