"""Training itself: one step after the other, from a state to the next."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from driveRT_ros.core.config import PostProcessConfig, VoxelizationConfig
from driveRT_ros.core.errors import CheckpointError, ConfigError
from driveRT_ros.models.checkpoint import save_weights
from driveRT_ros.models.weights import VoxelNeXtWeights
from driveRT_ros.train.ahead import ahead
from driveRT_ros.train.config import TrainConfig
from driveRT_ros.train.data import Batch, Place
from driveRT_ros.train.log import Log
from driveRT_ros.train.losses import detection_loss
from driveRT_ros.train.meters import Means, StepClock
from driveRT_ros.train.module import VoxelNeXtModule, export_weights
from driveRT_ros.train.ready import Ready, make_ready
from driveRT_ros.train.schedule import Average, make_optimizer, one_cycle, set_rates
from driveRT_ros.train.state import newest_state, read_state, write_state

WEIGHTS = "weights.safetensors"
THEN = "; "
"""Between the names of what a run was trained on, one after the other."""
DETECTOR = "detector.yaml"
"""Parameter file of the detector that runs these weights."""
_MOMENTS = ("exp_avg", "exp_avg_sq")
_SHARED = ("voxelization", "model", "densification_params")
_LOSS_SCALE = 4096.0
_MAX_BAD_STEPS = 50
_SAVE_MARGIN_S = 5.0


@dataclass(frozen=True)
class Progress:
    """How a run stands after a step.

    Args:
        step: Steps done.
        loss: Of the last step.
        wait_share: Share of the time spent waiting for data since the last line of the log.
        frames_per_s: Frames of all processes a second, likewise.
    """

    step: int
    loss: float
    wait_share: float
    frames_per_s: float


class Trainer:
    """Trains one model on one device; with several processes each has its own trainer.

    Args:
        config: Everything.
        folder: Of the run: state, weights, log.
        device: Where to train.
        place: Of this process; only rank 0 writes.
        data_name: What is trained on, for the record.

    Attributes:
        step: Steps done.
        module: The network.
        note: A sentence on what differs from a run that never stopped, or "".
        ahead: Whether :meth:`run` prepares a batch while the step before it runs.
        identity: Groups of parameters that must stay the same where a run goes on.
    """

    identity: tuple[str, ...] = ("seed", *_SHARED, "optimizer")

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        device: torch.device,
        place: Place = Place(),  # noqa: B008 - frozen
        data_name: str = "",
    ) -> None:
        self.config, self.folder, self.device, self.place = config, folder, device, place
        self.step, self.note, self._data_name = 0, "", data_name
        rates = config.optimizer
        self.module = self._make_module()
        self.module.to(device)
        self._model: torch.nn.Module = self.module
        if place.world > 1:
            devices = [device.index] if device.type == "cuda" else None
            # Nobody reads running statistics but rank 0, who writes its own: nothing to broadcast.
            self._model = DistributedDataParallel(
                self.module, device_ids=devices, broadcast_buffers=False
            )
        self._optimizer = make_optimizer(self.module, rates)
        self._dtype = _half_of(rates.precision, device)
        self._scaler = torch.amp.GradScaler(
            device.type, init_scale=_LOSS_SCALE, enabled=self._dtype == torch.float16
        )
        self._average = Average(self.module, rates.average) if rates.average else None
        self._statistics = [b for b in self.module.buffers() if b.is_floating_point()]
        self._before = [b.clone() for b in self._statistics]
        self._warm_from: int | None = None
        self._bad_steps, self._loss = 0, math.nan
        self.ahead = device.type == "cuda"

    def _make_module(self) -> torch.nn.Module:
        config = self.config
        return VoxelNeXtModule(config.model, config.seed, config.optimizer.batch_norm_momentum)

    # ---- one step -------------------------------------------------------------------------------

    def train_step(self, batch: Batch | Ready) -> dict[str, torch.Tensor]:
        """Learn from one batch and return the parts of its loss, the gradient norm included.

        Args:
            batch: Frames, or what :meth:`prepare` made of them.

        Raises:
            ConfigError: If many steps in a row had no finite gradient.
        """
        self._model.train()
        rate, momentum = one_cycle(self.step, self.config.optimizer)
        if self._warm_from is not None:
            since = self.step - self._warm_from
            rate *= min((since + 1) / max(self.config.optimizer.warm_up_steps, 1), 1.0)
        set_rates(self._optimizer, rate, momentum)
        self._optimizer.zero_grad(set_to_none=True)
        torch._foreach_copy_(self._before, self._statistics)
        loss, parts = self.loss_of(batch)
        self._scaler.scale(loss).backward()
        self._scaler.unscale_(self._optimizer)
        norm = torch.nn.utils.clip_grad_norm_(
            self.module.parameters(), self.config.optimizer.clip_norm
        )
        # The one wait of a step: the loss is for whoever is told how it went.
        self._loss, finite = torch.stack((loss.detach(), norm)).tolist()
        if math.isfinite(finite):
            self._bad_steps = 0
            self._scaler.step(self._optimizer)
        else:
            # A running mean that is not finite once would never be finite again.
            torch._foreach_copy_(self._statistics, self._before)
            self._bad_steps += 1
            if self._bad_steps > _MAX_BAD_STEPS:
                raise ConfigError(
                    f"{self._bad_steps} steps in a row had no finite gradient; lower "
                    "'optimizer.max_learning_rate' or set 'optimizer.precision' to bf16 or fp32."
                )
        self._scaler.update()
        self.step += 1
        if self._average is not None:
            self._average.update(self.step)
        return {"loss": loss.detach(), **parts, "norm": norm}

    def prepare(self, batch: Batch) -> Ready:
        """Return all that a step needs of a batch and that no weight decides."""
        return make_ready(batch.to(self.device), self.module, self.config)

    def loss_of(self, batch: Batch | Ready) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the loss of a batch and its parts by name."""
        ready = batch if isinstance(batch, Ready) else self.prepare(batch)
        with self._autocast():
            found = self._model(ready.features, ready.maps)
        return detection_loss(found, ready.targets, self.config.model, self.config.loss)

    def _autocast(self) -> torch.autocast:
        half = self._dtype is not None
        return torch.autocast(self.device.type, self._dtype or torch.bfloat16, enabled=half)

    # ---- many steps -----------------------------------------------------------------------------

    def run(
        self,
        batches: Iterator[Batch],
        *,
        deadline_s: float = math.inf,
        stop: Callable[[], bool] = lambda: False,
        on_step: Callable[[Progress], None] = lambda _: None,
    ) -> bool:
        """Train until the last step, or until it is time to stop, and write the state.

        Args:
            batches: From :func:`.data.make_loader`, from this step on.
            deadline_s: ``time.monotonic()`` by which the state must be written.
            stop: Asked after each step.
            on_step: Told after each step.

        Returns:
            True where the last step was done.
        """
        log = Log(self.folder, self.step) if self.place.rank == 0 else None
        clock, means = StepClock(self.config.data.batch_size * self.place.world), Means()
        saved, save_took, total = time.monotonic(), 0.0, self.config.optimizer.steps
        if self.ahead:
            batches = ahead(batches, self.prepare, self.device, total - self.step)
        while self.step < total:
            clock.start()
            batch = next(batches)
            clock.waited()
            parts = self.train_step(batch)
            clock.stepped()
            means.add(parts)
            last = self.step == total
            if log is not None and (self.step % self.config.output.log_every == 0 or last):
                rate = self._optimizer.param_groups[0]["lr"]
                log.add({"step": self.step, "rate": rate, **means.take(), **clock.rates()})
                clock.reset()
            on_step(Progress(self.step, self._loss, **clock.rates()))
            spare = _SAVE_MARGIN_S + 2 * save_took + 2 * clock.longest_s
            if self._agree(stop() or time.monotonic() + spare > deadline_s):
                break
            if time.monotonic() - saved > self.config.output.save_every_s and not last:
                started = time.monotonic()
                self.save()
                saved = time.monotonic()
                save_took = saved - started
        if self.ahead:
            batches.close()
        self.save()
        if log is not None:
            log.close()
        return self.step >= total

    def _agree(self, stop: bool) -> bool:
        """Return whether any process wants to stop, so that all stop after the same step."""
        if self.place.world == 1:
            return stop
        flag = torch.tensor([int(stop)], device=self.device)
        distributed.all_reduce(flag, distributed.ReduceOp.MAX)
        return bool(flag.item())

    # ---- state ----------------------------------------------------------------------------------

    def weights(self) -> VoxelNeXtWeights:
        """Return what the detector would run now: the running average where there is one."""
        source = f"trained {self.step} steps on {self._data_name}"
        with self._averaged():
            return export_weights(self.module, source)

    @contextlib.contextmanager
    def _averaged(self) -> Iterator[None]:
        if self._average is None:
            yield
            return
        own = {name: tensor.clone() for name, tensor in self.module.state_dict().items()}
        self.module.load_state_dict(self._average.tensors, strict=False)
        try:
            yield
        finally:
            self.module.load_state_dict(own)

    def save(self) -> None:
        """Write state and weights; only rank 0 does."""
        if self.place.rank != 0:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {f"model/{n}": t for n, t in self.module.state_dict().items()}
        if self._average is not None:
            tensors |= {f"average/{n}": t for n, t in self._average.tensors.items()}
        counts: list[float] = []
        if self.config.output.save_optimizer:
            for name, parameter in self.module.named_parameters():
                moments = self._optimizer.state.get(parameter, {})
                tensors |= {f"{m}/{name}": moments[m] for m in _MOMENTS if m in moments}
                counts.append(float(moments.get("step", 0)))
        values: dict[str, Any] = {
            "config": self.config.to_dict(),
            "data": self._data_name,
            "world": self.place.world,
            "optimizer_steps": counts,
            "scaler": self._scaler.state_dict(),
        }
        limit = self.config.output.max_file_mb
        write_state(self.folder, self.step, tensors, values, limit)
        self._write_weights()

    def _write_weights(self) -> None:
        """Write what the detector reads: weights and parameters."""
        save_weights(self.folder / WEIGHTS, self.weights(), dtype=torch.float16)
        mine = {name: plain(self.config.to_dict()[name]) for name in _SHARED}
        mine["checkpoint_path"] = str((self.folder / WEIGHTS).resolve())
        if (center_range := _center_range(self.config.voxelization)) is not None:
            mine["post_process_params"] = {"center_range": center_range}
        (self.folder / DETECTOR).write_text(yaml.safe_dump(mine, sort_keys=False), encoding="utf-8")

    def resume(self) -> None:
        """Go on from the newest state in the folder.

        Raises:
            CheckpointError: If there is none, or it is of another model or another cycle.
        """
        state = newest_state(self.folder)
        if state is None:
            raise CheckpointError(f"'{self.folder}' holds no state to go on from.")
        step, tensors, values = read_state(state)
        self._check_config(state, values["config"])
        model = _under(tensors, "model")
        average = _under(tensors, "average")
        try:
            self.module.load_state_dict(model)
            if self._average is not None:
                for name, tensor in self._average.tensors.items():
                    tensor.copy_((average or model)[name])
        except (RuntimeError, KeyError) as error:
            raise CheckpointError(f"State '{state}' is of another model: {error}.") from None
        self.step = step
        names = (*str(values["data"]).split(THEN), self._data_name)
        self._data_name = THEN.join(dict.fromkeys(filter(None, names)))
        if not self._restore_moments(tensors, values["optimizer_steps"]):
            self._warm_from = step
            self.note = "The optimizer starts anew: its state was not kept."
        self._scaler.load_state_dict(values["scaler"])
        if values["world"] != self.place.world:
            self.note += f" Trained by {values['world']} processes before, now {self.place.world}."

    def _check_config(self, state: Path, stored: dict[str, Any]) -> None:
        # Only what a run is: how often it logs or saves may change.
        mine = self.config.to_dict()
        for name in self.identity:
            theirs, ours = plain(stored[name]), plain(mine[name])
            if theirs != ours:
                raise CheckpointError(
                    f"State '{state}' was trained with {name} = {theirs}, but the configuration "
                    f"has {ours}; go on with the same, or start in another folder."
                )

    def _restore_moments(self, tensors: dict[str, torch.Tensor], counts: list[float]) -> bool:
        named = list(self.module.named_parameters())
        kept = [_under(tensors, moment) for moment in _MOMENTS]
        if len(counts) != len(named) or any(name not in k for k in kept for name, _ in named):
            return False
        for (name, parameter), count in zip(named, counts):
            # In the layout of the parameter: fused steps refuse any other.
            like = parameter.detach()
            moments = {m: torch.empty_like(like).copy_(k[name]) for m, k in zip(_MOMENTS, kept)}
            device = parameter.device if self._optimizer.defaults["fused"] else None
            self._optimizer.state[parameter] = {
                "step": torch.tensor(count, device=device),
                **moments,
            }
        return True


def _half_of(precision: str, device: torch.device) -> torch.dtype | None:
    """Return the dtype of the products, or None for float32."""
    if precision == "auto":
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bf16" if has_bf16 else "fp32"
    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": None}[precision]


def _center_range(voxels: VoxelizationConfig) -> list[float] | None:
    """Return where boxes may lie, if what is trained on reaches further than the default."""
    default, reached = PostProcessConfig().center_range, voxels.point_cloud_range
    wide = [*map(min, default[:3], reached[:3]), *map(max, default[3:], reached[3:])]
    return None if tuple(wide) == default else wide


def _under(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    start = f"{prefix}/"
    return {name[len(start) :]: t for name, t in tensors.items() if name.startswith(start)}


def plain(value: Any) -> Any:
    """Return nested values with lists in place of tuples, as YAML and JSON have them."""
    if isinstance(value, dict):
        return {name: plain(v) for name, v in value.items()}
    return list(value) if isinstance(value, (list, tuple)) else value
