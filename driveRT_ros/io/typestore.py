"""ROS 2 message classes without ROS: the standard ones and those defined under interfaces/."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.paths import share_path


@lru_cache(maxsize=1)
def typestore() -> Typestore:
    """Return the one store; its classes, layouts and type hashes are those of ROS 2 Kilted."""
    store = get_typestore(Stores.ROS2_KILTED)
    added: dict[str, Any] = {}
    for path in sorted(share_path("interfaces").glob("*/msg/*.msg")):
        name = f"{path.parents[1].name}/msg/{path.stem}"
        added.update(get_types_from_msg(path.read_text(encoding="utf-8"), name))
    store.register({name: value for name, value in added.items() if name not in store.fielddefs})
    return store


def message_type(name: str) -> type:
    """Return the class of a message, such as ``vision_msgs/msg/Detection3DArray``.

    This is the ``types`` that the builders of ``io.encode`` take.

    Raises:
        ConfigError: If there is no such message.
    """
    try:
        return typestore().types[name]
    except KeyError:
        raise ConfigError(
            f"Message type '{name}' is unknown; expected 'package/msg/Name'."
        ) from None


def serialize(message: Any, type_name: str) -> bytes:
    """Return the CDR bytes (little-endian, with encapsulation header) of a rosbags message."""
    return bytes(typestore().serialize_cdr(message, type_name))


def deserialize(raw: bytes, type_name: str) -> Any:
    """Return the rosbags message in CDR bytes.

    Raises:
        ConfigError: If the type is unknown.
    """
    message_type(type_name)
    return typestore().deserialize_cdr(raw, type_name)


def canonical_cdr(raw: bytes, type_name: str, store: Typestore | None = None) -> bytes:
    """Return the bytes of the same message with every padding byte zero.

    Fast CDR leaves whatever was in memory between fields, so rclpy serializes equal messages to
    unequal bytes. Bytes that are not such a message are returned as they came.
    """
    store = store or typestore()
    if type_name not in store.types:
        return raw
    try:
        return bytes(store.serialize_cdr(store.deserialize_cdr(raw, type_name), type_name))
    except Exception:  # whatever the bytes are, recording them is right and changing them is not
        return raw
