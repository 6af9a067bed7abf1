"""Box conventions, kept in this one file.

A box is a row ``x, y, z, length, width, height, yaw, vx, vy``: the centre in metres, the size along
the box's own x (forward), y (left) and z (up), and the heading in radians, counter-clockwise about
+z from +x. The velocity is given in the frame of the box centre. OpenPCDet and mmdetection3d from
1.0 use the same yaw; older mmdetection3d does not, see :func:`boxes_from_legacy_mmdet`.

Rigid transforms are (4, 4) matrices named ``T_to_from``: ``p_to = T_to_from @ p_from``.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from driveRT_ros.core.errors import InvalidFrame

BOX_DIM = 9
CENTER = slice(0, 3)
SIZE_LWH = slice(3, 6)
YAW = 6
VELOCITY = slice(7, 9)

# Signs of half length and half width: front left, rear left, rear right, front right, which is
# counter-clockwise seen from above.
_CORNER_SIGNS = ((1.0, 1.0), (-1.0, 1.0), (-1.0, -1.0), (1.0, -1.0))


def wrap_yaw(yaw_ccw: torch.Tensor) -> torch.Tensor:
    """Return the same headings in [-pi, pi).

    Args:
        yaw_ccw: (...) radians.
    """
    wrapped = torch.remainder(yaw_ccw + math.pi, 2 * math.pi) - math.pi
    # remainder() can round up to the modulus itself
    return torch.where(wrapped >= math.pi, wrapped - 2 * math.pi, wrapped)


def bev_corners(boxes: torch.Tensor) -> torch.Tensor:
    """Return the four corners seen from above.

    Args:
        boxes: (M, 7 or more).

    Returns:
        (M, 4, 2) x, y in metres: front left, rear left, rear right, front right.
    """
    signs = boxes.new_tensor(_CORNER_SIGNS)
    half = boxes[:, None, 3:5] / 2 * signs
    cos, sin = torch.cos(boxes[:, YAW])[:, None], torch.sin(boxes[:, YAW])[:, None]
    x = boxes[:, None, 0] + half[..., 0] * cos - half[..., 1] * sin
    y = boxes[:, None, 1] + half[..., 0] * sin + half[..., 1] * cos
    return torch.stack((x, y), dim=-1)


def corners(boxes: torch.Tensor) -> torch.Tensor:
    """Return the eight corners.

    Args:
        boxes: (M, 7 or more).

    Returns:
        (M, 8, 3) metres: the bottom face in the order of :func:`bev_corners`, then the top face.
    """
    xy = bev_corners(boxes)
    half_height = boxes[:, 5] / 2
    faces = []
    for z in (boxes[:, 2] - half_height, boxes[:, 2] + half_height):
        faces.append(torch.cat((xy, z[:, None, None].expand(-1, 4, 1)), dim=-1))
    return torch.cat(faces, dim=1)


def yaw_to_quat_xyzw(yaw_ccw: torch.Tensor) -> torch.Tensor:
    """Return the unit quaternions of rotations about +z.

    Args:
        yaw_ccw: (...) radians.

    Returns:
        (..., 4) x, y, z, w.
    """
    zero = torch.zeros_like(yaw_ccw)
    return torch.stack((zero, zero, torch.sin(yaw_ccw / 2), torch.cos(yaw_ccw / 2)), dim=-1)


def quats_of_yaws(yaw_ccw: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return what :func:`yaw_to_quat_xyzw` returns, bit for bit, with two operations of torch.

    For the path of a frame, where each operation costs some 20 microseconds more than its work: its
    code has left the caches while the host waited for the device.

    Args:
        yaw_ccw: (N,) radians.

    Returns:
        (N, 4) x, y, z, w.
    """
    half, quats = torch.from_numpy(yaw_ccw / 2), np.zeros((len(yaw_ccw), 4))
    quats[:, 2], quats[:, 3] = torch.sin(half).numpy(), torch.cos(half).numpy()
    return quats


def quat_xyzw_to_yaw(quat_xyzw: torch.Tensor) -> torch.Tensor:
    """Return the heading of the rotated +x axis, projected to the ground.

    Args:
        quat_xyzw: (..., 4), of any length but zero.

    Raises:
        InvalidFrame: If a quaternion is zero or not finite.
    """
    norm_squared = (quat_xyzw * quat_xyzw).sum(dim=-1)
    if not bool((torch.isfinite(norm_squared) & (norm_squared > 0)).all()):
        raise InvalidFrame(
            "A rotation is not a quaternion; fill in x, y, z, w.",
            "quat_xyzw",
            quat_xyzw.tolist(),
            "finite values that are not all zero",
        )
    x, y, z, w = quat_xyzw.unbind(dim=-1)
    return torch.atan2(2 * (w * z + x * y), w * w + x * x - y * y - z * z)


def transform_boxes(boxes: torch.Tensor, T_to_from: np.ndarray | torch.Tensor) -> torch.Tensor:
    """Express boxes in another frame at the same instant.

    The centre is rotated and moved. Heading and velocity are rotated only, and projected to the
    ground where the transform tilts. The motion of the frame itself is not added to the velocity.
    A NaN velocity stays NaN.

    Args:
        boxes: (M, 9) in the frame ``from``.
        T_to_from: (4, 4) rigid transform.

    Returns:
        (M, 9) in the frame ``to``, in the dtype of ``boxes``; computed in float64.
    """
    transform = torch.as_tensor(T_to_from, dtype=torch.float64, device=boxes.device)
    rotation, translation = transform[:3, :3], transform[:3, 3]
    old, new = boxes.double(), boxes.double().clone()
    new[:, CENTER] = old[:, CENTER] @ rotation.T + translation
    heading = torch.stack((torch.cos(old[:, YAW]), torch.sin(old[:, YAW])), dim=-1)
    heading = heading @ rotation[:2, :2].T
    new[:, YAW] = torch.atan2(heading[:, 1], heading[:, 0])
    new[:, VELOCITY] = old[:, VELOCITY] @ rotation[:2, :2].T
    return new.to(boxes.dtype)


def rotate_xy(vectors_xy: torch.Tensor, angle_ccw: torch.Tensor) -> torch.Tensor:
    """Rotate plane vectors, such as a velocity into the frame of its object (angle = -yaw).

    Args:
        vectors_xy: (M, 2).
        angle_ccw: (M,) radians.

    Returns:
        (M, 2).
    """
    cos, sin = torch.cos(angle_ccw), torch.sin(angle_ccw)
    x, y = vectors_xy.unbind(dim=-1)
    return torch.stack((cos * x - sin * y, sin * x + cos * y), dim=-1)


def boxes_from_legacy_mmdet(boxes: torch.Tensor) -> torch.Tensor:
    """Convert boxes of mmdetection3d before 1.0 (and of second.pytorch).

    Those store ``x, y, z, width, length, height, r[, vx, vy]`` with the heading at ``-r - pi/2``.
    ``z`` must already be the centre of the box, not its bottom.

    Args:
        boxes: (M, 7 or 9).

    Returns:
        (M, 9); the velocity is NaN where it was not given.
    """
    out = boxes.new_full((len(boxes), BOX_DIM), math.nan)
    out[:, CENTER] = boxes[:, CENTER]
    out[:, SIZE_LWH] = boxes[:, (4, 3, 5)]
    out[:, YAW] = wrap_yaw(-boxes[:, 6] - math.pi / 2)
    if boxes.shape[1] >= BOX_DIM:
        out[:, VELOCITY] = boxes[:, 7:9]
    return out
