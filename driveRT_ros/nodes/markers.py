"""Detections as RViz markers: boxes in class colours, velocity arrows, labels."""

from __future__ import annotations

import math
from typing import Any

from geometry_msgs.msg import Point, Pose, Quaternion, Vector3
from std_msgs.msg import ColorRGBA
from visualization_msgs.msg import Marker, MarkerArray

from driveRT_ros.core import boxes as box
from driveRT_ros.core.frame import Detections
from driveRT_ros.io.palette import class_color_unit

LEAST_SPEED_M_S = 0.2
"""Slower than this is standing: the arrow would be shorter than it is wide."""

BOX_ALPHA = 0.45
LABEL_HEIGHT_M = 0.8
ARROW_WIDTH_M = 0.25


def detection_markers(header: Any, found: Detections) -> MarkerArray:
    """Encode detections; the first marker deletes those of the frame before.

    The arrow starts at the centre and ends where the object will be in one second.
    """
    markers = [Marker(header=header, action=Marker.DELETEALL)]
    quats_xyzw = box.yaw_to_quat_xyzw(found.boxes[:, box.YAW].double())
    rows = zip(found.boxes.double().tolist(), quats_xyzw.tolist())
    for index, (row, quat_xyzw) in enumerate(rows):
        name = found.class_names[int(found.labels[index])]
        text = f"{name} {float(found.scores[index]):.2f}"
        markers += _markers_of(header, index, row, quat_xyzw, name, text)
    return MarkerArray(markers=markers)


def _markers_of(
    header: Any, index: int, row: list[float], quat_xyzw: list[float], name: str, text: str
) -> list[Marker]:
    (x, y, z), size_lwh, (vx, vy) = row[box.CENTER], row[box.SIZE_LWH], row[box.VELOCITY]
    r, g, b = class_color_unit(name)
    center = Point(x=x, y=y, z=z)
    cube = Marker(
        header=header,
        ns="boxes",
        id=index,
        type=Marker.CUBE,
        pose=Pose(position=center, orientation=Quaternion(**dict(zip("xyzw", quat_xyzw)))),
        scale=Vector3(**dict(zip("xyz", size_lwh))),
        color=ColorRGBA(r=r, g=g, b=b, a=BOX_ALPHA),
    )
    top = z + size_lwh[2] / 2
    label = Marker(
        header=header,
        ns="labels",
        id=index,
        type=Marker.TEXT_VIEW_FACING,
        pose=Pose(position=Point(x=x, y=y, z=top + LABEL_HEIGHT_M)),
        scale=Vector3(z=LABEL_HEIGHT_M),
        color=ColorRGBA(r=r, g=g, b=b, a=1.0),
        text=text,
    )
    if not math.hypot(vx, vy) >= LEAST_SPEED_M_S:  # also false for an unknown (NaN) velocity
        return [cube, label]
    arrow = Marker(
        header=header,
        ns="velocities",
        id=index,
        type=Marker.ARROW,
        points=[center, Point(x=x + vx, y=y + vy, z=z)],
        scale=Vector3(x=ARROW_WIDTH_M, y=2 * ARROW_WIDTH_M),
        color=ColorRGBA(r=r, g=g, b=b, a=1.0),
    )
    return [cube, label, arrow]
