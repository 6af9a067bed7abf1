"""Selection and decoding of candidates: exact, with defined ties, and safe against faulty heads."""

from __future__ import annotations

import math
import time

import pytest
import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.nms import rotated_nms
from driveRT_ros.core.reference.decode import (
    decode_boxes,
    local_maxima,
    select_candidates,
    usable_boxes,
)
from driveRT_ros.core.sparse_conv import SparseTensor
from driveRT_ros.models.graph import BRANCHES
from driveRT_ros.models.head import Heads
from driveRT_ros.models.voxelnext import untrained_weights

LOGIT_OF_A_TENTH = math.log(0.1 / 0.9)
RANGE = (-61.2, -61.2, -10.0, 61.2, 61.2, 10.0)


def small_config(**post) -> LidarConfig:
    model = {"channels": (4, 4, 4, 8, 8, 8)}
    return LidarConfig.from_dict({"model": model, "post_process_params": post})


def tensors_for(config: LidarConfig, dtype=torch.float64) -> dict[str, torch.Tensor]:
    """Return random weights whose heat lies on both sides of its bias."""
    tensors = untrained_weights(config.model, 11).to("cpu", dtype)
    for name in tensors:
        if name.endswith("hm.out.weight"):
            tensors[name] = tensors[name] - tensors[name].mean()
    return tensors


def make_heads(config: LidarConfig, dtype=torch.float64) -> Heads:
    return Heads(config, tensors_for(config, dtype), rotated_nms)


def bev_rows(count: int, dtype=torch.float64, seed=0) -> SparseTensor:
    generator = torch.Generator().manual_seed(seed)
    cells = torch.randperm(180 * 180, generator=generator)[:count].sort()[0]
    coords = torch.zeros(count, 4, dtype=torch.int32)
    coords[:, 2], coords[:, 3] = cells // 180, cells % 180
    features = torch.randn(count, 8, generator=generator, dtype=torch.float64).relu().to(dtype)
    return SparseTensor(features, coords, (1, 180, 180))


def full_evaluation(config, tensors, bev, suppress):
    """Evaluate every branch at every row, rank everything, and only then cut."""
    post, found, first = config.post_process_params, [], 0
    for head, classes in enumerate(config.model.classes_per_head):
        out = {}
        for name in [n for n, _ in BRANCHES] + ["hm"]:
            layer = f"head{head}.{name}"
            hidden = bev.features @ tensors[f"{layer}.hidden.weight"][0]
            hidden = torch.relu(hidden + tensors[f"{layer}.hidden.bias"])
            out[name] = hidden @ tensors[f"{layer}.out.weight"][0] + tensors[f"{layer}.out.bias"]
        scores = torch.sigmoid(out["hm"])
        ranked = [
            (-scores[row, label].item(), label, row)
            for row in range(len(scores))
            for label in range(len(classes))
        ]
        ranked = sorted(ranked)[: post.top_k]
        rows = torch.tensor([r for _, _, r in ranked], dtype=torch.int64)
        labels = torch.tensor([c for _, c, _ in ranked], dtype=torch.int64)
        best = torch.tensor([-s for s, _, _ in ranked], dtype=scores.dtype)
        dim, rot = out["dim"][rows], out["rot"][rows]
        x = (bev.coords_bzyx[rows, 3] + out["center"][rows, 0]) * 8 * 0.075 - 54
        y = (bev.coords_bzyx[rows, 2] + out["center"][rows, 1]) * 8 * 0.075 - 54
        columns = (x, y, out["center_z"][rows, 0], *dim.exp().T, torch.atan2(rot[:, 1], rot[:, 0]))
        boxes = torch.stack((*columns, *out["vel"][rows].T), dim=1)
        low, high = boxes.new_tensor(post.center_range[:3]), boxes.new_tensor(post.center_range[3:])
        keep = ((boxes[:, :3] >= low) & (boxes[:, :3] <= high)).all(1)
        keep &= best > best.new_tensor(post.score_thresholds[0])
        boxes, best, labels = boxes[keep], best[keep], labels[keep]
        kept = suppress(boxes, best, post.iou_nms_threshold, post.max_boxes_per_head)
        found.append((boxes[kept], best[kept], labels[kept] + first))
        first += len(classes)
    return [torch.cat(parts) for parts in zip(*found)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [0, 1, 40, 499, 500, 501, 3000])
