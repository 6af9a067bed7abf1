"""Rays hit exactly what a slow walk along each ray finds first."""

from __future__ import annotations

import numpy as np
import pytest

from driveRT_ros.sim.raycast import cast, cosines
from driveRT_ros.sim.solids import BOX, CYLINDER, ELLIPSOID, FOLIAGE, WEDGE, join, solid
from test.support.plain_rays import enter_all, plain_cast
from test.support.streets import inside, random_rays

KINDS = (BOX, WEDGE, CYLINDER, ELLIPSOID)


def random_bodies(rng: np.random.Generator, kinds: tuple[int, ...], number: int) -> np.ndarray:
    bodies = []
    for k in range(number):
        away, towards = rng.uniform(1.0, 18.0), rng.uniform(-np.pi, np.pi)
        centre = (3 + away * np.cos(towards), -2 + away * np.sin(towards), rng.uniform(-1, 3))
        taper = tuple(rng.uniform(0.0, 0.8, 2))
        bodies.append(
            solid(kinds[k % len(kinds)], centre, rng.uniform(0.2, 4.0, 3), "paint",
                  yaw=rng.uniform(-np.pi, np.pi), taper=taper)
        )  # fmt: skip
    return join(bodies)


@pytest.mark.parametrize("seed", range(3))
def test_first_hits_agree_with_a_walk_along_every_ray(seed):
    rng = np.random.default_rng(seed)
    rays = random_rays(rng)
    bodies = random_bodies(rng, KINDS, 24)
    # A body around the sensor would hide everything; real scenes never put one there.
    bodies = join(b[None] for b in bodies if not inside(b, rays.origins).any())
    hits = cast(rays, bodies, 25.0, np.random.default_rng(0))
    step = 0.01
    t = np.arange(step, 25.0, step)
    for ray in rng.choice(len(hits.range_m), 300, replace=False):
        column, beam = divmod(int(ray), rays.shape[1])
        points = rays.origins[column] + t[:, None] * rays.directions[column, beam]
        solid_at = np.stack([inside(b, points) for b in bodies])
        met = np.nonzero(solid_at.any(0))[0]
        if len(met) == 0:  # the walk may step over a corner thinner than its step
            grazed = hits.body[ray]
            if grazed >= 0:
                at = points[0] + (hits.range_m[ray] - step) * rays.directions[column, beam]
                grown = bodies[grazed].copy()
                grown["half"] = grown["half"] * 1.0001 + 1e-4
                assert inside(grown, at[None]).all()
            continue
        expected = t[met[0]]
        assert expected - step - 1e-6 <= hits.range_m[ray] <= expected + 1e-6 or (
            hits.range_m[ray] < expected  # a corner thinner than a step lies in front
        )


@pytest.mark.parametrize("seed", range(4))
def test_neither_the_search_for_pairs_nor_the_closer_look_leaves_out_any_that_meet(seed):
    rng = np.random.default_rng(seed + 10)
    rays = random_rays(rng)
    bodies = random_bodies(rng, KINDS, 30)
    together = cast(rays, bodies, 25.0, np.random.default_rng(0)).range_m
    count, number = rays.shape[0] * rays.shape[1], len(bodies)
    ray, which = np.repeat(np.arange(count), number), np.tile(np.arange(number), count)
    enter = enter_all(rays, bodies, ray, which, np.random.default_rng(0))
    every = enter.reshape(count, number).min(1)
    np.testing.assert_array_equal(together, np.where(every < 25.0, every, np.inf))


@pytest.mark.parametrize("seed", range(4))
def test_hits_are_those_of_all_pairs_with_the_same_luck(seed):
    rng = np.random.default_rng(seed + 20)
    rays = random_rays(rng)
    bodies = random_bodies(rng, (*KINDS, FOLIAGE), 60)
    bodies["fill"] = rng.choice((0.3, 1.0), len(bodies))
    bodies = join([bodies, bodies[::3]])  # copies are met at the same ranges: the last one counts
    fast, plain = (f(rays, bodies, 25.0, np.random.default_rng(1)) for f in (cast, plain_cast))
    np.testing.assert_array_equal(fast.range_m, plain.range_m)
    np.testing.assert_array_equal(fast.body, plain.body)
    assert (fast.body >= 60).sum() > 20


def test_a_wall_seen_face_on_has_cosine_one_and_less_at_a_slant():
    rays = random_rays(np.random.default_rng(0), columns=720, beams=9)
    wall = solid(BOX, (12.0, 0.0, 0.0), (0.2, 40.0, 20.0), "brick")
    hits = cast(rays, wall, 100.0, np.random.default_rng(0))
    rows = np.nonzero(hits.body >= 0)[0]
    cosine = cosines(rays, wall, rows, hits.body[rows], hits.range_m[rows])
    expected = np.abs(rays.directions.reshape(-1, 3)[rows, 0])
    np.testing.assert_allclose(cosine, expected, atol=1e-9)
    assert len(rows) > 500


def test_leaves_stop_rays_inside_the_crown_as_often_as_their_density_says():
    rays = random_rays(np.random.default_rng(1), columns=720, beams=24)
    crown = solid(FOLIAGE, (12.0, 0.0, 1.0), (6.0, 6.0, 6.0), "leaves", fill=0.4)
    solid_ball = solid(ELLIPSOID, (12.0, 0.0, 1.0), (6.0, 6.0, 6.0), "leaves")
    hits = cast(rays, crown, 100.0, np.random.default_rng(0))
    ball = cast(rays, solid_ball, 100.0, np.random.default_rng(0))
    rows = np.nonzero(hits.body >= 0)[0]
    at = (
        rays.origins[rows // 24] + hits.range_m[rows, None] * (rays.directions.reshape(-1, 3)[rows])
    )
    assert inside(crown[0], at).all()
    through = np.nonzero(ball.body >= 0)[0]
    # Chords of length c through density 0.4 stop 1 - exp(-0.4 c) of the rays.
    d = rays.directions.reshape(-1, 3)[through]
    o = (rays.origins[through // 24] - (12.0, 0.0, 1.0)) / 3.0
    b = (o * d / 3.0).sum(1)
    a = (d * d / 9.0).sum(1)
    chord = 2 * np.sqrt(b * b - a * ((o * o).sum(1) - 1)) / a
    assert abs(len(rows) - (1 - np.exp(-0.4 * chord)).sum()) < 4 * np.sqrt(len(through)) / 2


def test_no_bodies_means_no_hits():
    hits = cast(random_rays(np.random.default_rng(0)), join([]), 50.0, np.random.default_rng(0))
    assert np.isinf(hits.range_m).all() and (hits.body == -1).all()
