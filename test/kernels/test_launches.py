"""Kernels and launches against drivers that write down what they are told: no GPU is needed."""

from __future__ import annotations

import ctypes

import pytest
import torch

from driveRT_ros.core import cuda
from driveRT_ros.core.errors import ConfigError, DeviceError
from test.support.kernel_folder import scale_sources


@pytest.fixture
def sources(tmp_path, monkeypatch):
    yield from scale_sources(tmp_path, monkeypatch)


class Driver:
    def __init__(self, *codes):
        self.codes, self.calls, self.context = list(codes), [], None

    def cuLaunchKernel(self, function, *rest):  # noqa: N802 - the driver's name
        *sizes, stream, argv, _ = rest
        self.calls.append(([s.value for s in sizes], stream.value))
        return self.codes.pop(0) if self.codes else 0

    def cuLaunchKernelEx(self, config, function, argv, _):  # noqa: N802
        c = config._obj
        attribute = c.attributes[0]
        assert (c.num_attributes, attribute.id, attribute.value[0]) == (1, 6, 1)
        sizes = [c.grid_x, c.grid_y, c.grid_z, c.block_x, c.block_y, c.block_z, c.shared_bytes]
        self.calls.append((sizes, c.stream, "dependent"))
        return self.codes.pop(0) if self.codes else 0

    def cuCtxGetCurrent(self, context):  # noqa: N802
        context._obj.value = self.context
        return 0

    def cuCtxSetCurrent(self, context):  # noqa: N802
        self.context = context.value
        self.calls.append(f"context {context.value}")
        return 0

    def cuGetErrorString(self, code, text):  # noqa: N802
        text._obj.value = b"out of luck"
        return 0


@pytest.fixture
def kernel():
    made = object.__new__(cuda.Kernel)
    made.name, made.device, made.shared_bytes, made.max_threads = "k", 0, 96, 512
    made.function, made._context = ctypes.c_void_p(1), ctypes.c_void_p(2)
    made.parameter_sizes, made.may_depend = (4,), True
    return made


def test_a_launch_is_one_call_with_the_stream_of_the_caller(kernel, monkeypatch):
    driver = Driver()
    monkeypatch.setattr(cuda, "_driver", lambda: driver)
    launch = kernel.bind((3, 2), 64, 5)
    launch(stream=1234)
    launch(stream=99)
    assert driver.calls == [([3, 2, 1, 64, 1, 1, 96], 1234), ([3, 2, 1, 64, 1, 1, 96], 99)]


def test_a_dependent_launch_says_so_where_gpu_and_driver_can(kernel, monkeypatch):
    driver = Driver()
    monkeypatch.setattr(cuda, "_driver", lambda: driver)
    launch = kernel.bind((3, 2), 64, 5, dependent=True)
    for stream in (1234, 99, 1234):
        launch(stream=stream)
    sizes = [3, 2, 1, 64, 1, 1, 96]
    assert driver.calls == [(sizes, stream, "dependent") for stream in (1234, 99, 1234)]
    kernel.may_depend = False
    kernel.bind((3, 2), 64, 5, dependent=True)(stream=7)
    assert driver.calls[-1] == (sizes, 7)


def test_launch_structs_have_the_layout_of_cuda_h():
    """Sizes and offsets that a C compiler gives for CUlaunchConfig and CUlaunchAttribute."""
    config, attribute = cuda._Config, cuda._Attribute
    assert (ctypes.sizeof(config), ctypes.sizeof(attribute)) == (56, 72)
    offsets = [config.shared_bytes.offset, config.stream.offset, config.attributes.offset]
    assert [*offsets, config.num_attributes.offset] == [24, 32, 40, 48]
    assert attribute.value.offset == 8


@pytest.mark.parametrize("grid", [0, (4, 0), (1, 1, 0)])
def test_a_grid_without_blocks_is_no_launch(kernel, monkeypatch, grid):
    driver = Driver()
    monkeypatch.setattr(cuda, "_driver", lambda: driver)
    kernel.bind(grid, 64, 5)(stream=1)
    assert driver.calls == []


@pytest.mark.parametrize(
    ("device", "before", "after"),
    [(0, None, []), (0, 3, ["context 3"]), (1, None, ["context None"]), (1, 3, ["context 3"])],
)
def test_a_thread_without_the_context_has_it_for_the_launch(
    kernel, monkeypatch, device, before, after
):
    """The current device of a thread must not change because it launched on another one.

    Without a context it is device 0, so a thread may keep the context of that.
    """
    driver = Driver(400 if before else 201)
    driver.context, kernel.device = before, device
    monkeypatch.setattr(cuda, "_driver", lambda: driver)
    kernel.bind(1, 32, 5)(stream=1)
    calls = [call if isinstance(call, str) else "launch" for call in driver.calls]
    assert calls == ["launch", "context 2", "launch", *after]
    assert driver.context == (before or (None if device else 2))


