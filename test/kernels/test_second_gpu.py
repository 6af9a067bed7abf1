"""What lies on the second GPU is worked on there, whatever device is current; results are the same.

A device is current by thread. Nothing here makes the second one current, and nobody may be left
with it.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from driveRT_ros.core import bev_pool, grid_ops
from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.camera_pipeline import CameraPipeline
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.gpu.gather_rows import gather_rows
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.core.pool_tactics import PoolTactic
from driveRT_ros.core.raw_cloud import exact
from driveRT_ros.core.sweeps import sweeps_for
from driveRT_ros.io.raw_pointcloud import read_raw
from test.support import engine
from test.support.camera_rig import textured
from test.support.clouds import random_points, xyzi_cloud
from test.support.nvdb_grids import mixed
from test.support.pool_cases import SMALL_GRID, small_frustum, small_rig, tensors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is no second GPU"),
]
FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)


@pytest.fixture(autouse=True)
def first_is_current() -> Iterator[None]:
    torch.cuda.set_device(FIRST)
    yield
    assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("graph", [True, False])
def test_a_lidar_frame(graph):
    config = LidarConfig.from_dict(engine.SMALL | {"post_process_params.score_thresholds": [0.001]})
    points = engine.street(1500, seed=1, edge_m=(4.8, 3.6))
    found = []
    for device in (FIRST, SECOND):
        pipeline = LidarPipeline(config, None, device, graph=graph)
        for _ in range(2):
            last = pipeline.process(points, with_bev=True, with_fingerprint=True)
        found.append((last.boxes, last.scores, last.report.fingerprint, last.report.notes))
    (boxes, scores, *rest), (other_boxes, other_scores, *other_rest) = found
    assert len(boxes) and torch.equal(boxes, other_boxes) and torch.equal(scores, other_scores)
    assert rest == other_rest and "graph_not_used" not in rest[1]


@pytest.mark.parametrize("graph", [True, False])
def test_a_camera_frame(graph):
    found = []
    for device in (FIRST, SECOND):
        pipeline = CameraPipeline(CameraConfig(), None, device, graph=graph)
        for seed in (5, 6):
            report = pipeline.process(textured(seed), with_fingerprint=True).report
        found.append((report.fingerprint, report.notes))
    assert found[0] == found[1] and "graph_not_used" not in found[0][1]


def test_sweeps_and_messages():
    found = []
    for device in (FIRST, SECOND):
        buffer = sweeps_for(LidarConfig().densification_params, device)
        for k in range(3):
            pose = np.eye(4)
            pose[0, 3] = 0.5 * k
            message = xyzi_cloud(random_points(500, seed=k), stamp_ns=10**18 + k * 50_000_000)
            cloud = exact(buffer.push_raw(read_raw(message), pose))
        assert cloud.device == device
        found.append(cloud.cpu())
    assert len(found[0]) > 1000 and torch.equal(*found)


@pytest.mark.parametrize("kind", ["tiles", "balanced", "v3"])
def test_pooling(kind):
    found = []
    for device in (FIRST, SECOND):
        made = bev_pool.build_scatter_map(small_rig(3), small_frustum(), SMALL_GRID, device=device)
        depth, context = (t.to(device) for t in tensors(made.to("cpu"), 24, *[torch.float16] * 2))
        found.append(bev_pool.bev_pool(depth, context, made, tactic=PoolTactic(kind)).cpu())
    assert found[0].any() and torch.equal(*found)


def test_grids_and_rows():
    made = torch.from_numpy(mixed().grid())
    there = made.to(SECOND)
    assert grid_ops.checksum(there) == grid_ops.checksum(made)
    assert grid_ops.grid_stats(there).whole() == grid_ops.grid_stats(made).whole()
    (bits,) = grid_ops.crc32_bits(there[:4000]).tolist()
    assert bits & 0xFFFFFFFF == zlib.crc32(made[:4000].numpy())
    rows, numbers = torch.randn(50, 8), torch.arange(49, -1, -1)
    assert torch.equal(gather_rows(rows.to(SECOND), numbers.to(SECOND)).cpu(), rows.flip(0))


def test_a_fresh_thread_keeps_its_current_device():
    rows, numbers = torch.randn(50, 8, device=SECOND), torch.arange(50, device=SECOND)
    gather_rows(rows, numbers)
    torch.cuda.synchronize(SECOND)
    told = []

    def work():
        found = gather_rows(rows, numbers)
        told.append((torch.cuda.current_device(), torch.equal(found, rows)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert told == [(0, True)]