def test_evaluating_selected_rows_equals_evaluating_all_rows(count, dtype):
    """Also with fewer rows than the cap, where ranking by flat index would swap the classes."""
    config = small_config(center_range=(-40.0, -40.0, -10.0, 40.0, 40.0, 10.0))
    tensors = tensors_for(config, dtype)
    heads, bev = Heads(config, tensors, rotated_nms), bev_rows(count, dtype)
    proposals, _ = heads.propose(bev, heads.heat(bev.features))
    found = heads.suppress(proposals)
    boxes, scores, labels = full_evaluation(config, tensors, bev, rotated_nms)
    assert found.labels.tolist() == labels.tolist()
    tolerance = 1e-12 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(found.boxes, boxes, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found.scores, scores, rtol=tolerance, atol=tolerance)
    if count >= 499:
        assert len(boxes) > 60


def test_labels_count_through_the_heads_in_their_order():
    """A head numbers its own classes from 0; the label must be the class name's own number."""
    config = small_config()
    heads, bev = make_heads(config), bev_rows(10)
    heat = [torch.full((10, len(c)), -9.0).double() for c in config.model.classes_per_head]
    want = []
    for head, classes in enumerate(config.model.classes_per_head):
        for label, name in enumerate(classes):
            heat[head][head + label, label] = 5.0
            want.append(name)
    proposals, _ = heads.propose(bev, heat)
    names = [config.model.class_names[label] for p in proposals for label in p.labels.tolist()]
    assert names == want == list(config.model.class_names)


def test_a_suppressed_box_takes_its_own_label_and_score_with_it():
    config = small_config()
    heads, bev = make_heads(config), bev_rows(2)
    bev.coords_bzyx[1] = bev.coords_bzyx[0]
    bev.features[1] = bev.features[0]
    heat = [torch.full((2, len(c)), -9.0).double() for c in config.model.classes_per_head]
    heat[4][0, 1], heat[4][1, 0] = 1.0, 3.0  # bicycle, then a surer motorcycle in one place
    found = heads.suppress(heads.propose(bev, heat)[0])
    assert [config.model.class_names[k] for k in found.labels.tolist()] == ["motorcycle"]
    assert found.scores.item() == pytest.approx(1 / (1 + math.exp(-3.0)))


def test_the_threshold_is_strict_and_compared_in_float32():
    heat = torch.tensor([[LOGIT_OF_A_TENTH]], dtype=torch.float32)
    steps = [heat]
    for _ in range(4):
        steps.append(torch.nextafter(steps[-1], torch.tensor(0.0)))
        steps.insert(0, torch.nextafter(steps[0], torch.tensor(-9.0)))
    heat = torch.cat(steps)
    scores = torch.sigmoid(heat)[:, 0]
    want = [row for row, s in enumerate(scores) if s > torch.tensor(0.1, dtype=torch.float32)]
    assert 0 < len(want) < len(heat)
    assert (scores == torch.tensor(0.1)).any()
    assert sorted(select_candidates(heat, (0.1,), 500).rows.tolist()) == want


def test_ties_go_by_class_then_row():
    heat = torch.zeros(4, 2)
    heat[3, 1] = 1.0
    chosen = select_candidates(heat, (0.1, 0.1), 6)
    assert chosen.classes.tolist() == [1, 0, 0, 0, 0, 1]
    assert chosen.rows.tolist() == [3, 0, 1, 2, 3, 0]
    assert chosen.dropped["over_top_k_candidates"] == 2


def test_each_class_has_its_own_threshold():
    heat = torch.tensor([[0.0, 0.0], [2.0, 2.0]])
    chosen = select_candidates(heat, (0.6, 0.4), 500)
    assert list(zip(chosen.classes.tolist(), chosen.rows.tolist())) == [(0, 1), (1, 1), (1, 0)]


