"""The detection heads on the GPU find what the reference finds, in the same order."""

from __future__ import annotations

import pytest
import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.gpu.head_tactics import head_tactic
from driveRT_ros.core.gpu.heads import unsupported
from driveRT_ros.core.gpu.replay import captured
from test.support.head_cases import (
    CAPACITY,
    HeadsCase,
    config,
    expected,
    rows_of,
    shuffled,
    tensors_of,
)


@pytest.fixture
def heads_of(backend, monkeypatch):
    """Make the heads for a configuration and weights."""

    def make(settings, tensors, arithmetic="FFMA"):
        return HeadsCase(backend, monkeypatch, settings, tensors, arithmetic)

    return make


def check(case, settings, tensors, bev):
    """Compare one frame with the reference; return both results."""
    got = case.find(bev)
    heat = [part.cpu() for part in got.heat()]
    want = expected(settings, tensors, bev, heat)
    for mine, theirs in zip(heat, want.heat()):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert torch.equal(got.labels, want.labels)
    torch.testing.assert_close(got.boxes, want.boxes, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got.scores, want.scores, rtol=1e-6, atol=1e-7)
    assert (got.decoded, got.dropped) == (want.decoded, want.dropped)
    return got, want


def same_bytes(a, b):
    pairs = ((a.boxes, b.boxes), (a.scores, b.scores), (a.labels, b.labels))
    return all(torch.equal(x, y) for x, y in pairs) and a.dropped == b.dropped


def test_any_number_of_rows_gives_the_boxes_of_the_reference(heads_of):
    settings = config()
    tensors = tensors_of(settings)
    case = heads_of(settings, tensors)
    for count in (CAPACITY, 0, 1, 63, 64, 65, 300):
        got, _ = check(case, settings, tensors, rows_of(count, seed=count))
        assert len(got.boxes) >= (20 if count >= 63 else 0)
        assert 2 * len(got.boxes) < got.decoded or count < 300  # suppression had work to do


@pytest.mark.parametrize("width", [32, 64, 128])
def test_every_width_that_the_kernels_know_gives_the_boxes_of_the_reference(heads_of, width):
    settings = config(width, ("car", "truck,bus"))
    tensors = tensors_of(settings)
    check(heads_of(settings, tensors), settings, tensors, rows_of(70, width))


@pytest.mark.parametrize("width", [16, 128])
@pytest.mark.parametrize(("arithmetic", "tolerance"), [("F16X3", 1e-5), ("TF32", 5e-3)])
def test_the_tensor_cores_give_the_boxes_of_the_reference(heads_of, width, arithmetic, tolerance):
    settings = config(width, ("car", "truck,bus"), iou_nms_threshold=1.0)
    tensors = tensors_of(settings)
    bev = rows_of(300 if width == 16 else 140, width)
    got = heads_of(settings, tensors, arithmetic).find(bev)
    exact = heads_of(settings, tensors).find(bev)
    for mine, theirs in zip(got.heat(), exact.heat()):
        error = (mine - theirs).abs().max() / theirs.abs().max()
        assert 0 < error < tolerance
    assert len(exact.boxes) > 20
    difference = (got.boxes[:, None] - exact.boxes[None]).abs().amax(dim=2)
    difference[got.labels[:, None] != exact.labels[None]] = torch.inf
    strong = got.scores > 0.51
    assert strong.sum() > 20
    assert difference.min(dim=1).values[strong].max() < 20 * tolerance


@pytest.mark.parametrize("top_k", [1, 7, 500])
def test_of_too_many_candidates_the_best_are_kept_and_the_others_counted(heads_of, top_k):
    settings = config(top_k=top_k, score_thresholds=[0.0])
    tensors = tensors_of(settings)
    got, _ = check(heads_of(settings, tensors), settings, tensors, rows_of(CAPACITY))
    classes = [1, 2, 3]
    assert got.dropped["over_top_k_candidates"] == sum(
        max(n * CAPACITY - top_k, 0) for n in classes
    )


