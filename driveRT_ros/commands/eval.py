"""Compare detections with ground truth as nuScenes does: mAP, NDS, errors, by class and by range.

The pipeline detects in simulated scenes, in a bag (--run), in nuScenes or KITTI; or detections that
a bag holds are compared with its ground truth. Prints tables and writes report.json, precision
over recall, scores by range and the worst frames seen from above.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driveRT_ros.commands.common import (
    add_output_arguments,
    console,
    detector_config,
    output_folder,
    progress,
)
from driveRT_ros.commands.sources import FORWARD, PARAMETERS
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.plan import PRECISIONS

if TYPE_CHECKING:
    from driveRT_ros.core.config import LidarConfig
    from driveRT_ros.train.eval_boxes import EvalSettings
    from driveRT_ros.train.eval_sources import Answer, Moment
    from driveRT_ros.train.evaluate import Evaluation

HELP = "compare detections with ground truth: mAP, NDS, errors, pictures"
EXAMPLES = """\
examples:
  drivert eval --sim 200 --jobs 0 --checkpoint voxelnext.safetensors
  drivert eval --bag drive --results results                 what drivert run has recorded
  drivert eval --bag drive --run --checkpoint voxelnext.safetensors
  drivert eval --nuscenes /data/nuscenes --split val --checkpoint w.pth --submission val.json
  drivert eval --kitti /data/kitti --max-range 40 --min-points 10 --checkpoint w.safetensors
  drivert eval --nuscenes /data/nuscenes --keyframes-only --every-box --config run/detector.yaml
  drivert eval --cameras --sim 200 --jobs 0 --config run/camera.yaml
  drivert eval --sim 20 --statistics --data DIR              how simulated clouds resemble real ones
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``drivert eval``."""
    _add_source(parser)
    group = parser.add_argument_group("detector")
    group.add_argument(
        *("--checkpoint", "--weights"), metavar="FILE", help="default: those of the package"
    )
    group.add_argument("--config", metavar="YAML", help="parameter file, plain or in ROS form")
    group.add_argument("--device", help="auto, cpu, cuda or cuda:N")
    group.add_argument("--precision", choices=PRECISIONS, help="arithmetic on a GPU")
    group.add_argument("--plan", metavar="FILE", help="tuned Plan")
    group.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="one parameter, such as post_process_params.score_thresholds=[0.05]; repeatable",
    )
    group = parser.add_argument_group("what counts")
    group.add_argument(
        "--min-points", type=int, default=1, metavar="N", help="LiDAR points of ground truth"
    )
    group.add_argument(
        "--max-range", type=float, metavar="M", help="metres; never beyond the range of the class"
    )
    group.add_argument(
        "--every-box",
        action="store_true",
        help="count every box, however far and with however few points",
    )
    group = parser.add_argument_group("results")
    group.add_argument("--submission", metavar="FILE", help="write a nuScenes submission, too")
    group.add_argument(
        "--worst",
        type=int,
        default=4,
        metavar="N",
        help="pictures of the worst frames (default: 4)",
    )
    group.add_argument(
        "--min-score",
        type=float,
        default=0.3,
        metavar="S",
        help="score at which hits are counted, too, and of boxes in pictures (default: 0.3)",
    )
    add_output_arguments(parser, "drivert_eval")


def _add_source(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("source")
    one = group.add_mutually_exclusive_group(required=True)
    one.add_argument("--sim", type=int, metavar="N", help="N simulated scenes")
    one.add_argument("--bag", metavar="PATH", help="a rosbag2 with /ground_truth/detections")
    one.add_argument("--nuscenes", metavar="ROOT", help="a nuScenes data set")
    one.add_argument("--kitti", metavar="ROOT", help="a KITTI object data set")
    group.add_argument(
        *("--sim-seed", "--seed"),
        type=int,
        metavar="N",
        help="seed of the first scene (default: 900000, held out)",
    )
    group.add_argument(
        "--jobs", type=int, metavar="N", help="processes that simulate (default: 1); 0: all cores"
    )
    group.add_argument("--sim-config", metavar="YAML", help="parameter file of the simulator")
    group.add_argument("--run", action="store_true", help="detect in the clouds of the bag")
    group.add_argument("--topic", default="", help="its clouds; needed if it has several")
    group.add_argument(
        "--results",
        metavar="PATH",
        help="bag or result folder that holds the detections, if it is another",
    )
    group.add_argument("--detections", default="", metavar="TOPIC", help="their topic")
    group.add_argument("--version", default="", help="nuScenes tables, such as v1.0-mini")
    group.add_argument(
        "--split", default="", help="all, train, val, mini_train, mini_val or a scene"
    )
    group.add_argument(
        "--keyframes-only", action="store_true", help="do without the sweeps in between"
    )
    group.add_argument(
        "--statistics", action="store_true", help="draw statistics of --sim beside real ones"
    )
    group.add_argument("--data", metavar="DIR", help="real frames for --statistics")
    group.add_argument(
        "--cameras",
        action="store_true",
        help="compare what the camera model sees in --sim, instead of the detector",
    )


def execute(args: argparse.Namespace) -> int:
    """Run ``drivert eval``."""
    if args.cameras:
        from driveRT_ros.commands import eval_cameras

        return eval_cameras.execute(args)
    _refuse_useless(args)
    if args.statistics:
        from driveRT_ros.commands import eval_statistics

        return eval_statistics.execute(args)
    from driveRT_ros.train.eval_sources import compare
    from driveRT_ros.train.evaluate import Evaluator
    from driveRT_ros.train.submission import Submission

    settings = _settings(args)
    if args.submission and not Path(args.submission).resolve().parent.is_dir():
        raise ConfigError(f"The folder of '{args.submission}' does not exist.")
    config = detector_config(args, _forced(args))
    source = _open(args, config)
    out = output_folder(args)
    evaluator = Evaluator(args.min_score)
    submission = Submission() if args.submission else None
    outcome = compare(
        _shown(source.moments, source.total),
        source.answer,
        evaluator,
        settings,
        num_worst=args.worst,
        submission=submission,
    )
    if submission is not None:
        submission.write(args.submission)
        console.print(f"Wrote {args.submission}.")
        if not evaluator.num_frames:
            console.print("No frame has ground truth: there is nothing to compare.")
            return 0
    if outcome.unanswered:
        console.print(f"{outcome.unanswered} frames got no answer and count as empty.")
    evaluation = evaluator.result()
    about = source.about | {
        "min_points": settings.min_points,
        "max_range_m": args.max_range,
        "every_box": args.every_box,
        "unanswered_frames": outcome.unanswered,
    }
    _write(evaluation, about, out)
    _draw_worst(outcome.worst, config, args.min_score, out)
    _print(evaluation, out, untrained=about.get("weights") == "untrained")
    return 0


_ONLY_WITH = {
    "bag": ("run", "topic", "results", "detections"),
    "sim": ("sim_seed", "jobs", "sim_config"),
    "nuscenes": ("version", "split"),
}
_OF_DETECTOR = ("checkpoint", "device", "plan", "precision")


def _refuse_useless(args: argparse.Namespace) -> None:
    """Refuse options that would change nothing, and numbers that mean nothing."""
    for source, names in _ONLY_WITH.items():
        given = [name for name in names if getattr(args, name) not in (None, "", False)]
        if given and getattr(args, source) is None:
            raise ConfigError(f"Option --{given[0].replace('_', '-')} needs --{source}.")
    if args.data and not args.statistics:
        raise ConfigError("Option --data names real frames for --statistics; add that.")
    given = [name for name in _OF_DETECTOR if getattr(args, name)]
    if given and args.bag is not None and not args.run:
        raise ConfigError(
            f"Option --{given[0]} is for detecting anew, but the detections of a bag are there "
            "already; add --run, or leave it out."
        )
    if args.worst < 0 or not 0.0 <= args.min_score <= 1.0:
        raise ConfigError(
            "Option --worst must be 0 or more and --min-score lie in [0, 1], got "
            f"{args.worst} and {args.min_score:g}."
        )
    if args.jobs is not None and args.jobs < 0:
        raise ConfigError(f"Option --jobs must be 0 (all cores) or more, got {args.jobs}.")


@dataclasses.dataclass(frozen=True)
class _Source:
    moments: Iterable[Moment]
    total: int | None
    answer: Answer
    about: dict[str, Any]


def _settings(args: argparse.Namespace) -> EvalSettings:
    from driveRT_ros.train.eval_boxes import EvalSettings

    limit = {} if args.max_range is None else {"max_range_m": args.max_range}
    return EvalSettings(min_points=args.min_points, every_box=args.every_box, **limit)


def _forced(args: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters that options and source ask for."""
    named = {"device": args.device, "precision": args.precision, "plan_path": args.plan}
    forced: dict[str, Any] = {name: value for name, value in named.items() if value}
    if args.bag is None:  # else the clouds are those of any sensor
        forced[FORWARD] = PARAMETERS["kitti" if args.kitti else "sim"][FORWARD]
    if args.kitti or args.keyframes_only:
        forced["densification_params.num_past_frames"] = 0
    return forced


