"""Exact FP32 convolution against float64, on the maps of a real frame."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from test.support.conv_case import Case
from test.support.kernel_cases import expected_entries
from test.support.launch import DOWN, FLAT, SPARSE_CONV, SUBMANIFOLD

FORMS = {"subm": SUBMANIFOLD[2], "strided": DOWN[1], "flat": FLAT[0]}
NAN = float("nan")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("config", SPARSE_CONV, ids=str)
def test_each_width_convolves_as_float64_does(backend, config, form):
    case = Case(backend, config, FORMS[form])
    got = case.run("bias", "residual", relu=True).numpy()
    expected = case.expected("bias", "residual", relu=True)
    scale = np.abs(expected).max()
    assert np.abs(got - expected).max() <= 4e-6 * scale  # NaN where a row was not written fails too
    assert (expected == 0).any() and (expected > 0).any()
    assert bool(case.out[case.rows :].isnan().all()), "rows behind the last were written"
    assert case.frame.buffers.intact()


@pytest.mark.parametrize("points", [0, 1, 31, 32, 33])
@pytest.mark.parametrize("form", FORMS)
def test_few_rows_are_convolved_as_many(backend, form, points):
    case = Case(backend, SPARSE_CONV[3], FORMS[form], points=points)
    got = case.run("bias").numpy()
    np.testing.assert_allclose(got, case.expected("bias"), atol=1e-4)


@pytest.mark.parametrize("form", ["subm", "flat"])
def test_each_part_of_the_epilogue_can_be_left_out(backend, form):
    case = Case(backend, SPARSE_CONV[4], FORMS[form])
    for names in ((), ("bias",), ("residual",)):
        got = case.run(*names).numpy()
        assert (got < 0).any()
        np.testing.assert_allclose(got, case.expected(*names), atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_nan_reaches_every_row_that_sees_it_and_no_other(backend, form):
    """Clipping at zero must not turn NaN into zero: a fault upstream would be hidden."""
    case = Case(backend, SPARSE_CONV[4], FORMS[form])
    poisoned = len(case.host["x"]) // 2
    case.host["x"][poisoned, 3] = NAN
    got = case.run("bias", relu=True)
    entries = expected_entries(case.map, case.levels)
    seeing = {out_row for (_, out_row), in_row in entries.items() if in_row == poisoned}
    bad = set(got.isnan().any(dim=1).nonzero().flatten().tolist())
    assert bad == seeing and 0 < len(bad) < case.rows


def test_infinite_features_stay_in_the_rows_that_see_them(backend):
    case = Case(backend, SPARSE_CONV[4], SUBMANIFOLD[2])
    case.host["x"][5] = float("inf")
    got = case.run()
    entries = expected_entries(case.map, case.levels)
    seeing = {out_row for (_, out_row), in_row in entries.items() if in_row == 5}
    assert set((~got.isfinite()).any(dim=1).nonzero().flatten().tolist()) == seeing


@pytest.mark.parametrize("config", [SPARSE_CONV[0], SPARSE_CONV[3]], ids=str)
def test_convolution_repeats_to_the_last_bit(backend, config):
    """Also when rows of equal pattern change places: a row is summed in the order of its taps."""
    first = None
    for _ in backend.repeats():
        got = Case(backend, config, SUBMANIFOLD[2]).run("bias", "residual", relu=True)
        first = got if first is None else first
        assert torch.equal(got.view(torch.int32), first.view(torch.int32))
