"""The regions of a KITTI image whose objects nobody labelled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from driveRT_ros.core.boxes import corners
from driveRT_ros.core.frame import Detections

VEHICLE_SHARE, OTHER_SHARE = 0.7, 0.5
"""A detection belongs to a region that holds more than this share of its own rectangle."""
VEHICLES = ("car", "truck", "construction_vehicle", "bus", "trailer")
NEAR_M = 0.1
"""What is nearer to the image plane is cut off before it is projected."""
_FACE = ((0, 1), (1, 2), (2, 3), (3, 0))
_EDGES = np.array([*_FACE, *((a + 4, b + 4) for a, b in _FACE), *((k, k + 4) for k in range(4))])


@dataclass(frozen=True, eq=False)
class DontCare:
    """Rectangles labelled ``DontCare``: a detection there is neither right nor wrong.

    Source: ``evaluate_object`` of the KITTI devkit (Geiger et al., 2012). It compares rectangles
    in the image; on the ground and in space a ``DontCare`` has no place, so that detections are
    projected here to see where they fall.

    Args:
        rectangles: (K, 4) left, top, right, bottom in pixels.
        P_image_ego: (3, 4) from the ego frame to homogeneous pixels and depth.
        size_wh: Of the image; None where it is not there: then nothing is cut at its borders.
    """

    rectangles: npt.NDArray[np.float64]
    P_image_ego: npt.NDArray[np.float64]
    size_wh: tuple[int, int] | None

    def holds(
        self, found: Detections, T_ego_lidar: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.bool_]:
        """Return (M,) whether a region holds enough of each box, as its class asks.

        Args:
            found: In the LiDAR frame.
            T_ego_lidar: (4, 4) from there to the ego frame.
        """
        names = np.array(found.class_names)[found.labels.numpy()]
        least = np.where(np.isin(names, VEHICLES), VEHICLE_SHARE, OTHER_SHARE)
        mine = self._projected(found, T_ego_lidar)
        held: npt.NDArray[np.bool_] = self._share(mine) > least
        return held

    def _share(self, mine: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the greatest share of each rectangle that lies in a single region."""
        low = np.maximum(mine[:, None, :2], self.rectangles[None, :, :2])
        high = np.minimum(mine[:, None, 2:], self.rectangles[None, :, 2:])
        common = np.maximum(high - low, 0.0).prod(axis=2).max(axis=1, initial=0.0)
        area = (mine[:, 2:] - mine[:, :2]).prod(axis=1)
        return common / np.maximum(area, 1e-12)

    def _projected(
        self, found: Detections, T_ego_lidar: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """Return the (M, 4) rectangles that boxes fill in the image; empty where they do not."""
        P_image_lidar = self.P_image_ego @ T_ego_lidar
        places = corners(found.boxes.double()).numpy()
        seen = places @ P_image_lidar[:, :3].T + P_image_lidar[:, 3]
        start, end = seen[:, _EDGES[:, 0]], seen[:, _EDGES[:, 1]]
        depths = start[..., 2], end[..., 2]
        crosses = (depths[0] < NEAR_M) != (depths[1] < NEAR_M)
        run = np.where(crosses, depths[1] - depths[0], np.nan)
        cut = start + ((NEAR_M - depths[0]) / run)[..., None] * (end - start)
        every = np.concatenate([seen, cut], axis=1)
        every[every[..., 2] < NEAR_M * (1 - 1e-9)] = np.nan
        pixels = every[..., :2] / every[..., 2:]
        visible = ~np.isnan(pixels).all(axis=(1, 2))
        out = np.zeros((len(found), 4))
        out[visible, :2] = np.nanmin(pixels[visible], axis=1)
        out[visible, 2:] = np.nanmax(pixels[visible], axis=1)
        if self.size_wh is not None:
            np.clip(out, 0.0, np.tile(self.size_wh, 2), out=out)
        return out
