"""What of a bag is to be played; knows no ROS."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.io.topics import POINT_CLOUD, choose_topic
from driveRT_ros.nodes.replay_config import ReplayConfig


def choose_played(
    config: ReplayConfig, inside: Mapping[str, str]
) -> tuple[ReplayConfig, dict[str, str]]:
    """Settle the topics to play and the cloud that paces them.

    A recorded /clock is left out: the replay makes its own.

    Args:
        config: What was asked for.
        inside: Type name by topic of the bag.

    Returns:
        The configuration with ``topics`` and ``cloud_topic`` filled in (``cloud_topic`` stays empty
        where there are none or several and no lockstep needs one), and the type name by topic.

    Raises:
        ConfigError: If the bag lacks what was asked for.
    """
    absent = sorted(set(config.topics) - set(inside))
    if absent:
        raise ConfigError(
            f"Bag '{config.bag_path}' has no topic {' or '.join(map(repr, absent))}; "
            f"it has {', '.join(sorted(inside)) or 'none'}."
        )
    types = {t: inside[t] for t in (config.topics or inside) if t != "/clock"}
    cloud = config.cloud_topic
    clouds = [topic for topic, kind in types.items() if kind == POINT_CLOUD]
    if cloud or config.lockstep_topic or len(clouds) == 1:
        cloud = choose_topic(types, cloud, bag=config.bag_path, option="cloud_topic")
    return dataclasses.replace(config, cloud_topic=cloud, topics=tuple(types)), types


def expected_clouds(config: ReplayConfig, counts: Mapping[str, int]) -> int:
    """Return how many clouds will be played, or 0 where that cannot be known before.

    Args:
        config: As settled by :func:`choose_played`.
        counts: Messages by topic of the bag.
    """
    if config.start_offset_s or (config.loop and not config.passes):
        return 0
    count = counts.get(config.cloud_topic, 0)
    count = min(count, config.max_clouds or count)
    return count * (config.passes if config.loop else 1)
