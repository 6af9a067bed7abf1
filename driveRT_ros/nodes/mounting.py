"""Whether transforms and parameters agree on where ahead is in the frame of the clouds."""

from __future__ import annotations

import math

import numpy as np

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.io.bev_view import forward_yaw

APART_DEG = 30.0
"""Sensors may stand somewhat askew; beyond this one was meant to face another way."""


def mounting_fault(config: LidarConfig, T_ego_lidar: np.ndarray | None) -> dict[str, str]:
    """Return a sentence by kind of fault where ``input.forward_yaw_deg`` contradicts TF.

    Args:
        config: The parameter, and ``bev.ego_frame_id``, whose +x is ahead.
        T_ego_lidar: (4, 4) LiDAR to that frame; None where TF does not know it.
    """
    if T_ego_lidar is None:
        return {}
    ahead_deg, said_deg = math.degrees(forward_yaw(T_ego_lidar)), config.input.forward_yaw_deg
    if abs((ahead_deg - said_deg + 180.0) % 360.0 - 180.0) <= APART_DEG:
        return {}
    return {
        "mounting": f"TF has +x of '{config.bev.ego_frame_id}' at {round(ahead_deg)} degrees in "
        f"the frame of the clouds, but input.forward_yaw_deg says that ahead is at {said_deg:g}; "
        "the network finds little in clouds that are turned otherwise than it was trained on. Set "
        f"input.forward_yaw_deg to {round(ahead_deg)}."
    }
