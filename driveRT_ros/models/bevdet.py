"""Strict import of BEVDet checkpoints with the ResNet-50 backbone.

A checkpoint is taken whole or not at all: every key must be one that the graph expects, with the
shape it expects. Names and shapes follow from the public configuration ``bevdet-r50`` of BEVDet 2,
whose boxes are (length, width, height, counter-clockwise yaw) in the ego frame.
"""

from __future__ import annotations

from pathlib import Path

from driveRT_ros.core.camera_config import CameraConfig, CameraModelConfig
from driveRT_ros.core.errors import CheckpointError
from driveRT_ros.models.lss_weights import CameraWeights, check_state, empty_network
from driveRT_ros.models.strict import compare_keys, file_sha256, read_pickle

PREFIXES = (
    ("backbone.", "img_backbone."),
    ("neck.", "img_neck."),
    ("depth_net.", "img_view_transformer.depth_net."),
    ("bev_backbone.", "img_bev_encoder_backbone."),
    ("bev_neck.", "img_bev_encoder_neck."),
    ("detection.", "pts_bbox_head."),
)
"""Prefix of our names, and of the same module in a checkpoint."""

FIRST_GENERATION = "img_view_transformer.depthnet."
"""Spelling before BEVDet 2: those boxes lie in the LiDAR frame, with other sizes and yaw."""

_COUNTER = "num_batches_tracked"


def load_bevdet(path: str | Path, config: CameraConfig | CameraModelConfig) -> CameraWeights:
    """Import a checkpoint of BEVDet-R50.

    Args:
        path: A file written by ``torch.save`` with the entry ``state_dict``. It is opened without
            running code from it.
        config: The model it must be for; :func:`driveRT_ros.core.camera_config.bevdet_r50` is the
            published one.

    Returns:
        Trained weights, with one line of ``mapping`` a tensor.

    Raises:
        CheckpointError: If the file cannot be opened safely, misses or adds keys, or holds a tensor
            of another shape or with values that are not finite, or if the model is no BEVDet-R50.
    """
    path, model = Path(path), config.model if isinstance(config, CameraConfig) else config
    _check_model(path, model)
    state, beside = read_pickle(path, "state_dict")
    if any(key.startswith(FIRST_GENERATION) for key in state):
        raise CheckpointError(
            f"'{path}' is of the first generation of BEVDet ('{FIRST_GENERATION}weight'), whose "
            "boxes follow other conventions; use a checkpoint of BEVDet 2."
        )
    ours = empty_network(model).state_dict()
    names = {name: checkpoint_name(name) for name in ours}
    compare_keys(path, set(names.values()), set(state))
    found = {n: state[key] for n, key in names.items() if not n.endswith(_COUNTER)}
    check_state(model, found, names)
    tensors = {name: tensor.float() for name, tensor in found.items()}
    _check_classes(path, beside.get("meta"), model.network.class_names)
    mapping = [f"{path.name}: {len(state)} keys, SHA-256 {file_sha256(path)}"]
    mapping += [f"{names[name]} {tuple(tensors[name].shape)} -> {name}" for name in tensors]
    mapping.append(f"ignored: {sum(key.endswith(_COUNTER) for key in state)} '{_COUNTER}'")
    return CameraWeights(model, tensors, trained=True, source=str(path), mapping=tuple(mapping))


def checkpoint_name(name: str) -> str:
    """Return what a tensor of the network is called in a BEVDet checkpoint."""
    for ours, theirs in PREFIXES:
        if name.startswith(ours):
            return theirs + name[len(ours) :]
    return name


def _check_model(path: Path, model: CameraModelConfig) -> None:
    wanted = {"backbone": "resnet50", "neck_norm": False, "segmentation": ()}
    for name, value in wanted.items():
        got = getattr(model.network, name)
        if got != value:
            raise CheckpointError(
                f"'{path}' is taken as BEVDet-R50, which has model.network.{name} = {value!r}, but "
                f"the configuration asks for {got!r}; start from the preset bevdet_r50."
            )


def _check_classes(path: Path, meta: object, class_names: tuple[str, ...]) -> None:
    """Refuse other classes than asked for, where the file names its own."""
    stored = meta.get("CLASSES") if isinstance(meta, dict) else None
    if stored and tuple(stored) != class_names:
        raise CheckpointError(
            f"'{path}' was trained for the classes {list(stored)}, but model.network.heads names "
            f"{list(class_names)}."
        )
