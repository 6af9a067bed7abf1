"""Seeded point clouds of a street, as a roof-mounted spinning LiDAR sees it."""

from __future__ import annotations

import math

import torch


def street(*, seed: int = 0, rings: int = 16, azimuths: int = 360, sweeps: int = 3) -> torch.Tensor:
    """Return (N, 5) float32 x, y, z, intensity, time lag: ground rings, walls and parked cars."""
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape):
        return torch.rand(*shape, generator=generator)

    clouds = []
    for sweep in range(sweeps):
        ring = torch.arange(rings).repeat_interleave(azimuths)
        azimuth = 2 * math.pi * (torch.arange(azimuths).repeat(rings) + rand(1)) / azimuths
        radius = 4.0 * 1.18 ** ring.float() + 0.05 * rand(len(ring))
        ground = torch.stack(
            (radius * azimuth.cos(), radius * azimuth.sin(), -1.8 + 0.03 * rand(len(ring))), dim=1
        )
        count = 60 * rings
        along, height = 80 * rand(count) - 40, 3.5 * rand(count) - 1.7
        side = torch.where(rand(count) < 0.5, -12.0, 12.0) + 0.1 * rand(count)
        walls = torch.stack((along, side, height), dim=1)
        places = torch.stack((70 * rand(12) - 35, torch.tensor([6.0, -6.0]).repeat(6)), dim=1)
        surface = rand(12, 8 * rings, 3)
        cars = (surface - 0.5) * torch.tensor([4.4, 1.8, 1.6])
        cars[..., :2] += places[:, None]
        cars[..., 2] -= 1.0
        xyz = torch.cat((ground, walls, cars.reshape(-1, 3)))
        lag = torch.full((len(xyz), 1), 0.05 * sweep)
        clouds.append(torch.cat((xyz, 60 * rand(len(xyz), 1), lag), dim=1))
    return torch.cat(clouds)
