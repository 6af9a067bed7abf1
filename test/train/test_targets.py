"""What the heads should say, against boxes decoded back and counts made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from driveRT_ros.core.nms import rotated_iou_bev
from driveRT_ros.core.reference.decode import decode_boxes
from driveRT_ros.models.graph import BRANCHES
from driveRT_ros.train.config import LossConfig
from driveRT_ros.train.losses import box_losses, detection_loss, focal_loss
from driveRT_ros.train.module import Predictions
from driveRT_ros.train.targets import Targets, assign_targets, encode_boxes, heat_radius
from test.support.training import small_config

VOXELS = small_config().voxelization  # 24 x 24 cells of 0.8 m from -9.6
CLASSES = 4


def rows(cells_yx, frame=0):
    out = torch.zeros(len(cells_yx), 4, dtype=torch.int32)
    out[:, 0] = frame
    out[:, 2:] = torch.tensor(cells_yx, dtype=torch.int32).reshape(-1, 2)
    return out


def box(x, y, size=(4.0, 2.0, 1.5), yaw=0.3, velocity=(1.0, -2.0)):
    return torch.tensor([[x, y, -1.0, *size, yaw, *velocity]])


def assign(coords, boxes, labels, **loss):
    names = [torch.tensor(v, dtype=torch.int64) for v in labels]
    return assign_targets(coords, boxes, names, CLASSES, VOXELS, LossConfig(**loss))


def test_a_code_decodes_to_its_box():
    generator = torch.Generator().manual_seed(0)
    boxes = torch.randn(20, 9, generator=generator, dtype=torch.float64)
    boxes[:, 3:6] = boxes[:, 3:6].abs() + 0.2
    cells_xy = torch.randint(0, 24, (20, 2), generator=generator)
    code = encode_boxes(boxes, cells_xy, VOXELS)
    sizes = [n for _, n in BRANCHES]
    branches = dict(zip((name for name, _ in BRANCHES), code.split(sizes, dim=1)))
    back = decode_boxes(
        branches, cells_xy.flip(1), VOXELS.point_cloud_range[:2], VOXELS.voxel_size[:2], 8
    )
    torch.testing.assert_close(back[:, :6], boxes[:, :6])
    torch.testing.assert_close(back[:, 7:], boxes[:, 7:])
    torch.testing.assert_close(torch.cos(back[:, 6] - boxes[:, 6]), torch.ones(20).double())


def test_an_object_belongs_to_the_row_nearest_to_its_centre():
    coords = rows([(12, 11), (12, 13), (12, 16)])
    # Column 12.6: the middle of column 13 is 0.9 away, that of column 11 is 1.1.
    found = assign(coords, [box(-9.6 + 12.6 * 0.8, 0.4)], [[2]])
    assert found.rows.tolist() == [1] and found.labels.tolist() == [2]
    assert found.heat[1, 2] == 1
    assert (found.heat[:, [0, 1, 3]] == 0).all()
    code = found.codes[0]
    torch.testing.assert_close(code[:2], torch.tensor([12.6 - 13, 12.5 - 12]))
    torch.testing.assert_close(code[3:6], torch.log(torch.tensor([4.0, 2.0, 1.5])))
    torch.testing.assert_close(code[6:8], torch.tensor([math.cos(0.3), math.sin(0.3)]))


def test_heat_falls_off_as_a_bell_around_row_and_centre():
    cells = [(y, x) for y in range(6, 18) for x in range(6, 18)]
    found = assign(rows(cells), [box(0.1, 0.1)], [[0]], min_radius_cells=3)
    centre = 9.7 / 0.8
    for (y, x), heat in zip(cells, found.heat[:, 0].tolist()):
        near = (x - 12) ** 2 + (y - 12) ** 2
        to_centre = (x + 0.5 - centre) ** 2 + (y + 0.5 - centre) ** 2
        sigma = 7 / 6
        assert heat == pytest.approx(math.exp(-min(near, to_centre) / (2 * sigma**2)), abs=1e-6)
    assert (found.heat == 1).sum() == 1


def test_overlapping_bells_keep_the_greater_heat():
    cells = [(12, x) for x in range(6, 20)]
    one, two = box(-1.2, 0.4), box(1.2, 0.4)
    both = assign(rows(cells), [torch.cat((one, two))], [[1, 1]])
    single = [assign(rows(cells), [b], [[1]]).heat for b in (one, two)]
    assert torch.equal(both.heat, torch.maximum(*single))


def test_objects_without_a_row_near_them_are_left_out():
    coords = rows([(2, 2), (20, 20)])
    far, off_grid = box(0.0, 0.0, size=(1.0, 1.0, 1.0)), box(30.0, 0.0)
    found = assign(coords, [torch.cat((far, off_grid, box(-7.6, -7.6)))], [[0, 0, 3]])
    assert found.left_out == 2
    assert found.rows.tolist() == [0] and found.labels.tolist() == [3]
    empty = assign(rows([]), [box(0.0, 0.0)], [[0]])
    assert empty.left_out == 1 and empty.heat.shape == (0, CLASSES)


def test_each_frame_of_a_batch_has_rows_of_its_own():
    coords = torch.cat((rows([(12, 12), (3, 3)]), rows([(12, 12)], 1), rows([(12, 12)], 3)))
    found = assign(coords, [box(0.1, 0.1)] * 4, [[0], [1], [2], [3]])
    assert found.rows.tolist() == [0, 2, 3]
    assert found.labels.tolist() == [0, 1, 3]
    assert found.left_out == 1  # frame 2 has no row at all


def test_rows_around_the_nearest_describe_the_same_box():
    """A box came from the row of greatest heat, and only the nearest row had learned boxes."""
    cells = [(y, x) for y in range(6, 18) for x in range(6, 18)]
    one = box(0.1, 0.1)
    alone, more = (assign(rows(cells), [one], [[2]], rows_per_object=n) for n in (1, 9))
    assert torch.equal(alone.heat, more.heat) and more.left_out == 0
    assert alone.rows.tolist() == more.rows[:1].tolist() == [cells.index((12, 12))]
    assert sorted(more.rows.tolist()) == [
        cells.index((y, x)) for y in (11, 12, 13) for x in (11, 12, 13)
    ]
    assert more.labels.tolist() == [2] * 9
    at = torch.tensor(cells)[more.rows]
    branches = dict(zip((n for n, _ in BRANCHES), more.codes.split([n for _, n in BRANCHES], 1)))
    back = decode_boxes(branches, at, VOXELS.point_cloud_range[:2], VOXELS.voxel_size[:2], 8)
    torch.testing.assert_close(back, one.expand(9, 9))


def test_a_row_between_two_objects_of_a_class_describes_the_one_it_has_more_heat_of():
    cells = [(12, x) for x in range(6, 18)]
    both = torch.cat((box(-0.7, 0.4, velocity=(1, 0)), box(0.9, 0.4, velocity=(2, 0))))
    same = assign(rows(cells), [both], [[1, 1]], rows_per_object=5)
    assert len(set(same.rows.tolist())) == len(same.rows)
    speed = dict(zip((cells[r][1] for r in same.rows.tolist()), same.codes[:, 8].tolist()))
    assert speed == {10: 1, 11: 1, 12: 2, 13: 2, 14: 2} | {k: speed[k] for k in speed if k < 10}
    assert all(v == 1 for k, v in speed.items() if k < 12)
    # Objects of other classes do not compete.
    apart = assign(rows(cells), [both], [[1, 2]], rows_per_object=5)
    assert len(apart.rows) > len(set(apart.rows.tolist()))


def test_more_rows_than_there_are_and_objects_left_out_give_no_pairs():
    frames = torch.cat((rows([(12, 12)]), rows([(12, 12), (12, 13)], 2)))
    found = assign(frames, [box(0.1, 0.1)] * 3, [[0], [1], [3]], rows_per_object=9)
    assert found.rows.tolist() == [0, 1, 2] and found.labels.tolist() == [0, 3, 3]
    assert found.left_out == 1  # frame 1 has no row
    off = assign(rows([(12, 12)]), [box(30.0, 0.0)], [[0]], rows_per_object=9)
    assert off.left_out == 1 and len(off.rows) == 0


def test_of_rows_as_near_as_each_other_the_first_describes_the_object():
    """Which of several equal values is the least differs from device to device."""
    cells = [(12, x) for x in (12, 10, 14)] + [(y, 12) for y in (10, 14)]
    found = assign(rows(cells), [box(0.4, 0.4)], [[2]], rows_per_object=3, min_radius_cells=4)
    assert found.rows.tolist() == [0, 1, 2]


@pytest.mark.parametrize("seed", range(3))
def test_frames_of_any_size_get_the_targets_that_each_gets_alone(seed):
    generator = torch.Generator().manual_seed(seed)
    coords, boxes, labels = [], [], []
    for frame in range(5):
        taken = torch.rand(24, 24, generator=generator) < (0.0, 0.05, 0.3, 0.6, 0.9)[frame]
        coords.append(rows(taken.nonzero().tolist(), frame))
        count = (3, 0, 7, 12, 1)[(frame + seed) % 5]
        each = torch.rand(count, 9, generator=generator) * 6 + 0.5
        each[:, :2] = torch.rand(count, 2, generator=generator) * 24 - 12
        boxes.append(each)
        labels.append(torch.randint(0, CLASSES, (count,), generator=generator))
    rules = LossConfig(rows_per_object=9)
    whole = assign_targets(torch.cat(coords), boxes, labels, CLASSES, VOXELS, rules)
    pairs, heats, left_out, first = [], [], 0, 0
    for frame in range(5):
        mine = coords[frame].clone()
        mine[:, 0] = 0
        alone = assign_targets(mine, boxes[frame : frame + 1], labels[frame : frame + 1],
                               CLASSES, VOXELS, rules)  # fmt: skip
        heats.append(alone.heat)
        left_out += int(alone.left_out)
        pairs += [(int(r) + first, int(c), *code.tolist())
                  for r, c, code in zip(alone.rows, alone.labels, alone.codes)]  # fmt: skip
        first += len(mine)
    assert torch.equal(whole.heat, torch.cat(heats)) and whole.left_out == left_out
    assert len(pairs) > 9, "the case must not be trivial"
    found = zip(whole.rows.tolist(), whole.labels.tolist(), whole.codes.tolist())
    assert sorted((r, c, *code) for r, c, code in found) == sorted(pairs)


@pytest.mark.parametrize("overlap", [0.1, 0.5, 0.7])
def test_a_box_moved_by_the_radius_keeps_the_overlap(overlap):
    rng = np.random.default_rng(0)
    sizes = torch.from_numpy(rng.uniform(1, 20, (50, 2)))
    radius = heat_radius(sizes, overlap)
    assert (radius > 0).all()
    still = torch.zeros(50, 7, dtype=torch.float64)
    still[:, 3:5] = sizes
    # The tightest of: moved along both axes, smaller, larger.
    moved, smaller, larger = still.clone(), still.clone(), still.clone()
    moved[:, :2] = radius[:, None]
    smaller[:, 3:5] -= 2 * radius[:, None]
    larger[:, 3:5] += 2 * radius[:, None]
    kept = torch.stack([rotated_iou_bev(still, b).diagonal() for b in (moved, smaller, larger)])
    torch.testing.assert_close(kept.amin(dim=0), torch.full((50,), overlap).double())


def heat_loss(logits, heat):
    """Return the focal loss of one head that has all columns."""
    return focal_loss(logits, heat, torch.ones(1, logits.shape[1], dtype=torch.bool))[0]


def code_losses(codes, wanted, weights):
    """Return the losses of the numbers of one head that has all objects."""
    return box_losses(codes, wanted, weights, torch.ones(len(codes), 1, dtype=torch.bool))[0]


def test_focal_loss_equals_its_formula():
    logits = torch.tensor([[0.3, -1.0], [2.0, -40.0]], dtype=torch.float64)
    heat = torch.tensor([[1.0, 0.5], [0.0, 1.0]], dtype=torch.float64)
    p = [1 / (1 + math.exp(-v)) for v in logits.flatten().tolist()]
    want = -((1 - p[0]) ** 2) * math.log(p[0]) - 0.5**4 * p[1] ** 2 * math.log(1 - p[1])
    want += -(p[2] ** 2) * math.log(1 - p[2]) - (1 - p[3]) ** 2 * math.log(p[3])
    assert heat_loss(logits, heat).item() == pytest.approx(want / 2, rel=1e-12)
    sure = torch.tensor([[200.0, -200.0]])
    for wanted in ([[1.0, 0.0]], [[0.0, 1.0]]):
        assert torch.isfinite(heat_loss(sure, torch.tensor(wanted)))


def test_an_unknown_velocity_costs_nothing_and_has_no_gradient():
    codes = torch.ones(2, 10, requires_grad=True)
    wanted = torch.zeros(2, 10)
    wanted[1, 8:] = math.nan
    loss = code_losses(codes, wanted, torch.ones(10))
    assert loss.tolist() == [1.0] * 8 + [0.5] * 2
    gradient = torch.autograd.grad(loss.sum(), codes)[0]
    assert (gradient[1, 8:] == 0).all() and (gradient[0] == 0.5).all()


def predictions(count, model):
    generator = torch.Generator().manual_seed(0)
    heads = []
    for classes in model.classes_per_head:
        sizes = {**dict(BRANCHES), "hm": len(classes)}
        draw = {n: torch.randn(count, c, generator=generator) for n, c in sizes.items()}
        heads.append({n: v.requires_grad_() for n, v in draw.items()})
    return heads


def test_each_head_answers_for_its_own_classes_only():
    model = small_config().model
    coords = rows([(12, 12), (4, 4), (20, 4)])
    heads = predictions(3, model)
    targets = assign(coords, [torch.cat((box(0.1, 0.1), box(-6.1, -6.1)))], [[0, 2]])
    found = Predictions(coords, (1, 24, 24), tuple(heads))
    loss, parts = detection_loss(found, targets, model, LossConfig())
    loss.backward()
    for head, row in enumerate((0, 1, None)):
        gradient = heads[head]["dim"].grad
        touched = (
            [] if gradient is None else (gradient != 0).any(dim=1).nonzero().flatten().tolist()
        )
        assert touched == ([] if row is None else [row])
        assert (heads[head]["hm"].grad != 0).all()
    assert set(parts) == {"heat", *(name for name, _ in BRANCHES)}
    boxes = sum(parts[name] for name, _ in BRANCHES)
    torch.testing.assert_close(loss.detach(), parts["heat"] + 0.25 * boxes)


def test_the_loss_is_the_sum_over_heads_of_what_each_head_alone_costs():
    model = small_config().model
    generator = torch.Generator().manual_seed(1)
    heads = predictions(400, model)
    labels = torch.randint(0, CLASSES, (50,), generator=generator)
    wanted = torch.randn(50, 10, generator=generator)
    wanted[::7, 8:] = math.nan
    heat = torch.rand(400, CLASSES, generator=generator)
    at = torch.randint(0, 400, (50,), generator=generator)
    heat[at, labels] = 1
    targets = Targets(heat, at, labels, wanted, torch.tensor(0))
    weights = tuple(0.1 * k for k in range(1, 11))
    config = LossConfig(code_weights=weights)
    found = Predictions(rows([(0, 0)] * 400), (1, 24, 24), tuple(heads))
    loss, parts = detection_loss(found, targets, model, config)
    want, heats, first = 0.0, 0.0, 0
    for branches, classes in zip(heads, model.classes_per_head):
        last = first + len(classes)
        mine = ((labels >= first) & (labels < last)).nonzero().squeeze(1)
        codes = torch.cat([branches[n] for n, _ in BRANCHES], dim=1)[at[mine]]
        cost = heat_loss(branches["hm"], heat[:, first:last])
        boxes = code_losses(codes, wanted[mine], torch.tensor(weights))
        want, heats, first = want + cost + 0.25 * boxes.sum(), heats + cost, last
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(parts["heat"], heats.detach())
    leaves = [v for head in heads for v in head.values()]
    for a, b in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(want, leaves)):
        torch.testing.assert_close(a, b)


def test_a_batch_without_objects_still_has_a_gradient_for_every_branch():
    """Processes that train together must all have every gradient."""
    model = small_config().model
    coords = rows([(1, 1), (2, 2)])
    heads = predictions(2, model)
    targets = assign(coords, [torch.zeros(0, 9)], [[]])
    loss, _ = detection_loss(
        Predictions(coords, (1, 24, 24), tuple(heads)), targets, model, LossConfig()
    )
    loss.backward()
    assert all(v.grad is not None for head in heads for v in head.values())
    assert (heads[0]["vel"].grad == 0).all()