def _open(args: argparse.Namespace, config: LidarConfig) -> _Source:
    from driveRT_ros.train import eval_sources as sources

    if args.bag is not None:
        return _open_bag(args, config)
    if args.kitti is not None:
        moments: Iterable[Moment] = sources.kitti_frames(args.kitti)
        name, total = f"KITTI, {args.kitti}", None
    elif args.nuscenes is not None:
        from driveRT_ros.io.nuscenes_eval import NuScenesEval

        data = NuScenesEval(args.nuscenes, args.version)
        split = args.split or {"v1.0-trainval": "val", "v1.0-mini": "mini_val"}.get(
            data.version, "all"
        )
        moments = sources.nuscenes_frames(data, split, args.keyframes_only)
        name, total = f"nuScenes {data.version}, split {split}", data.num_keyframes(split)
    else:
        moments, name, total = _simulated(args, config)
    return _detecting(name, moments, total, config)


def num_jobs(args: argparse.Namespace) -> int:
    """Return the number of processes that simulate."""
    return 1 if args.jobs is None else args.jobs or os.cpu_count() or 1


def _simulated(args: argparse.Namespace, config: LidarConfig) -> tuple[Iterable[Moment], str, int]:
    from driveRT_ros.sim.config import SimConfig
    from driveRT_ros.train.config import FIRST_TRAINING_SEED
    from driveRT_ros.train.eval_sources import simulated
    from driveRT_ros.train.evaluate import HELD_OUT_SEED

    if args.sim < 1:
        raise ConfigError(f"Option --sim takes a number of scenes from 1 on, got {args.sim}.")
    seed = HELD_OUT_SEED if args.sim_seed is None else args.sim_seed
    if seed + args.sim > FIRST_TRAINING_SEED:
        console.print(f"Scenes with seeds from {FIRST_TRAINING_SEED} on may have been trained on.")
    base = SimConfig.from_yaml(args.sim_config) if args.sim_config else SimConfig()
    if args.every_box:  # by default the simulator annotates no object without a point
        base = dataclasses.replace(base, ground_truth_min_points=0)
    past = config.densification_params.num_past_frames
    name = f"simulator, seeds {seed} to {seed + args.sim - 1}"
    return simulated(args.sim, seed, past, base, num_jobs(args)), name, args.sim


