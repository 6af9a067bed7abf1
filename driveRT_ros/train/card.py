"""The text of a model card: every number in it is read from a run or a report."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from driveRT_ros.core.schema import Config
from driveRT_ros.models.shipped import LIDAR
from driveRT_ros.train.config import FIRST_TRAINING_SEED, TrainConfig
from driveRT_ros.train.ship import SIMULATOR, Origin

Report = Mapping[str, Any]
_FULL_TURN = math.pi - 0.01
_POOR_AP = 0.3
_GOALS = {  # of held-out simulated scenes
    LIDAR.name: (
        ("mAP", ("mean_ap",), 0.60),
        ("AP of cars", ("classes", "car", "mean_ap"), 0.80),
        ("AP of pedestrians", ("classes", "pedestrian", "mean_ap"), 0.55),
        ("velocity error, m/s", ("errors", "vel"), -0.50),
    )
}
_CAMERA_GOALS = (("IoU of vehicles", ("layers", "vehicle", "iou"), 0.35),)
_REAL_GOALS = (
    (
        "recall of cars with at most one false box a hit",
        ("classes", "car", "at_half_precision", "recall"),
        0.60,
    ),
)
"""Name, place in the report, least value; a negative one is minus the greatest value."""


def card_text(origin: Origin) -> str:
    """Return the card in Markdown, without the head for programs."""
    parts = (
        _what(origin),
        _data(origin),
        _recipe(origin),
        *(_metrics(report) for report in origin.reports),
        _goals(origin),
        _limits(origin),
    )
    return "\n".join(parts)


def _what(origin: Origin) -> str:
    numbers = sum(tensor.numel() for tensor in origin.weights.tensors.values())
    dtypes = sorted({str(t.dtype).removeprefix("torch.") for t in origin.weights.tensors.values()})
    if isinstance(origin.config, TrainConfig):
        model = origin.config.model
        what = (
            f"VoxelNeXt for LiDAR clouds, channels {', '.join(map(str, model.channels))}, heads "
            f"for {'; '.join(', '.join(names) for names in model.classes_per_head)}."
        )
        user = "LiDAR node"
    else:
        layers = ", ".join(origin.config.model.network.segmentation).replace("_", " ")
        what = f"Lift-splat for cameras: {layers} in the bird's-eye view."
        user = "camera node"
    return (
        f"# {origin.shipped.name}\n\n{what}\n\n"
        f"{numbers:,} numbers ({', '.join(dtypes)}), {origin.file_bytes / 1e6:.2f} MB. The {user} "
        "and the commands run these weights where they are told no others "
        "(`use_shipped_weights`). Written by `drivert ship`.\n"
    )


def _data(origin: Origin) -> str:
    if isinstance(origin.config, TrainConfig):
        more = (
            "The simulated sensor and objects were fitted to statistics of real nuScenes sweeps, "
            "those of mini_val among them: results on such frames are not those of an unknown "
            "sensor.\n"
        )
    elif origin.config.imagenet:
        more = "The backbone started with weights learned from ImageNet.\n"
    else:
        more = ""
    return (
        "## Data\n\n"
        f"Trained on: {origin.data}. Drives have seeds from {origin.config.data.first_seed:,} on; "
        f"those below {FIRST_TRAINING_SEED:,} are held out. No recording of a real sensor was "
        f"learned from.\n{more}"
    )


def _recipe(origin: Origin) -> str:
    config = origin.config
    changed = different(config, type(config)())
    if not isinstance(config, TrainConfig):
        changed = {"kind": config.kind, **changed}
    recipe = yaml.safe_dump(changed, sort_keys=False, default_flow_style=None, width=90)
    start = "drivert" if origin.world == 1 else _torchrun(origin.world)
    lines, source = [], "sim"
    frames = re.search(r"(\d+) frames", origin.data)
    if frames:
        drives = int(frames[1]) // config.data.frames_per_drive
        lines.append(f"drivert train --config recipe.yaml --make-shards frames --scenes {drives}")
        source = "frames"
    lines.append(f"{start} train --config recipe.yaml --data {source} --out run")
    batch = config.data.batch_size * origin.world
    last = ", ".join(
        f"{name} {value:.4g}"
        for name, value in (origin.log[-1] if origin.log else {}).items()
        if name not in ("step", "rate", "wait_share", "frames_per_s")
    )
    return (
        "## Recipe\n\n"
        f"{origin.steps:,} of {config.optimizer.steps:,} steps of {batch} frames, "
        f"{origin.steps * batch:,} frames seen; last line of the log: {last}. Commit "
        f"`{origin.commit}`; `recipe.yaml` holds what differs from the defaults:\n\n"
        f"```yaml\n{recipe}```\n\n```bash\n" + "\n".join(lines) + "\n```\n"
    )


def _torchrun(world: int) -> str:
    return f"torchrun --nproc-per-node {world} -m driveRT_ros"


def different(config: Config, default: Config) -> dict[str, Any]:
    """Return the parameters that differ, as a tree of plain values."""

    def differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, value in ours.items():
            if isinstance(value, Mapping):
                if below := dict(differing(value, theirs[name])):
                    yield name, below
            elif value != theirs[name]:
                yield name, list(value) if isinstance(value, tuple) else value

    return dict(differing(config.to_dict(), default.to_dict()))


def _metrics(report: Report) -> str:
    about = report["about"]
    named = ", ".join(part for part in about["source"].split(", ") if "/" not in part)
    counted = f"{named}; {report['num_frames']:,} frames"
    if about.get("every_box"):
        counted += "; every box counts"
    elif "max_range_m" in about:
        far = about["max_range_m"]
        counted += f"; objects with {about['min_points']} points or more"
        counted += f", closer than {far:g} m" if far else ""
    table = _boxes(report) if "classes" in report else _layers(report)
    return f"## Measured on {counted}\n\n{table}"


def _boxes(report: Report) -> str:
    heads = ("class", "truth", "AP", "ATE", "ASE", "AOE", "AVE", "hits", "false", "recall", "prec.")
    rows = []
    for name, found in report["classes"].items():
        if found["num_truth"]:
            point = found["at_half_precision"]
            errors = (found["errors"][e] for e in ("trans", "scale", "orient", "vel"))
            values = (found["mean_ap"], *errors)
            counts = (str(point["hits"]), str(point["wrong"]))
            shares = map(_number, (point["recall"], point["precision"]))
            rows.append((name, str(found["num_truth"]), *map(_number, values), *counts, *shares))
    all_of = report["at_half_precision"]
    return (
        f"mAP {_number(report['mean_ap'])} over ten classes, "
        f"{_number(report['mean_ap_of_present_classes'])} over those present; NDS "
        f"{_number(report['nds'])}.\n\n{_table(heads, rows)}\n"
        "The last four columns count within 2 m at the least score with at most one false "
        "detection a hit; that score was chosen on these frames. All classes together with one "
        f"such score: recall {_number(all_of['recall'])}, precision "
        f"{_number(all_of['precision'])}.\n"
    )


def _layers(report: Report) -> str:
    keys = [
        name
        for name, value in next(iter(report["layers"].values())).items()
        if not isinstance(value, (list, dict))
    ]
    heads = ("layer", *(key.replace("_", " ") for key in keys))
    rows = [(n, *(_number(layer[k]) for k in keys)) for n, layer in report["layers"].items()]
    return (
        f"{_table(heads, rows)}\n"
        "Cells that some camera sees count, from a probability above 0.5. Objects with fewer than "
        f"{report['about']['min_pixels']:g} pixels of the network inputs count in the last column "
        "only; in the others their cells are left out, whatever was found there.\n"
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _goals(origin: Origin) -> str:
    rows = []
    for report in origin.reports:
        source = report["about"]["source"]
        simulated = source.startswith(SIMULATOR)
        goals = _GOALS.get(origin.shipped.name, _CAMERA_GOALS) if simulated else _REAL_GOALS
        for name, place, goal in goals:
            value: Any = report
            for key in place:
                value = value.get(key) if isinstance(value, Mapping) else None
            sign, least = ("≤", -goal) if goal < 0 else ("≥", goal)
            reached = value is not None and (value <= least if goal < 0 else value >= least)
            where = source.split(",")[0]
            cells = (name, where, f"{sign} {least:g}", _number(value), "yes" if reached else "no")
            rows.append(cells)
    heads = ("goal", "where", "wanted", "measured", "reached")
    return f"## Goals\n\n{_table(heads, rows)}"


def _limits(origin: Origin) -> str:
    lines = [
        "Learned from a simulator alone: expect less on real sensors than on simulated scenes. "
        "What is known of real frames is above.",
    ]
    config = origin.config
    if isinstance(config, TrainConfig):
        lines += _lidar_limits(config, origin.reports)
    else:
        lines.append("Expects six cameras around the vehicle with the fields of view of nuScenes.")
    return "## Limits\n\n" + "".join(f"- {line}\n" for line in lines)


def _lidar_limits(config: TrainConfig, reports: Sequence[Report]) -> Iterator[str]:
    low, high = config.voxelization.point_cloud_range[:3], config.voxelization.point_cloud_range[3:]
    size = " x ".join(f"{v:g}" for v in config.voxelization.voxel_size)
    span = ", ".join(f"{a:g} to {b:g}" for a, b in zip(low, high))
    yield f"Range {span} m along x, y, z of the LiDAR; voxels of {size} m."
    yield "A rotating LiDAR of 32 beams on the roof, z up, intensity 0 to 255, as nuScenes has it."
    if config.augment.max_rotation_rad < _FULL_TURN:
        yield (
            "Streets along y of the LiDAR (+y ahead, +x right): turned by at most "
            f"{config.augment.max_rotation_rad:g} rad in training. The points of a sensor that is "
            "mounted otherwise are turned by `input.forward_yaw_deg`: 0 where +x is ahead."
        )
    past, share = config.densification_params.num_past_frames, config.augment.fewer_sweeps_share
    fewer = f"; {share:.0%} of the frames in training had fewer" if share else ""
    yield f"{past} past sweeps joined with the current one{fewer}."
    for report in reports:
        poor = [
            f"{name.replace('_', ' ')} {found['mean_ap']:.2f}"
            for name, found in report.get("classes", {}).items()
            if found["num_truth"] and found["mean_ap"] < _POOR_AP
        ]
        if poor and report["about"]["source"].startswith(SIMULATOR):
            yield f"Poor even in simulated scenes (AP below {_POOR_AP:g}): {', '.join(poor)}."


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
