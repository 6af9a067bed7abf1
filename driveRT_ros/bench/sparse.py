"""Check, then time, the sparse engine on a GPU beside its peers: the measuring of one report.

Every candidate is compared with a float64 run of the same network on the same frame first; one
that fails has no time. ``benchmarks/README.md`` says what is measured and how.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from driveRT_ros.bench.contenders import EqualProducts, Ours, Peer
from driveRT_ros.bench.frames import Frame, distinct_voxels, network_tensors, voxels_of
from driveRT_ros.bench.networks import TorchNetwork, stages_of
from driveRT_ros.bench.peers_spconv import ALGORITHMS, PRECISIONS, spconv_peers
from driveRT_ros.bench.timing import clocks, machine, summary, warm_profiler
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.gpu.replay import captured, replay_times
from driveRT_ros.core.plan import Plan
from driveRT_ros.models.graph import build_graph

PEERS = ("spconv", "torch", "cublas")
Contender = Ours | Peer | EqualProducts


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How often everything is run."""

    rounds: int = 4
    samples: int = 6  # of a graph in a round
    replays: int = 10  # of a graph in a sample
    eager_runs: int = 6  # in a round
    profiled_runs: int = 10

    def record(self) -> dict[str, int]:
        """Return it as a result file holds it."""
        return {
            "rounds": self.rounds,
            "graph_samples": self.rounds * self.samples,
            "replays_a_sample": self.replays,
            "eager_runs": self.rounds * self.eager_runs,
            "profiled_runs": self.profiled_runs,
        }