def _open_bag(args: argparse.Namespace, config: LidarConfig) -> _Source:
    from driveRT_ros.commands.recorded_frames import bag_of
    from driveRT_ros.io.bag import BagReader
    from driveRT_ros.io.scene_bag import TRUTH_BOXES
    from driveRT_ros.io.topics import choose_topic
    from driveRT_ros.train import eval_sources as sources

    if args.run and (args.results or args.detections):
        raise ConfigError("Option --run detects anew; leave out --results and --detections.")
    with BagReader(args.bag) as reader:
        total = reader.message_counts.get(TRUTH_BOXES, 0)
        topics = reader.topics
    if not total:
        raise ConfigError(
            f"Bag '{args.bag}' has no messages on {TRUTH_BOXES} to compare with; "
            "'drivert convert' writes bags that have."
        )
    topic = choose_topic(topics, args.topic, bag=args.bag)
    moments = sources.bag_frames(args.bag, topic, config.input)
    if args.run:
        return _detecting(f"bag {args.bag}", moments, total, config)
    found = args.results or args.bag
    if not args.results and not sources.detection_topics(topics):
        raise ConfigError(
            f"Bag '{found}' has ground truth but no detections of a node: name the bag or result "
            "folder that has them with --results, or detect now with --run."
        )
    answer = sources.Recorded(bag_of(found), args.detections)
    about = {"source": f"bag {args.bag}", "detections": f"{answer.topic} of {found}"}
    return _Source(moments, total, answer, about)


