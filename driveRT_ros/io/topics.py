"""Choose the topic of a bag that was meant, or say which ones there are."""

from __future__ import annotations

from collections.abc import Mapping

from driveRT_ros.core.errors import ConfigError

POINT_CLOUD = "sensor_msgs/msg/PointCloud2"


def choose_topic(
    topics: Mapping[str, str],
    wanted: str = "",
    *,
    bag: str,
    type_name: str = POINT_CLOUD,
    option: str = "--topic",
) -> str:
    """Return ``wanted``, or the only topic of ``type_name``; a topic without messages will do.

    Args:
        topics: Type name by topic, as the bag lists them.
        wanted: The user's choice; empty takes the only candidate.
        bag: Name of the bag, for messages.
        type_name: Type that the topic must have.
        option: How the user names a choice, for messages.

    Raises:
        ConfigError: If ``wanted`` is absent or of another type, or nothing was wanted and there is
            not exactly one candidate; the message lists the topics of the right type.
    """
    candidates = sorted(name for name, kind in topics.items() if kind == type_name)
    listed = (
        f"Its {type_name} topics: {', '.join(candidates)}."
        if candidates
        else f"It has no {type_name} topic; all topics: {', '.join(sorted(topics)) or 'none'}."
    )
    if wanted in candidates:
        return wanted
    if wanted in topics:
        raise ConfigError(
            f"Topic '{wanted}' of bag '{bag}' is a {topics[wanted]}, not a {type_name}. {listed}"
        )
    if wanted:
        raise ConfigError(f"Bag '{bag}' has no topic '{wanted}'. {listed}")
    if len(candidates) == 1:
        return candidates[0]
    choose = f" Choose one with {option}." if candidates else ""
    raise ConfigError(f"Bag '{bag}' has {len(candidates)} topics to choose from. {listed}{choose}")
