"""Rigid transforms as (4, 4) float64 arrays; quaternions are x, y, z, w and of unit length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from driveRT_ros.core.errors import InvalidFrame


def rigid(translation: Sequence[float], quat_xyzw: Sequence[float]) -> np.ndarray:
    """Return the (4, 4) float64 transform of a translation in metres and a rotation.

    Raises:
        InvalidFrame: If the quaternion is far from unit length, or a value is not finite.
    """
    xyz, quat = np.asarray(translation, np.float64), np.asarray(quat_xyzw, np.float64)
    norm = float(np.linalg.norm(quat))
    if not (0.9 < norm < 1.1 and np.isfinite(xyz).all()):
        raise InvalidFrame(
            "A transform needs a finite translation and a unit quaternion.",
            "transform",
            (*xyz.tolist(), *quat.tolist()),
            "x, y, z and then x, y, z, w of length 1",
        )
    return _matrix(xyz, quat / norm)


def _matrix(xyz: np.ndarray, quat_xyzw: np.ndarray) -> np.ndarray:
    x, y, z, w = quat_xyzw
    T = np.eye(4)
    T[:3, :3] = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)),
        (2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)),
        (2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)),
    )
    T[:3, 3] = xyz
    return T


def inverse(T_a_b: np.ndarray) -> np.ndarray:
    """Return T_b_a; a rotation is inverted by its transpose, so nothing is lost."""
    R_b_a = T_a_b[:3, :3].T
    out = np.eye(4)
    out[:3, :3] = R_b_a
    out[:3, 3] = -R_b_a @ T_a_b[:3, 3]
    return out


def quat_xyzw_of(R: np.ndarray) -> np.ndarray:
    """Return the unit quaternion (4,) of a (3, 3) rotation, with w >= 0.

    Source: S. W. Shepperd, Quaternion from Rotation Matrix, 1978: divide by the largest component.
    """
    trace = R[0, 0] + R[1, 1] + R[2, 2]
    k = int(np.argmax([R[0, 0], R[1, 1], R[2, 2], trace]))
    quat = np.empty(4)
    if k == 3:
        quat[:] = (R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1], 1 + trace)
    else:
        i, j = (k + 1) % 3, (k + 2) % 3
        quat[k] = 1 + 2 * R[k, k] - trace
        quat[i] = R[i, k] + R[k, i]
        quat[j] = R[j, k] + R[k, j]
        quat[3] = R[j, i] - R[i, j]
    quat /= np.linalg.norm(quat)
    return -quat if quat[3] < 0 else quat


def interpolate(T_0: np.ndarray, T_1: np.ndarray, fraction: float) -> np.ndarray:
    """Return the transform between two: linear translation, rotation along the shorter arc.

    Source: K. Shoemake, Animating Rotation with Quaternion Curves, 1985 (slerp).

    Args:
        T_0: At fraction 0.
        T_1: At fraction 1.
        fraction: 0..1.
    """
    q_0, q_1 = quat_xyzw_of(T_0[:3, :3]), quat_xyzw_of(T_1[:3, :3])
    dot = float(q_0 @ q_1)
    if dot < 0.0:
        q_1, dot = -q_1, -dot
    if dot > 1.0 - 1e-9:  # the sine below would vanish; the chord is the arc here
        quat = (1 - fraction) * q_0 + fraction * q_1
    else:
        angle = np.arccos(dot)
        quat = np.sin((1 - fraction) * angle) * q_0 + np.sin(fraction * angle) * q_1
    xyz = (1 - fraction) * T_0[:3, 3] + fraction * T_1[:3, 3]
    return _matrix(xyz, quat / np.linalg.norm(quat))