def _detecting(
    name: str, moments: Iterable[Moment], total: int | None, config: LidarConfig
) -> _Source:
    """Return a source that the pipeline answers."""
    import torch

    from driveRT_ros.core.pipeline import LidarPipeline
    from driveRT_ros.models.checkpoint import load_weights
    from driveRT_ros.models.strict import file_sha256
    from driveRT_ros.train.eval_sources import Detector

    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    about: dict[str, Any] = {"source": name, "weights": "untrained", "precision": config.precision}
    weights, path = None, config.checkpoint_path
    if path:
        weights = load_weights(path, config, layout=config.checkpoint_layout)
        about |= {"weights": Path(path).name, "weights_sha256": file_sha256(Path(path))}
    pipeline = LidarPipeline(config, weights, config.device)
    past = config.densification_params.num_past_frames
    about |= {"device": str(pipeline.device), "num_past_frames": past}
    about["forward_yaw_deg"] = config.input.forward_yaw_deg
    if pipeline.plan_note:
        console.print(pipeline.plan_note)
    return _Source(moments, total, Detector(pipeline), about)


def _shown(moments: Iterable[Moment], total: int | None) -> Iterator[Moment]:
    """Pass moments on, with a progress bar of those that are evaluated."""
    with progress() as bar:
        task = bar.add_task("evaluate", total=total)
        for moment in moments:
            yield moment
            if moment.wanted:
                bar.advance(task)


def _write(evaluation: Evaluation, about: dict[str, Any], out: Path) -> None:
    from driveRT_ros.train.plots import by_range, precision_recall, write_picture
    from driveRT_ros.train.report import report, write_report

    write_report(report(evaluation, about), out / "report.json")
    title = f"{about['source']}: mAP {evaluation.mean_ap:.3f}"
    write_picture(out / "precision_recall.png", precision_recall(evaluation, title))
    write_picture(out / "by_range.png", by_range(evaluation, title))


def _draw_worst(worst: list[Any], config: LidarConfig, min_score: float, out: Path) -> None:
    from driveRT_ros.train.plots import worst_frames, write_picture

    for name, picture in worst_frames(worst, config, min_score):
        write_picture(out / name, picture)


def _print(evaluation: Evaluation, out: Path, *, untrained: bool) -> None:
    from driveRT_ros.train.report import class_table, headline, point_table, range_table

    console.print(class_table(evaluation))
    console.print(range_table(evaluation))
    console.print(point_table(evaluation))
    console.print(headline(evaluation))
    if untrained:
        console.print("The weights are not trained: boxes mean nothing. Give --checkpoint.")
    console.print(f"Report and pictures are in {out}.")
