"""The same points as messages of many layouts, and with what drivers put into them."""

from __future__ import annotations

import numpy as np

from driveRT_ros.core.config import InputConfig
from test.support.clouds import make_cloud, random_points

COUNT = 700
POINTS = random_points(COUNT)
STAMP_NS = 1_700_000_000_123_456_789


def columns(types, names="xyzirt", points=POINTS, gap=0, **values):
    """Return fields one after the other at offsets that suit nobody, and the step."""
    long = {"i": "intensity", "r": "ring", "t": "t"}
    out, offset = {}, gap
    for name, code in zip(names, types):
        name = long.get(name, name)
        out[name] = (values.get(name, points.get(name)), code, offset)
        offset += int(code[1]) + gap
    return out, offset


def typed(types, names="xyzirt", gap=0, values=None, **options):
    """Return a cloud whose fields have these types, with other values where they are given."""
    fields, step = columns(types, names, gap=gap, **(values or {}))
    return make_cloud(fields, step, stamp_ns=options.pop("stamp_ns", STAMP_NS), **options)


def some(name, **places):
    """Return a column with other values at some places."""
    out = POINTS[name].astype(np.float64)
    for value, at in places.values():
        out[at] = value
    return out


NAN, INF = np.nan, np.inf
HOLES = {
    "x": some("x", a=(NAN, slice(0, None, 4))),
    "y": some("y", a=(INF, [5, 9]), b=(-8192.0, [13])),
    "z": some("z", a=(8191.9999, [17]), b=(-NAN, [4, 18])),
}
CLOCK = {"t": STAMP_NS * 1e-9 - POINTS["t"] * 1e-9}
LAYOUTS = {
    "plain": typed(["f4"] * 4, "xyzi"),
    "one_point": typed(["f4"] * 6, values={k: v[:1] for k, v in POINTS.items()}),
    "without_intensity": typed(["f4"] * 3, "xyz"),
    "float64": typed(["f8"] * 5, "xyzit"),
    "small_integers": typed(["i1", "i2", "i1", "u1", "u2", "u4"]),
    "wide_integers": typed(["i4", "i4", "i4", "u4", "u2", "i4"]),
    "uint16_intensity": typed(["f4", "f4", "f4", "u2", "u2", "u4"]),
    "misaligned": typed(["f4", "f8", "f4", "u1", "u2", "u4"], gap=1),
    "big_endian": typed(["f4", "f8", "f4", "u2", "f4", "u4"], big_endian=True),
    "big_endian_times": typed(["f4"] * 4 + ["f8", "f4"], values=CLOCK, big_endian=True),
    "rows_padded": typed(["f4", "f4", "f4", "f4", "u2", "f8"], height=7, row_padding=5),
    "holes": typed(["f4"] * 4, "xyzi", values=HOLES, height=20, is_dense=False),
    "holes_float64": typed(["f8"] * 4, "xyzi", values=HOLES, gap=3),
    "nothing_finite": typed(["f4"] * 6, values={"x": np.full(COUNT, NAN)}),
    "clock_seconds": typed(["f4"] * 4 + ["u2", "f8"], values=CLOCK),
    "clock_milliseconds": typed(["f4"] * 4 + ["u2", "f8"], values={"t": CLOCK["t"] * 1e3}),
    "clock_of_another_day": typed(["f4"] * 4 + ["u2", "f8"], values=CLOCK, stamp_ns=7 * 10**18),
    "no_stamp": typed(["f4"] * 4 + ["u2", "f8"], values=CLOCK, stamp_ns=0),
    "float_times": typed(["f4"] * 4 + ["u2", "f4"], values={"t": POINTS["t"] * 1e-9}),
    "times_before_the_stamp": typed(["f4"] * 4 + ["u2", "f4"], values={"t": POINTS["t"] * -1e-9}),
    "times_too_far_apart": typed(["f4"] * 4 + ["u2", "f8"], values={"t": POINTS["t"] * 1.0}),
    "one_time": typed(["f4"] * 4 + ["u2", "u4"], values={"t": POINTS["t"] * 0 + 7}),
    "odd_times": typed(
        ["f4"] * 4 + ["u2", "f4"],
        values={"t": some("t", a=(NAN, [1]), b=(-INF, [600]), c=(INF, [3])) * 1e-9},
    ),
    "no_finite_time": typed(["f4"] * 4 + ["u2", "f4"], values={"t": np.full(COUNT, INF)}),
    "times_whose_sum_is_infinite": typed(
        ["f4"] * 4 + ["u2", "f4"], values={"t": np.full(COUNT, 3e38)}
    ),
    "odd_rings": typed(["f4"] * 6, values={"ring": some("ring", a=(3e9, [2]), b=(NAN, [3]))}),
    "odd_intensities": typed(
        ["f4"] * 4, "xyzi", values={"intensity": some("intensity", a=(NAN, [1]), b=(-INF, [9]))}
    ),
    "no_finite_intensity": typed(["f4"] * 4, "xyzi", values={"intensity": np.full(COUNT, NAN)}),
    "intensities_out_of_range": typed(
        ["f4"] * 4, "xyzi", values={"intensity": POINTS["intensity"] * 3 - 90}
    ),
    "negative_zeros": typed(
        ["f4"] * 4, "xyzi", values={"intensity": some("intensity", a=(-0.0, [1]), b=(-1, [2]))}
    ),
    "intensities_to_1": typed(
        ["f4"] * 4, "xyzi", values={"intensity": POINTS["intensity"] / np.float32(255)}
    ),
    "beyond_float32": typed(["f8"] * 4, "xyzi", values={"x": some("x", a=(1e300, [3]))}),
}  # fmt: skip
CONFIGS = {
    "default": InputConfig(),
    "scaled": InputConfig(intensity_scale=0.7, default_intensity=3.3, intensity_clip=99.9),
    "thinned": InputConfig(point_capacity=411, intensity_scale=255.0),
}