class SparseBench:
    """The candidates and the report that grows with every frame.

    Args:
        config: Grid and channels.
        plans: Plan by precision of this engine; None takes the default Plan. The first is ``ours``
            of the comparison.
        peers: Names of :data:`PEERS`; one that cannot be imported is reported as absent.
        protocol: How often.
        commit: See :func:`~driveRT_ros.bench.timing.machine`.
    """

    def __init__(
        self,
        config: LidarConfig,
        plans: Sequence[tuple[str, Path | None]] = (("fp32", None),),
        peers: Sequence[str] = (),
        protocol: Protocol | None = None,
        commit: str = "",
    ) -> None:
        self.config, self.protocol, self.wanted = config, protocol or Protocol(), set(peers)
        self.tensors = network_tensors(config, torch.device("cuda", 0))
        exact = {name: tensor.double() for name, tensor in self.tensors.items()}
        self._oracle = TorchNetwork(config, exact)
        self.ours = [self._engine(*plan) for plan in plans]
        self.peers = self._peers()
        self.report: dict[str, Any] = {
            **machine(commit),
            "protocol": self.protocol.record(),
            "plans": {
                candidate.name: plan_record(candidate.backbone.plan) for candidate in self.ours
            },
            "clocks": [clocks("start")],
            "frames": {},
        }

    def _engine(self, precision: str, path: Path | None) -> Ours:
        if path is None:
            return Ours(f"ours {precision}", precision, self.config, self.tensors)
        plan = Plan.load(path)
        if plan.precision != precision:
            raise ConfigError(
                f"Plan '{path}' is for precision '{plan.precision}', '{precision}' is asked for."
            )
        # The weights of a benchmark are not those of any tuning, and times do not depend on them.
        plan = dataclasses.replace(plan, weights_sha256="")
        return Ours(f"ours {precision} ({path.stem})", precision, self.config, self.tensors, plan)

    def _peers(self) -> list[Peer]:
        found: list[Peer] = []
        if "spconv" in self.wanted:
            found += spconv_peers("spconv", PRECISIONS, ALGORITHMS, self.config, self.tensors)
        if "torch" in self.wanted:
            make = functools.partial(TorchNetwork, self.config, self.tensors)
            found.append(Peer("torch fp32 gather-product-scatter", "fp32", make))
        return found

    def time_frame(self, frame: Frame) -> None:
        """Check all candidates on one frame and time those that pass, in turns.

        Raises:
            ConfigError: If the frame has other rows than its table says.
        """
        voxels, points = voxels_of(frame.points, self.config, "cuda"), frame.points.cuda()
        self._oracle.load(voxels)
        self._oracle.run()
        want = self._oracle.outputs()
        rows = [len(want[f"subm{n}"][0]) for n in range(1, 7)]
        if frame.rows and rows != list(frame.rows):
            raise ConfigError(
                f"Frame {frame.name} has rows {rows}, the table says {list(frame.rows)}."
            )
        ours = [c for c in self.ours if c.prepare(points, want)]
        peers = [p for p in self.peers if p.prepare(voxels, want)]
        stages, maps = stages_of(build_graph(self.config.model)), self._oracle.maps.by_key
        precisions = PRECISIONS if "cublas" in self.wanted else ()
        products = [EqualProducts(maps, stages, precision) for precision in precisions]
        found: dict[str, Any] = {
            "source": frame.source,
            "points": len(frame.points),
            "rows": [*rows, len(want["bev"][0]), len(want["subm_out"][0])],
            "candidates": {},
        }
        self.report["frames"][frame.name] = found
        everyone: list[Contender] = [*ours, *peers, *products]
        for turn in range(self.protocol.rounds):
            # There and back: what drifts during a round meets everyone alike.
            for candidate in everyone if turn % 2 == 0 else reversed(everyone):
                self._sample(candidate)
            if turn == 0:
                self.report["clocks"].append(clocks(f"frame {frame.name}"))
        for candidate in (*self.ours, *self.peers, *products):
            found["candidates"][candidate.name] = candidate.result()

    def _sample(self, candidate: Contender) -> None:
        if isinstance(candidate, Peer):
            candidate.sample(self.protocol.eager_runs)
        else:
            candidate.sample(self.protocol.samples, self.protocol.replays)

    def profile_frame(self, frame: Frame) -> None:
        """Add kernel sums; the profiler may slow what runs after it, so this comes last."""
        voxels, points = voxels_of(frame.points, self.config, "cuda"), frame.points.cuda()
        found = self.report["frames"][frame.name]["candidates"]
        for candidate in (*self.ours, *self.peers):
            if "absent" not in found[candidate.name]:
                source = points if isinstance(candidate, Ours) else voxels
                times = candidate.profile(source, self.protocol.profiled_runs)
                found[candidate.name].update(times)

    def time_edges(self) -> dict[str, Any]:
        """Time our engine on clouds that peers refuse: none, one, and more than fit."""
        capacity = self.config.voxelization.max_voxels
        ours, found = self.ours[0].backbone, {}
        graph = captured(ours.run)
        for voxels in (0, 1, capacity + 1):
            points = distinct_voxels(voxels, self.config.voxelization).cuda()
            ours.maps.load(points)
            times = replay_times(graph, self.protocol.samples, self.protocol.replays)
            found[str(voxels)] = {
                "graph_us": summary(times),
                "overflow": {name: list(pair) for name, pair in ours.maps.overflow().items()},
            }
        return found


def plan_record(plan: Plan) -> dict[str, Any]:
    """Return the hash of a Plan's tactics, where they were tuned, and the tactics themselves."""
    values = json.loads(plan.to_json())
    tactics = json.dumps([values["version"], values["tactics"]], sort_keys=True)
    return {
        "sha256": hashlib.sha256(tactics.encode()).hexdigest(),
        "tuned_on": plan.gpu,
        "tactics": values["tactics"],
    }


def measure(
    bench: SparseBench, frames: Sequence[Frame], told: Callable[[str], None] = lambda part: None
) -> dict[str, Any]:
    """Time every frame, then the edges, then the kernels of peers, and return the report.

    Args:
        bench: The candidates.
        frames: In this order.
        told: Called after each part with its name.
    """
    for frame in frames:
        bench.time_frame(frame)
        told(f"frame {frame.name}")
    bench.report["edges"] = bench.time_edges()
    told("edges")
    if bench.peers:
        warm_profiler()
        for frame in frames:
            bench.profile_frame(frame)
            told(f"profile of frame {frame.name}")
    bench.report["clocks"].append(clocks("end"))
    return bench.report