class StrictDriver(Driver):
    """Answers no question about a function but in the context that it belongs to."""

    def __init__(self):
        super().__init__()
        self.stack, self.most, self.loaded = [], 49152, 0
        self.static, self.limit = 1024, 200 * 1024

    def cuCtxPushCurrent_v2(self, context):  # noqa: N802
        self.stack.append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, context):  # noqa: N802
        self.stack.pop()
        return 0

    def _in_context(self):
        return 0 if self.stack[-1:] == [77] else 201

    def cuDevicePrimaryCtxRetain(self, context, device):  # noqa: N802
        assert device == 1
        context._obj.value = 77
        return 0

    def cuModuleLoadData(self, module, cubin):  # noqa: N802
        self.loaded += 1
        return self._in_context()

    def cuModuleGetFunction(self, function, module, name):  # noqa: N802
        return self._in_context()

    def cuFuncGetAttribute(self, value, attribute, function):  # noqa: N802
        value._obj.value = {0: 512, 1: self.static, 8: self.most}[attribute]
        return self._in_context()

    def cuFuncSetAttribute(self, function, attribute, value):  # noqa: N802
        if attribute == 8:
            self.most = value
        return self._in_context()

    def cuFuncGetParamInfo(self, function, index, offset, size):  # noqa: N802
        return self._in_context() or 1

    def cuDeviceGetAttribute(self, value, attribute, device):  # noqa: N802
        value._obj.value = self.limit
        return 0

    def cuDriverGetVersion(self, version):  # noqa: N802
        version._obj.value = 13000
        return 0


@pytest.fixture
def strict_driver(sources, monkeypatch):
    driver = StrictDriver()
    monkeypatch.setattr(cuda, "_driver", lambda: driver)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    caches = cuda._context, cuda._module, cuda._kept_kernel
    for cache in caches:
        cache.cache_clear()
    yield driver
    for cache in caches:
        cache.cache_clear()


def test_a_kernel_of_another_device_is_looked_up_in_the_context_of_that(strict_driver):
    """A pipeline on the second GPU is made by a thread whose current device is the first."""
    kernel = cuda.Kernel("scale", "scale", device=1).prefer_shared(50)
    assert kernel.max_threads == 512 and kernel.parameter_sizes == ()
    assert strict_driver.stack == []


def test_a_kernel_takes_no_shared_memory_from_one_before_it(strict_driver):
    """Both have the same function: a limit that sank would refuse the launches of the first."""
    for shared_kib in (100, 60):
        cuda.Kernel("scale", "scale", shared_bytes=shared_kib * 1024, device=1)
    assert strict_driver.most == 100 * 1024


def test_a_kernel_asks_for_no_more_shared_memory_than_a_block_can_have(strict_driver):
    """What the driver allows by itself leaves out the static part, which counts here, too."""
    strict_driver.static, strict_driver.limit = 20 * 1024, 64 * 1024
    cuda.Kernel("scale", "scale", shared_bytes=40 * 1024, device=1)
    assert 40 * 1024 <= strict_driver.most <= 44 * 1024


def test_a_kernel_is_looked_up_once_for_a_device(strict_driver):
    first = cuda.kernel_on(1, "scale", "scale", {"N": 1})
    assert cuda.kernel_on(torch.device("cuda", 1), "scale", "scale", {"N": "1"}) is first
    assert cuda.kernel_on(1, "scale", "scale_call", {"N": 1}) is not first
    assert strict_driver.loaded == 1


def test_a_refused_launch_names_kernel_grid_and_sizes(kernel, monkeypatch):
    driver = Driver(701)
    monkeypatch.setattr(cuda, "_driver", lambda: driver)
    sizes = r"\(7, 1, 1\) blocks of \(32, 1, 1\).* 96 bytes"
    with pytest.raises(DeviceError, match=rf"701 \(out of luck\).*'k' on a grid of {sizes}"):
        kernel.bind(7, 32, 5)(stream=1)


@pytest.mark.parametrize(
    ("grid", "block"),
    [(-1, 32), ((1, 70000), 32), (2**31, 32), (1, 0), (1, 1024), (1, (32, 32, 32)), ((), 32)],
)
def test_sizes_that_no_gpu_has_are_refused(kernel, monkeypatch, grid, block):
    monkeypatch.setattr(cuda, "_driver", Driver)
    with pytest.raises(ConfigError, match="'k'"):
        kernel.bind(grid, block, 5)


def test_without_a_gpu_the_error_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cuda._driver.cache_clear()
    with pytest.raises(DeviceError, match="finds no CUDA device"):
        cuda.Kernel("levels", "mark_points")