def test_heat_that_is_not_finite_is_never_a_candidate():
    heat = torch.tensor([[math.nan], [math.inf], [-math.inf], [1.0]])
    chosen = select_candidates(heat, (0.1,), 500)
    assert chosen.rows.tolist() == [3]
    assert chosen.dropped["non_finite_heat"] == 3


# ---- peaks instead of suppression ---------------------------------------------------------------


def peaks_one_by_one(heat, cells_yx):
    """Look at the neighbours of every value in turn."""
    at = {tuple(cell): row for row, cell in enumerate(cells_yx.tolist())}
    found = torch.zeros_like(heat, dtype=torch.bool)
    for (y, x), row in at.items():
        for label, mine in enumerate(heat[row].tolist()):
            others = [
                ((y + dy, x + dx), heat[at[y + dy, x + dx], label].item())
                for dy in (-1, 0, 1)
                for dx in (-1, 0, 1)
                if (dy or dx) and (y + dy, x + dx) in at
            ]
            hidden = (v > mine or (v == mine and c < (y, x)) for c, v in others if math.isfinite(v))
            found[row, label] = math.isfinite(mine) and not any(hidden)
    return found


@pytest.mark.parametrize("count", [0, 1, 2, 40, 130])
def test_a_peak_is_exceeded_by_no_neighbour_of_its_class(count):
    generator = torch.Generator().manual_seed(count)
    cells = torch.randperm(12 * 12, generator=generator)[:count]
    cells_yx = torch.stack((cells // 12, cells % 12), dim=1)
    heat = torch.randint(0, 5, (count, 3), generator=generator).float()  # many ties
    heat[::7, 1], heat[3::11, 2] = math.nan, math.inf
    peaks = local_maxima(heat, cells_yx)
    assert torch.equal(peaks, peaks_one_by_one(heat, cells_yx))
    if count == 130:
        assert 30 < peaks.sum() < 200


def test_empty_cells_neither_join_nor_hide_rows_and_edges_have_no_neighbours_beyond():
    """Rows of a sparse map are no image: what is beside in memory is not beside on the ground."""
    cells_yx = torch.tensor([[0, 0], [0, 2], [1, 179], [2, 0]])
    heat = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    assert local_maxima(heat, cells_yx).all()


def test_peaks_stay_however_much_their_boxes_overlap():
    config = small_config(selection="max_pool", max_boxes_per_head=2)
    heads, bev = make_heads(config), bev_rows(4)
    bev.coords_bzyx[:, 2:4] = torch.tensor([[5, 5], [5, 7], [5, 8], [9, 9]])
    bev.features[:] = bev.features[0]
    heat = [torch.full((4, len(c)), -9.0).double() for c in config.model.classes_per_head]
    heat[0][:, 0] = torch.tensor([1.0, 3.0, 2.0, 0.5])
    proposals, dropped = heads.propose(bev, heat)
    assert proposals[0].scores.tolist() == torch.sigmoid(heat[0][[1, 0, 3], 0]).tolist()
    found = heads.suppress(proposals)  # boxes of metres, two cells of 0.6 m apart
    assert found.scores.tolist() == proposals[0].scores[:2].tolist()
    assert dropped["over_top_k_candidates"] == 0


def test_faulty_boxes_are_dropped_and_counted_once_each():
    """NaN, infinite and absurd sizes must not be published, nor hide the good boxes."""
    good = [1.0, 2.0, -1.0, 4.0, 2.0, 1.5, 0.3, 0.0, 0.0]

    def changed(column, value):
        return [*good[:column], value, *good[column + 1 :]]

    boxes = torch.tensor(
        [
            good,
            changed(0, math.nan),
            changed(4, math.inf),
            changed(3, 1e22),
            changed(3, 100.0),
            changed(5, 0.0),
            changed(7, 200.0),
            changed(8, -math.inf),
            changed(0, 61.3),
            changed(0, 61.2),
            changed(2, -10.5),
        ]
    )
    usable, dropped = usable_boxes(boxes, RANGE)
    assert usable.nonzero().flatten().tolist() == [0, 4, 9]
    assert dropped == {"non_finite_boxes": 3, "implausible_boxes": 3, "out_of_range_boxes": 2}


def test_faulty_rows_leave_the_other_detections_as_they_are():
    config = small_config()
    heads, bev = make_heads(config), bev_rows(200)
    clean, _ = heads.propose(bev, heads.heat(bev.features))
    for row, value in ((3, math.nan), (50, math.inf), (90, -math.inf), (120, 1e300), (199, 1e200)):
        bev.features[row] = value
    proposals, dropped = heads.propose(bev, heads.heat(bev.features))
    assert dropped["non_finite_heat"] >= 2 * 10
    for before, after in zip(clean, proposals):
        assert torch.isfinite(after.boxes).all()
        assert len(before.boxes) - 10 <= len(after.boxes) <= len(before.boxes)
        # Every box left is one of the clean ones; some CPUs round products of fewer rows otherwise.
        same = torch.isclose(before.boxes[:, None], after.boxes[None], rtol=1e-12, atol=1e-12)
        assert same.all(-1).any(0).all()


def test_the_centre_range_is_applied_after_the_cap():
    """The best candidates are outside the range: they use up the cap, as in the published order."""
    config = small_config(top_k=5, center_range=(-10.0, -60.0, -10.0, 10.0, 60.0, 10.0))
    heads, bev = make_heads(config), bev_rows(0)
    coords = torch.zeros(10, 4, dtype=torch.int32)
    coords[:, 3] = torch.tensor([0, 0, 0, 0, 90, 90, 90, 90, 90, 90])
    coords[:, 2] = torch.arange(10) * 10
    bev = SparseTensor(torch.zeros(10, 8).double(), coords, (1, 180, 180))
    heat = [torch.full((10, len(c)), -9.0).double() for c in config.model.classes_per_head]
    heat[0][:, 0] = torch.linspace(3.0, 1.0, 10)
    proposals, dropped = heads.propose(bev, heat)
    assert dropped["over_top_k_candidates"] == 5
    assert dropped["out_of_range_boxes"] == 4
    assert len(proposals[0].boxes) == 1


def test_decoding_one_row_by_hand():
    branches = {
        "center": torch.tensor([[0.25, 0.75]]),
        "center_z": torch.tensor([[-0.9]]),
        "dim": torch.tensor([[4.0, 2.0, 1.5]]).log(),
        "rot": torch.tensor([[0.0, 2.0]]),  # cos, sin: facing +y
        "vel": torch.tensor([[1.0, -2.0]]),
    }
    box = decode_boxes(branches, torch.tensor([[10, 100]]), (-54.0, -54.0), (0.075, 0.075), 8)
    want = [100.25 * 0.6 - 54, 10.75 * 0.6 - 54, -0.9, 4.0, 2.0, 1.5, math.pi / 2, 1.0, -2.0]
    torch.testing.assert_close(box, torch.tensor([want]), rtol=1e-6, atol=1e-5)


def test_heat_everywhere_is_capped_before_suppression_and_stays_fast():
    """180 x 180 cells of heat 0.5 in every class must not stall the frame."""
    config = small_config(score_thresholds=(0.0,))
    heads, bev = make_heads(config, torch.float32), bev_rows(180 * 180, torch.float32)
    heat = [torch.zeros(180 * 180, len(c)) for c in config.model.classes_per_head]
    start = time.process_time()
    proposals, dropped = heads.propose(bev, heat)
    found = heads.suppress(proposals)
    spent_s = time.process_time() - start
    assert [len(p.boxes) for p in proposals] == [500] * 6
    assert dropped["over_top_k_candidates"] == 180 * 180 * 10 - 6 * 500
    assert 0 < len(found.boxes) <= 6 * 83
    assert spent_s < 20.0  # about 0.1 s; without a limit, hours
