"""The VoxelNeXt graph as data: one frozen record a layer, in the order of execution.

Source: Chen et al., "VoxelNeXt: Fully Sparse VoxelNet for 3D Object Detection and Tracking",
CVPR 2023, in the nuScenes form with 1x1 heads. Layer names are those of the OpenPCDet checkpoint
without the prefix of their module.
"""

from __future__ import annotations

from dataclasses import dataclass

from driveRT_ros.core.config import ModelConfig

Triple = tuple[int, int, int]

NUM_POINT_FEATURES = 5
BACKBONE_EPS = 1e-3
"""Batch-norm epsilon of the backbone, conv_out included."""
HEAD_EPS = 1e-5
"""Batch-norm epsilon of shared_conv and of the heads: torch's default."""

BRANCHES = (("center", 2), ("center_z", 1), ("dim", 3), ("rot", 2), ("vel", 2))
"""Regression branches of a head and their channels; ``hm`` has one channel a class."""


@dataclass(frozen=True)
class LayerSpec:
    """One convolution with what follows it: batch norm, residual, ReLU.

    Args:
        name: Unique name, such as ``conv3.1.conv2``.
        op: ``subm`` (rows stay), ``sparse`` (rows change) or ``linear`` (1x1, needs no map).
        in_channels: Input features.
        out_channels: Output features.
        kernel_zyx: Taps; (1, k, k) in the bird's-eye view.
        stride_zyx: Output spacing.
        bias: The convolution itself has a bias in the checkpoint.
        bn_eps: Epsilon of its batch norm; None where it has none.
        relu: Negative results become zero.
        map_key: Coordinate map; layers with equal keys share one.
        residual: Layer whose output is added before the ReLU; empty for none.
        conv_key: Prefix of the convolution in an OpenPCDet state dict.
        bn_key: Prefix of the batch norm; empty for none.
    """

    name: str
    op: str
    in_channels: int
    out_channels: int
    kernel_zyx: Triple
    stride_zyx: Triple
    bias: bool
    bn_eps: float | None
    relu: bool
    map_key: str
    residual: str
    conv_key: str
    bn_key: str

    @property
    def dims(self) -> int:
        """3 in the backbone, 2 in the bird's-eye view."""
        return 3 if self.kernel_zyx[0] > 1 else 2

    @property
    def taps(self) -> int:
        """Kernel taps."""
        z, y, x = self.kernel_zyx
        return z * y * x

    @property
    def padding_zyx(self) -> Triple:
        """Half the kernel on every axis."""
        z, y, x = self.kernel_zyx
        return z // 2, y // 2, x // 2

    @property
    def num_parameters(self) -> int:
        """Learnable values: weight, bias, and scale and shift of the batch norm."""
        vectors = int(self.bias) + 2 * int(self.bn_eps is not None)
        return self.taps * self.in_channels * self.out_channels + vectors * self.out_channels

    @property
    def num_tensors(self) -> int:
        """Learnable tensors."""
        return 1 + int(self.bias) + 2 * int(self.bn_eps is not None)


@dataclass(frozen=True)
class Graph:
    """Every layer of the network.

    Args:
        levels: The layers of each of the six backbone levels; levels 4 to 6 are merged.
        bev: The two layers after the merge.
        heads: All head layers, head after head.
    """

    levels: tuple[tuple[LayerSpec, ...], ...]
    bev: tuple[LayerSpec, ...]
    heads: tuple[LayerSpec, ...]

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        """All layers in the order of execution."""
        return (*(layer for level in self.levels for layer in level), *self.bev, *self.heads)


def _conv(name: str, c_in: int, c_out: int, *, map_key: str, stride: int = 1) -> LayerSpec:
    """Return a bias-free 3x3x3 convolution with batch norm and ReLU."""
    op = "subm" if stride == 1 else "sparse"
    return LayerSpec(
        name, op, c_in, c_out, (3, 3, 3), (stride,) * 3, False, BACKBONE_EPS, True, map_key, "",
        f"backbone_3d.{name}.0", f"backbone_3d.{name}.1",
    )  # fmt: skip


def _block(name: str, channels: int, *, map_key: str, shortcut: str) -> tuple[LayerSpec, LayerSpec]:
    """Return a residual block: ReLU(bn2(conv2(ReLU(bn1(conv1(x))))) + x)."""
    first, second = (
        LayerSpec(
            f"{name}.conv{i}", "subm", channels, channels, (3, 3, 3), (1, 1, 1), True,
            BACKBONE_EPS, True, map_key, residual,
            f"backbone_3d.{name}.conv{i}", f"backbone_3d.{name}.bn{i}",
        )
        for i, residual in ((1, ""), (2, shortcut))
    )  # fmt: skip
    return first, second


def _level(number: int, c_in: int, channels: int) -> tuple[LayerSpec, ...]:
    """Return one backbone level: an entry convolution and two residual blocks."""
    key = f"subm{number}"
    if number == 1:
        entry = _conv("conv_input", c_in, channels, map_key=key)
        blocks = ("conv1.0", "conv1.1")
    else:
        entry = _conv(f"conv{number}.0", c_in, channels, map_key=f"spconv{number}", stride=2)
        blocks = (f"conv{number}.1", f"conv{number}.2")
    first = _block(blocks[0], channels, map_key=key, shortcut=entry.name)
    second = _block(blocks[1], channels, map_key=key, shortcut=first[1].name)
    return (entry, *first, *second)


def _bev_layers(channels: int) -> tuple[LayerSpec, ...]:
    """Return the dilating 3x3 convolution after the merge and the one shared by the heads."""
    kernel, one = (1, 3, 3), (1, 1, 1)
    return (
        LayerSpec(
            "conv_out", "sparse", channels, channels, kernel, one, False, BACKBONE_EPS, True,
            "spconv_out", "", "backbone_3d.conv_out.0", "backbone_3d.conv_out.1",
        ),
        LayerSpec(
            "shared_conv", "subm", channels, channels, kernel, one, True, HEAD_EPS, True,
            "subm_out", "", "backbone_3d.shared_conv.0", "backbone_3d.shared_conv.1",
        ),
    )  # fmt: skip


def _branch(head: int, name: str, channels: int, out: int) -> tuple[LayerSpec, LayerSpec]:
    """Return the two 1x1 layers of one branch of one head."""
    one = (1, 1, 1)
    prefix = f"dense_head.heads_list.{head}.{name}"
    return (
        LayerSpec(
            f"head{head}.{name}.hidden", "linear", channels, channels, one, one, True, HEAD_EPS,
            True, "", "", f"{prefix}.0.0", f"{prefix}.0.1",
        ),
        LayerSpec(
            f"head{head}.{name}.out", "linear", channels, out, one, one, True, None,
            False, "", "", f"{prefix}.1", "",
        ),
    )  # fmt: skip


def build_graph(config: ModelConfig) -> Graph:
    """Return the layers for the channels and heads of ``config``."""
    inputs = (NUM_POINT_FEATURES, *config.channels[:-1])
    levels = tuple(
        _level(number, c_in, c_out)
        for number, (c_in, c_out) in enumerate(zip(inputs, config.channels), start=1)
    )
    width = config.channels[-1]
    heads = tuple(
        layer
        for head, classes in enumerate(config.classes_per_head)
        for name, out in (*BRANCHES, ("hm", len(classes)))
        for layer in _branch(head, name, width, out)
    )
    return Graph(levels=levels, bev=_bev_layers(width), heads=heads)