@pytest.mark.parametrize("top_k", [40, 500])
def test_equal_scores_are_in_the_order_of_class_and_cell_whatever_the_rows(heads_of, top_k):
    settings = config(top_k=top_k, iou_nms_threshold=1.0)
    tensors = tensors_of(settings)
    case = heads_of(settings, tensors)
    bev = rows_of(300)
    bev.features[:] = bev.features[:5].repeat(60, 1)
    first = None
    for seed in range(3):
        got, _ = check(case, settings, tensors, shuffled(bev, seed))
        assert len(torch.unique(got.scores)) < 30 <= len(got.scores)
        first = first or got
        assert same_bytes(got, first)


def test_a_score_that_equals_its_threshold_is_no_candidate(heads_of):
    settings = config(score_thresholds=[0.5] * 5 + [0.4])
    tensors = tensors_of(settings)
    tensors |= {n: torch.zeros_like(t) for n, t in tensors.items() if ".hm.out" in n}
    got, _ = check(heads_of(settings, tensors), settings, tensors, rows_of(50))
    assert set(got.labels.tolist()) == {5} and set(got.scores.tolist()) == {0.5}


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 3e38])
def test_heat_that_is_not_finite_is_counted_and_never_a_box(heads_of, value):
    settings = config()
    tensors = tensors_of(settings)
    bev = rows_of(200)
    bev.features[::20, 3] = value
    got, _ = check(heads_of(settings, tensors), settings, tensors, bev)
    assert got.dropped["non_finite_heat"] > 0 and len(got.boxes) > 20


@pytest.mark.parametrize(
    ("name", "scale", "reason"),
    [
        ("dim.out.weight", 40.0, "implausible_boxes"),
        ("vel.out.weight", 1e3, "implausible_boxes"),
        ("dim.out.bias", 1e3, "non_finite_boxes"),
        ("vel.out.weight", 1e30, "implausible_boxes"),
        ("vel.out.bias", torch.nan, "non_finite_boxes"),
        ("center.out.weight", 100.0, "out_of_range_boxes"),
    ],
)
def test_boxes_that_cannot_be_published_are_counted_by_reason(heads_of, name, scale, reason):
    settings = config(center_range=[-53.0, -53.0, -10.0, 61.2, 61.2, 10.0])
    tensors = tensors_of(settings)
    tensors[f"head2.{name}"] = tensors[f"head2.{name}"] * scale
    got, _ = check(heads_of(settings, tensors), settings, tensors, rows_of(300))
    assert got.dropped[reason] > 20 and got.dropped["out_of_range_boxes"] > 0


@pytest.mark.parametrize(("limit", "iou"), [(1, 0.05), (5, 0.05), (83, 0.01), (83, 0.9)])
def test_limits_of_suppression_are_those_of_the_reference(heads_of, limit, iou):
    settings = config(max_boxes_per_head=limit, iou_nms_threshold=iou)
    tensors = tensors_of(settings)
    got, _ = check(heads_of(settings, tensors), settings, tensors, rows_of(300))
    if limit < 83:
        assert len(got.boxes) == 3 * limit


def test_rows_beyond_the_capacity_are_not_touched(heads_of):
    settings = config()
    case = heads_of(settings, tensors_of(settings))
    bev = rows_of(CAPACITY)
    want = case.find(bev)
    case.put(bev, needed=CAPACITY + 64)
    case.run()
    assert same_bytes(case.read(CAPACITY), want)


def test_a_frame_repeats_to_the_last_bit_whatever_came_before(backend, heads_of):
    settings = config(top_k=100, score_thresholds=[0.3])
    case = heads_of(settings, tensors_of(settings))
    backend.resident = 3
    first = None
    for seed in backend.repeats():
        case.find(rows_of(350, seed=seed + 1))
        got = case.find(rows_of(200))
        first = first or got
        assert same_bytes(got, first)


def peaks_of(**post):
    """Return heads that take the peaks of the heat, and whose weights are those of the others."""
    settings = config(selection="max_pool", **{"max_boxes_per_head": 500} | post)
    return settings, tensors_of(settings)


