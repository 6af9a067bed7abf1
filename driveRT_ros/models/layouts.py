"""Weight layouts of sparse convolutions in OpenPCDet checkpoints.

spconv has stored its weights in three orders: ``KRSC`` (2.x: out, z, y, x, in), ``RSCK`` (1.x:
z, y, x, in, out) and ``RSKC`` (early 2.x: z, y, x, out, in). Two-dimensional layers drop z.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from driveRT_ros.core.errors import CheckpointError
from driveRT_ros.models.graph import LayerSpec

LAYOUTS = ("KRSC", "RSCK", "RSKC")


def stored_shape(layer: LayerSpec, layout: str) -> tuple[int, ...]:
    """Return the shape of the weight of ``layer`` in a checkpoint of ``layout``."""
    kernel = layer.kernel_zyx[3 - layer.dims :]
    c_in, c_out = layer.in_channels, layer.out_channels
    if layout == "KRSC":
        return (c_out, *kernel, c_in)
    return (*kernel, c_in, c_out) if layout == "RSCK" else (*kernel, c_out, c_in)


def to_taps(weight: torch.Tensor, layer: LayerSpec, layout: str) -> torch.Tensor:
    """Return a stored weight as (taps, in, out), the x axis of the kernel running fastest.

    Args:
        weight: Of ``stored_shape(layer, layout)``.
        layer: The layer it belongs to.
        layout: One of :data:`LAYOUTS`.
    """
    if layout == "KRSC":
        weight = weight.movedim(0, -1)
    elif layout == "RSKC":
        weight = weight.transpose(-1, -2)
    return weight.reshape(layer.taps, layer.in_channels, layer.out_channels)


def detect_layout(layers: Sequence[LayerSpec], shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return the one layout in which every convolution has its stored shape.

    Args:
        layers: The layers expected.
        shapes: Stored shape of the weight of each layer, by layer name.

    Raises:
        CheckpointError: If no layout fits, or more than one does.
    """
    misfits = {
        layout: [x for x in layers if shapes[x.name] != stored_shape(x, layout)]
        for layout in LAYOUTS
    }
    fitting = [layout for layout in LAYOUTS if not misfits[layout]]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise CheckpointError(
            f"The weights fit the layouts {' and '.join(fitting)} alike; name the right one with "
            "'checkpoint_layout' (layout=)."
        )
    nearest = min(LAYOUTS, key=lambda layout: len(misfits[layout]))
    layer = misfits[nearest][0]
    raise CheckpointError(
        f"'{layer.conv_key}.weight' has shape {shapes[layer.name]}, expected "
        f"{stored_shape(layer, nearest)} ({nearest}); {len(misfits[nearest])} of {len(layers)} "
        "convolutions do not fit. Check that parameter group 'model' describes this checkpoint."
    )
