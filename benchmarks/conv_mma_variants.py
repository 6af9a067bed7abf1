"""Variants of the tensor-core convolution worth timing: those that the tuner searches."""

from driveRT_ros.core.candidates import tensor_core_variants as variants

__all__ = ["variants"]