def test_the_peaks_of_the_heat_are_those_of_the_reference(heads_of):
    settings, tensors = peaks_of()
    case = heads_of(settings, tensors)
    for count in (CAPACITY, 0, 1, 2, 64, 300):  # a frame must not see the cells of the last one
        bev = rows_of(count, seed=count)
        got, _ = check(case, settings, tensors, bev)
        plain = expected(config(), tensors, bev, [part.cpu() for part in got.heat()])
        assert len(got.boxes) == got.decoded  # none of these boxes is faulty
        assert got.decoded < plain.decoded or count < 64  # neighbours hid some
    assert len(got.boxes) > 20


def test_of_more_peaks_than_a_head_may_keep_the_best_stay(heads_of):
    settings, tensors = peaks_of(max_boxes_per_head=7)
    got, _ = check(heads_of(settings, tensors), settings, tensors, rows_of(300))
    assert len(got.boxes) == 7 * 3


def test_of_equal_neighbours_the_first_cell_stays_whatever_the_rows(heads_of):
    settings, tensors = peaks_of(top_k=60)
    case = heads_of(settings, tensors)
    bev = rows_of(CAPACITY)
    bev.features[:] = bev.features[:3].repeat(134, 1)[:CAPACITY]
    first = None
    for seed in range(3):
        got, _ = check(case, settings, tensors, shuffled(bev, seed))
        first = first or got
        assert len(got.boxes) > 20 and same_bytes(got, first)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 3e38])
def test_heat_that_is_not_finite_hides_no_neighbour(heads_of, value):
    settings, tensors = peaks_of()
    bev = rows_of(CAPACITY)
    bev.features[::20, 3] = value
    got, _ = check(heads_of(settings, tensors), settings, tensors, bev)
    assert got.dropped["non_finite_heat"] > 0 and len(got.boxes) > 20


@pytest.mark.gpu
@pytest.mark.parametrize("selection", ["nms", "max_pool"])
def test_the_heads_are_part_of_a_cuda_graph(backend, heads_of, selection):
    if backend.name != "cuda":
        pytest.skip("the shim has no graphs")
    settings = config(selection=selection)
    case = heads_of(settings, tensors_of(settings))
    case.put(rows_of(10))
    graph = captured(case.run)
    for count in (300, 0, 120):
        bev = rows_of(count, seed=count)
        want = case.find(bev)
        case.put(bev)
        graph.replay()
        assert same_bytes(case.read(count), want)


# ---- which models, which frames -----------------------------------------------------------------


def test_the_published_model_is_supported_on_every_chip():
    for capability in ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)):
        for arithmetic in ("FFMA", "F64", "F16X3", "TF32", "F16"):
            assert unsupported(LidarConfig(), arithmetic, capability) == ""


def test_what_the_kernels_cannot_run_is_said():
    assert "24 channels" in unsupported(config(24), "FFMA", (9, 0))
    assert "'top_k' 513" in unsupported(config(top_k=513), "FFMA", (9, 0))
    wide = {"point_cloud_range": [-900.0, -900.0, -5.0, 900.0, 900.0, 3.0]}
    huge = LidarConfig.from_dict({"voxelization": wide})
    assert "9000000 cells of 10 classes" in unsupported(huge, "FFMA", (9, 0))


@pytest.mark.parametrize(
    ("arithmetic", "capability", "kernel", "same"),
    [
        ("FFMA", (9, 0), "heads", "FFMA"),
        ("F64", (9, 0), "heads", "FFMA"),
        ("F16X3", (8, 6), "heads_mma", "F16X3"),
        ("TF32", (8, 9), "heads_mma", "TF32"),
        ("F16", (9, 0), "heads_mma", "TF32"),
        ("F16", (7, 5), "heads", "FFMA"),
        ("F16X3", (7, 5), "heads", "FFMA"),
    ],
)
def test_the_hidden_layers_are_as_exact_as_the_layer_before(arithmetic, capability, kernel, same):
    tactic = head_tactic(128, arithmetic, capability)
    assert (tactic.kernel, tactic.arithmetic) == (kernel, same)
