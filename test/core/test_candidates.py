"""The tactics that a search tries: all of them run, none twice, always the same ones."""

from __future__ import annotations

import pytest

from driveRT_ros.core.candidates import candidates, cuda_core_variants, tensor_core_variants
from driveRT_ros.core.config import ModelConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.plan import ARITHMETIC, PRECISIONS, Plan, default_plan, domain_layers

LAYERS = domain_layers(ModelConfig().channels)
CHIPS = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("chip", CHIPS, ids=str)
def test_every_candidate_fits_its_layer_and_precision_and_none_comes_twice(precision, chip):
    for layer in set(LAYERS.values()):
        found = candidates(*layer, precision, chip)
        assert len(set(found)) == len(found)
        for tactic in found:
            assert tactic.supports(*layer, chip) == ""
            assert tactic.arithmetic in ARITHMETIC[precision]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_layer_has_a_choice_in_every_arithmetic_that_its_chip_has(precision):
    for layer in set(LAYERS.values()):
        found = {tactic.arithmetic for tactic in candidates(*layer, precision, (9, 0))}
        possible = {
            arithmetic
            for arithmetic in ARITHMETIC[precision]
            if arithmetic == "FFMA"
            or any(
                not tactic.supports(*layer, (9, 0))
                for tactic in tensor_core_variants(*layer, arithmetic)
            )
        }
        assert found == possible and found


def test_any_choice_makes_a_plan_that_is_valid():
    chip = (9, 0)
    for precision in PRECISIONS:
        default = default_plan(ModelConfig().channels, chip, precision)
        for domain, layer in LAYERS.items():
            for tactic in candidates(*layer, precision, chip):
                plan = Plan(precision, {**default.tactics, domain: tactic})
                plan.check_layers(ModelConfig().channels, chip)


def test_small_shared_memory_leaves_fewer_candidates():
    layer = LAYERS["subm4"]
    many, few = (candidates(*layer, "fp32x3", chip) for chip in ((9, 0), (7, 5)))
    assert 0 < len(few) < len(many)


def test_the_list_is_always_the_same():
    for layer in LAYERS.values():
        assert candidates(*layer, "tf32", (9, 0)) == candidates(*layer, "tf32", (9, 0))


def test_lines_of_taps_are_tried_only_with_small_tiles_and_odd_widths_find_a_table():
    assert {t.groups for t in cuda_core_variants(128, 27) if t.tile_rows == 32} == {3, 9}
    assert {t.groups for t in cuda_core_variants(64, 27) if t.tile_rows == 128} == {3}
    assert {t.groups for t in cuda_core_variants(128, 9)} == {1, 3}
    assert candidates(256, 256, 27, "fp32", (9, 0))  # no matrix unit, but the CUDA cores run it
    assert all(t.arithmetic == "FFMA" for t in candidates(256, 256, 27, "tf32", (9, 0)))


def test_an_unknown_precision_is_refused():
    with pytest.raises(ConfigError, match="bf16"):
        candidates(16, 16, 27, "bf16", (9, 0))
