"""Simulated cameras: the world that the LiDAR sees, right occlusion, the same bytes each time."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest

from driveRT_ros.core.camera_images import check_frame
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import NUSCENES_CLASSES, CameraFrame, SceneFrame
from driveRT_ros.io.image import with_pixels
from driveRT_ros.io.palette import CLASS_COLORS
from driveRT_ros.sim.cameras import Cameras
from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.facets import Facets, facets_of
from driveRT_ros.sim.lidar import Lidar
from driveRT_ros.sim.raster import Drawing, Pose, draw
from driveRT_ros.sim.rig import HEIGHT, NAMES, RIG, WIDTH
from driveRT_ros.sim.simulate import simulate
from driveRT_ros.sim.solids import (
    BOX,
    CYLINDER,
    ELLIPSOID,
    FOLIAGE,
    NOBODY,
    SOLID,
    WEDGE,
    join,
    solid,
)
from driveRT_ros.sim.streams import SWEEP, stream
from driveRT_ros.sim.world import World
from test.support.streets import inside

SUN = np.array([0.6, 0.0, 0.8])
LOOK_ALONG_X = np.array([[0.0, 0, 1, 0], [-1, 0, 0, 0], [0, -1, 0, 0], [0, 0, 0, 1]])
SIZE_WH = (160, 120)
SMALL_K = np.array([[120.0, 0, 80], [0, 120, 60], [0, 0, 1]])
SEEN = np.full((SIZE_WH[1], SIZE_WH[0]), 100, np.uint8)


def config(seed: int = 3, **values: object) -> SimConfig:
    small = {"cameras.enabled": True, "cameras.scale": 0.25, "cameras.every_nth_sweep": 1}
    return SimConfig.from_dict({"seed": seed, "num_sweeps": 3} | small | values)


@cache
def drive(seed: int = 3) -> tuple[SceneFrame, ...]:
    return tuple(simulate(config(seed)))


def bodies(*parts: np.ndarray) -> np.ndarray:
    """Return solids, each owned by its number."""
    out = join(parts)
    out["owner"] = np.arange(len(out))
    return out


def drawn(solids: np.ndarray, T: np.ndarray = LOOK_ALONG_X) -> tuple[Drawing, np.ndarray]:
    facets = facets_of(solids, {}, SUN)
    drawing = draw(facets, Pose(SMALL_K, T, SIZE_WH), 100.0, SEEN)
    return drawing, drawing.owner(facets)


def pixel_rays() -> np.ndarray:
    """Return directions (H, W, 3) of pixels in camera axes, with depth 1."""
    v, u = np.mgrid[0 : SIZE_WH[1], 0 : SIZE_WH[0]].astype(np.float64)
    local = np.stack([(u - 80) / 120, (v - 60) / 120, np.ones_like(u)], axis=-1)
    return local @ LOOK_ALONG_X[:3, :3].T


def inner(owner: np.ndarray) -> np.ndarray:
    """Tell which pixels have neighbours, one and two away, of the same owner."""
    same = np.ones_like(owner, bool)
    for axis in (0, 1):
        for step in (-2, -1, 1, 2):
            same &= np.roll(owner, step, axis) == owner
    return same


# --- a drive -------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_images_and_another_seed_does_not():
    again = list(simulate(config()))
    for first, second in zip(drive(), again):
        assert [c.encoded for c in first.cameras] == [c.encoded for c in second.cameras]
    assert drive(4)[0].cameras[0].encoded != drive()[0].cameras[0].encoded


def test_images_change_neither_points_nor_ground_truth():
    without = list(simulate(SimConfig.from_dict({"seed": 3, "num_sweeps": 3})))
    for seen, blind in zip(drive(), without):
        np.testing.assert_array_equal(seen.points.xyz, blind.points.xyz)
        np.testing.assert_array_equal(seen.points.intensity, blind.points.intensity)
        np.testing.assert_array_equal(seen.ground_truth.boxes, blind.ground_truth.boxes)
        np.testing.assert_array_equal(seen.ground_truth.track_ids, blind.ground_truth.track_ids)
        assert blind.cameras == ()


def test_six_calibrated_images_of_the_asked_size_come_with_the_asked_sweeps():
    frames = list(simulate(config(**{"num_sweeps": 5, "cameras.every_nth_sweep": 2})))
    assert [len(frame.cameras) for frame in frames] == [6, 0, 6, 0, 6]
    for camera in frames[2].cameras:
        assert camera.stamp_ns == frames[2].points.stamp_ns and camera.frame_id == camera.name
        assert camera.size_wh == (400, 225) and camera.format == "jpeg"
        pixels = with_pixels(camera)
        check_frame(pixels)
        assert pixels.image.shape == (225, 400, 3)
        np.testing.assert_allclose(camera.K[:2], RIG[camera.name].K((WIDTH, HEIGHT))[:2] / 4)
    assert tuple(c.name for c in frames[0].cameras) == NAMES


def test_chosen_cameras_can_be_kept_as_pixels():
    chosen = {"cameras.names": ["CAM_BACK"], "cameras.jpeg_quality": 0, "num_sweeps": 1}
    (frame,) = simulate(config(**chosen))
    (raw,) = frame.cameras
    (jpeg,) = (c for c in drive()[0].cameras if c.name == "CAM_BACK")
    assert raw.encoded is None and raw.image.shape == (225, 400, 3)
    error = np.abs(raw.image.astype(int) - with_pixels(jpeg).image.astype(int))
    assert error.mean() < 4


@pytest.mark.parametrize("names", (["CAM_TOP"], ["CAM_FRONT", "CAM_FRONT"]))
def test_unknown_and_repeated_cameras_are_refused(names):
    with pytest.raises(ConfigError, match="each camera once, out of CAM_FRONT"):
        config(**{"cameras.names": names})


def test_the_rig_is_that_of_a_real_vehicle(data_dir):
    import json

    rigs = json.loads((data_dir / "nuscenes" / "nuscenes_camera_rigs.json").read_text())
    real = rigs["n015-2018-10-08_scene-0916"]["cameras"]
    for name, mount in RIG.items():
        np.testing.assert_allclose(mount.K((WIDTH, HEIGHT)), real[name]["K"], atol=0.06)
        np.testing.assert_allclose(mount.T_ego_camera, real[name]["cam2ego"], atol=6e-4)


def test_the_cameras_look_where_their_names_say():
    ahead = {name: mount.T_ego_camera[:3, 2] for name, mount in RIG.items()}
    for name, axis in ahead.items():
        assert (axis[0] > 0.5) == name.startswith("CAM_FRONT") and abs(axis[2]) < 0.05
        assert (axis[1] > 0.5) == name.endswith("LEFT") and (axis[1] < -0.5) == name.endswith(
            "RIGHT"
        )


# --- the same world as the LiDAR -----------------------------------------------------------------


@pytest.mark.parametrize("seed", (1, 3))
def test_lidar_points_of_an_object_lie_on_its_pixels_at_their_depth(seed):
    """Some points differ by nature: a camera sits elsewhere than the LiDAR, so that something may
    stand between, and what rays find in leaves is a matter of chance."""
    options = {"cameras.scale": 0.5, "lidar.range_noise_m": 0.0}
    world = World(config(seed, **options))
    lidar, cameras = Lidar(world), Cameras(world)
    sweep = lidar.sweep(1, stream(seed, SWEEP, 1))
    xyz = sweep.points.xyz[sweep.returned].astype(np.float64)
    ego = xyz @ lidar.T_ego_lidar[:3, :3].T + lidar.T_ego_lidar[:3, 3]
    owners, found, objects, agree = sweep.owner[sweep.returned], 0, 0, []
    for name in NAMES:
        view = cameras.view(name, 1)
        T, K = np.linalg.inv(RIG[name].T_ego_camera), RIG[name].K(cameras.size_wh)
        local = ego @ T[:3, :3].T + T[:3, 3]
        ahead = np.maximum(local[:, 2], 1e-3)
        u, v = (np.round(K[k, k] * local[:, k] / ahead + K[k, 2]).astype(int) for k in (0, 1))
        width, height = cameras.size_wh
        seen = (local[:, 2] > 1) & (u >= 0) & (u < width) & (v >= 0) & (v < height)
        mine, theirs = view.owner[v[seen], u[seen]], owners[seen]
        of_object = theirs != NOBODY
        objects += of_object.sum()
        found += (mine == theirs)[of_object].sum()
        depth = view.depth_m[v[seen], u[seen]]
        agree.append((mine == theirs, depth / local[seen, 2] - 1, of_object))
    same, error, of_object = (np.concatenate(parts) for parts in zip(*agree))
    assert objects > 2000 and found > 0.93 * objects
    assert np.mean(np.abs(error[same & of_object]) < 0.02) > 0.93
    assert np.mean(np.abs(error) < 0.02) > 0.8
    assert np.mean(error > 0.02) < 0.06, "hardly anything is seen through what reflected a beam"


def test_objects_have_the_colour_of_their_class():
    world = World(config(1, **{"cameras.jpeg_quality": 0, "cameras.scale": 0.5}))
    cameras = Cameras(world)
    labels = {a.track_id: a.label for a in world.at(cameras._time_s(0)).actors}
    hues: dict[str, list[np.ndarray]] = {}
    for name in NAMES:
        view = cameras.view(name, 0)
        for track in np.unique(view.owner[view.owner != NOBODY]):
            mask = view.owner == track
            near = view.depth_m[mask].min() < 15
            if mask.sum() > 300 and near:
                pixels = view.image[mask].astype(float)
                bright = pixels[pixels.max(1) - pixels.min(1) > 30]  # no glass, no wheels
                if len(bright) > 100:
                    hues.setdefault(NUSCENES_CLASSES[labels[int(track)]], []).append(bright.mean(0))
    assert len(hues) >= 4
    for name, means in hues.items():
        colour = np.array(CLASS_COLORS[name], float)
        for mean in means:
            cosine = mean @ colour / np.linalg.norm(mean) / np.linalg.norm(colour)
            assert cosine > 0.95, (name, mean)


def test_above_the_horizon_is_sky_and_below_is_ground():
    view = Cameras(World(config(3, **{"traffic.parked": 0.0, "scenery.buildings": 0.0}))).view(
        "CAM_FRONT", 0
    )
    assert np.isinf(view.depth_m[0]).mean() > 0.5
    sky = view.image[np.isinf(view.depth_m)].astype(int)
    assert (sky[:, 2] >= sky[:, 0] - 16).mean() > 0.99
    ground = view.depth_m[-20:]
    assert np.isfinite(ground).all() and ground.max() < 20


# --- drawing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", (BOX, WEDGE, CYLINDER, ELLIPSOID))
def test_what_is_drawn_is_where_the_body_is(kind):
    """The point at the drawn depth lies on the body, as the body itself is defined.

    But where two faces meet: an outline is drawn half a pixel wider than its face.
    """
    rng = np.random.default_rng(kind)
    for _ in range(10):
        body = bodies(
            solid(
                kind,
                rng.uniform((6, -2, -1), (12, 2, 1)),
                rng.uniform((1, 1, 1), (4, 4, 3)),
                "paint",
                yaw=rng.uniform(-3, 3),
                taper=rng.uniform(0, 0.8, 2) if kind == WEDGE else (0, 0),
            )
        )
        drawing, owner = drawn(body)
        hit = (owner == 0) & inner(owner)
        assert hit.sum() > 100
        points = pixel_rays()[hit] * drawing.depth_m[hit][:, None]
        centre = body["centre"][0]
        # Octagons lie inside of their circles, by 8 % in one direction, twice on a ball.
        slack = {CYLINDER: 0.08, ELLIPSOID: 0.15}.get(kind, 0.01)
        assert inside(body[0], centre + (points - centre) * 0.99).mean() > 0.9
        shrunk = body.copy()
        shrunk["half"] *= 1 - slack
        assert not inside(shrunk[0], points).any()


def test_a_near_body_hides_a_far_one_whatever_their_order_and_even_where_they_intersect():
    rng = np.random.default_rng(5)
    rays = pixel_rays()
    for _ in range(6):
        scene = bodies(
            *(
                solid(
                    BOX,
                    rng.uniform((5, -4, -2), (14, 4, 2)),
                    rng.uniform(0.5, 4.0, 3),
                    "paint",
                    yaw=rng.uniform(-3, 3),
                )
                for _ in range(12)
            )
        )
        drawing, owner = drawn(scene)
        # Cut every pixel's ray with every box.
        enter = np.full((len(scene), *owner.shape), np.inf)
        for k, body in enumerate(scene):
            c, s = body["cos"], body["sin"]
            turn = np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]])
            o, d = turn @ -body["centre"], rays @ turn.T
            with np.errstate(divide="ignore"):
                a, b = (-body["half"] - o) / d, (body["half"] - o) / d
            t0, t1 = np.minimum(a, b).max(-1), np.maximum(a, b).min(-1)
            enter[k] = np.where((t1 > t0) & (t0 > 0), t0, np.inf)
        first = np.where(np.isinf(enter.min(0)), NOBODY, enter.argmin(0))
        sure = inner(first)
        assert sure.sum() > 5000
        assert (owner == first)[sure].mean() > 0.998  # all but ends of slivers seen edge-on
        seen = sure & (first != NOBODY)
        error = drawing.depth_m[seen] / enter.min(0)[seen] - 1
        assert (np.abs(error) < 2e-3).mean() > 0.95  # the rest lies on edges of faces
        np.testing.assert_array_equal(drawn(scene[::-1])[1], owner)


def test_ground_that_reaches_behind_the_camera_is_clipped_and_has_the_right_depth():
    corners = np.array([[(-50.0, -60, -1.5), (90, -60, -1.5), (90, 60, -1.5), (-50, 60, -1.5)]])
    ground = Facets.of(corners, np.full((1, 3), 99.0), SUN)
    drawing = draw(ground, Pose(SMALL_K, LOOK_ALONG_X, SIZE_WH), 100.0, SEEN)
    v = np.arange(SIZE_WH[1])
    depth = 1.5 * 120 / np.maximum(v - 60, 1e-9)
    covered = (v > 63) & (depth < 60)
    assert (drawing.facet[covered] == 0).all() and (drawing.facet[v < 60] == -1).all()
    expected = np.broadcast_to(depth[covered][:, None], (covered.sum(), SIZE_WH[0]))
    np.testing.assert_allclose(drawing.depth_m[covered], expected, rtol=1e-4)


def test_a_body_around_the_camera_and_one_behind_it_are_not_drawn():
    around = solid(BOX, (0, 0, 0), (4, 4, 4), "paint")
    behind = solid(BOX, (-9, 0, 0), (2, 2, 2), "paint")
    _, owner = drawn(bodies(around, behind))
    assert (owner == NOBODY).all()
    assert (drawn(np.zeros(0, SOLID))[1] == NOBODY).all()


def test_leaves_and_fences_cover_their_share_of_pixels():
    grain = np.random.default_rng(1).integers(0, 255, SEEN.shape, dtype=np.uint8)
    fence = solid(BOX, (10, 0, 0), (0.1, 8, 4), "metal", fill=0.3)
    tree = solid(FOLIAGE, (10, 0, 0), (4, 4, 4), "leaves", fill=0.5)
    for body, share in ((fence, 0.3), (tree, 1 - np.exp(-0.5 * 4 / 3 * 2))):
        facets = facets_of(body, {}, SUN)
        drawing = draw(facets, Pose(SMALL_K, LOOK_ALONG_X, SIZE_WH), 100.0, grain)
        middle = drawing.facet[50:70, 65:95] >= 0
        assert abs(middle.mean() - share) < 0.06


def test_faces_towards_the_sun_are_brighter():
    facets = facets_of(solid(BOX, (8, 0, 0), (2, 2, 2), "paint"), {}, SUN)
    towards = facets.normals @ SUN / np.linalg.norm(facets.normals, axis=1)
    light = facets.colours.mean(axis=1)
    assert light[towards.argmax()] > 1.3 * light[towards.argmin()]


def test_frames_are_what_bags_take():
    (camera, *_) = drive()[0].cameras
    assert isinstance(camera, CameraFrame) and camera.D.size == 0
    assert dataclasses.replace(camera, name="X").encoded == camera.encoded
