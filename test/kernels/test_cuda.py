"""Compiling, caching and launching: what goes in, what comes out, what is refused."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest
import torch

from driveRT_ros.core import cuda, nvrtc
from driveRT_ros.core.errors import ConfigError, DeviceError
from driveRT_ros.core.kernel_args import (
    pack_arguments,
    pack_structs,
    struct_dtype,
    struct_value,
    struct_values,
)

SCALE = """
#include "factor.cuh"
struct Call { float* values; int n; float add; };
extern "C" __global__ void scale(float* values, int n, float add) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) values[i] = FACTOR * values[i] + add;
}
extern "C" __global__ void scale_call(const Call call) {
    const int i = threadIdx.x;
    if (i < call.n) call.values[i] = FACTOR * call.values[i] + call.add;
}
"""


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """A folder of kernels and a cache of their own."""
    folder = tmp_path / "share" / "kernels"
    folder.mkdir(parents=True)
    (folder / "scale.cu").write_text(SCALE)
    (folder / "factor.cuh").write_text("#define FACTOR 2.f\n")
    monkeypatch.setenv("DRIVERT_SHARE", str(tmp_path / "share"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    struct_dtype.cache_clear()
    yield folder
    struct_dtype.cache_clear()


@pytest.fixture
def compilations(monkeypatch):
    """The list of what NVRTC was asked to compile."""
    asked, compile_ = [], nvrtc._compile
    monkeypatch.setattr(nvrtc, "_compile", lambda *a: asked.append(a[1]) or compile_(*a))
    return asked


# ---- compiler and cache --------------------------------------------------------------------------


def test_a_kernel_is_compiled_once_and_then_read_from_the_cache(sources, compilations):
    first = nvrtc.compile_cubin("scale", "sm_80")
    assert first[0].startswith(b"\x7fELF") and "registers" in first[1]
    assert nvrtc.compile_cubin("scale", "sm_80") == first
    assert compilations == ["sm_80"]


def test_another_architecture_define_source_or_header_is_another_entry(sources, compilations):
    nvrtc.compile_cubin("scale", "sm_80")
    nvrtc.compile_cubin("scale", "sm_90")
    nvrtc.compile_cubin("scale", "sm_90", {"UNUSED": 1})
    (sources / "factor.cuh").write_text("#define FACTOR 3.f\n")
    nvrtc.compile_cubin("scale", "sm_90")
    (sources / "scale.cu").write_text(SCALE + "\n")
    nvrtc.compile_cubin("scale", "sm_90")
    assert len(compilations) == 5


@pytest.mark.parametrize("damage", [b"", b"short", "flip"])
def test_a_damaged_entry_is_compiled_again(sources, compilations, damage):
    good = nvrtc.compile_cubin("scale", "sm_80")
    (entry,) = nvrtc.cache_folder("cubins").iterdir()
    data = bytearray(entry.read_bytes())
    data[len(data) // 2] ^= 1
    entry.write_bytes(bytes(data) if damage == "flip" else damage)
    assert nvrtc.compile_cubin("scale", "sm_80") == good
    assert nvrtc.compile_cubin("scale", "sm_80") == good
    assert len(compilations) == 2


def test_a_cache_that_cannot_be_written_costs_time_only(sources, compilations, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/no/such/place")
    assert nvrtc.compile_cubin("scale", "sm_80") == nvrtc.compile_cubin("scale", "sm_80")
    assert len(compilations) == 2


def test_a_disk_that_fills_up_is_left_without_half_an_entry(sources, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(nvrtc.os, "replace", full)
    assert nvrtc.compile_cubin("scale", "sm_80")[0].startswith(b"\x7fELF")
    assert not list(nvrtc.cache_folder("cubins").iterdir())


def test_many_threads_may_compile_at_once(sources):
    results = {}

    def work(i):
        results[i] = nvrtc.compile_cubin("scale", "sm_80", {"N": i % 2})[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6 and results[0] == results[2] == results[4]
    assert all(p.suffix == ".cubin" for p in nvrtc.cache_folder("cubins").iterdir())


def test_a_source_that_does_not_compile_says_where(sources):
    (sources / "scale.cu").write_text('extern "C" __global__ void f() {\n  nonsense;\n}\n')
    with pytest.raises(
        DeviceError, match=r"(?s)scale\.cu does not compile for sm_80.*scale\.cu\(2\)"
    ):
        nvrtc.compile_cubin("scale", "sm_80")


def test_a_missing_source_is_named():
    with pytest.raises(ConfigError, match=r"no_such_kernel\.cu"):
        nvrtc.compile_cubin("no_such_kernel", "sm_80")


def test_the_compiler_that_matches_torch_is_preferred(tmp_path, monkeypatch):
    for name in ("cuda_nvrtc/lib/libnvrtc.so.12", "cu13/lib/libnvrtc.so.13"):
        (tmp_path / "nvidia" / name).parent.mkdir(parents=True)
        (tmp_path / "nvidia" / name).touch()
    (tmp_path / "nvidia/cu13/lib/libnvrtc.alt.so.13").touch()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    for version, first in (("12.8", 12), ("13.0", 13), (None, 13)):
        monkeypatch.setattr(torch.version, "cuda", version)
        names = [path.name for path in nvrtc._candidates()]
        assert names[0] == f"libnvrtc.so.{first}" and len(names) == 2


# ---- arguments and structs -----------------------------------------------------------------------

CPU = torch.device("cpu")


def test_arguments_become_what_the_kernel_reads():
    tensor = torch.zeros(3)
    args = (tensor, None, -5, 0.5, np.int64(7), np.float32(1.5), ctypes.c_longlong(2**40))
    values = pack_arguments("k", args, CPU)
    assert [ctypes.sizeof(v) for v in values] == [8, 8, 4, 4, 4, 4, 8]
    assert [v.value for v in values] == [tensor.data_ptr(), None, -5, 0.5, 7, 1.5, 2**40]


@pytest.mark.parametrize(
    ("arg", "message"),
    [
        (2**31, "does not fit 32 bits"),
        (-(2**31) - 1, "does not fit 32 bits"),
        (torch.zeros(4, 4).t(), "contiguous"),
        (torch.zeros(4, device="meta"), "on cpu"),
        (True, "is a bool"),
        ("text", "is a str"),
        ([1], "is a list"),
    ],
)
def test_an_argument_that_cannot_be_meant_is_refused(arg, message):
    with pytest.raises(ConfigError, match=message):
        pack_arguments("k", (1, arg), CPU)


def test_the_number_and_size_of_arguments_are_checked():
    with pytest.raises(
        ConfigError, match=r"takes 2 arguments of \[8, 4\] bytes, got 2 of \[4, 4\]"
    ):
        pack_arguments("k", (1, 2), CPU, (8, 4))
    with pytest.raises(ConfigError, match="takes 1 arguments"):
        pack_arguments("k", (1, 2), CPU, (4,))


def test_structs_are_laid_out_as_the_source_declares_them(sources):
    (sources / "layout.cuh").write_text(
        "struct Mixed {  // a; comment\n  int a, b;\n  float* p;\n  const float* const_p;\n"
        "  float f;\n  u64 big;\n  int list[3];\n  const float4* v[2];\n};\n"
    )
    dtype = struct_dtype("layout.cuh", "Mixed")
    offsets = {name: dtype.fields[name][1] for name in dtype.names}
    expected = {"a": 0, "b": 4, "p": 8, "const_p": 16, "f": 24, "big": 32, "list": 40, "v": 56}
    assert offsets == expected and dtype.itemsize == 72
    call = {"values": torch.zeros(1), "n": 3, "add": 0.25}
    calls = [call, {**call, "values": None}]
    packed = pack_structs("scale.cu", "Call", calls, "cpu").numpy()
    rows = packed.view(struct_dtype("scale.cu", "Call"))
    assert rows["values"].tolist() == [call["values"].data_ptr(), 0]
    assert (
        rows.tobytes()
        == struct_values("scale.cu", "Call", [call, {**call, "values": None}]).tobytes()
    )
    assert rows["n"].tolist() == [3, 3] and rows["add"].tolist() == [0.25, 0.25]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": 1}, "extra"),
        ({"n": 2**40}, "'n'"),
        ({"add": "x"}, "'add'"),
        ({"values": torch.zeros(4)[::2]}, r"'values'.* strides \(2,\); call"),
    ],
)
def test_a_struct_with_a_wrong_field_is_refused(sources, change, message):
    call = {"values": torch.zeros(1), "n": 3, "add": 0.25}
    with pytest.raises(ConfigError, match=message):
        struct_value("scale.cu", "Call", {**call, **change})
    with pytest.raises(ConfigError, match="missing or unknown"):
        struct_value("scale.cu", "Call", {"n": 3})
    with pytest.raises(ConfigError, match="declares no struct 'Nothing'"):
        struct_dtype("scale.cu", "Nothing")


# ---- launches, against a driver that only writes down what it is told ----------------------------


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


# ---- launches on a GPU ---------------------------------------------------------------------------


@pytest.mark.gpu
def test_kernels_run_with_plain_arguments_and_structs(sources):
    values = torch.arange(100, dtype=torch.float32, device="cuda")
    scale = cuda.Kernel("scale", "scale")
    assert scale.parameter_sizes in ((8, 4, 4), None)
    launch = scale.bind(4, 32, values, 100, 0.5)
    launch()
    launch()
    call = struct_value("scale.cu", "Call", {"values": values, "n": 10, "add": 1.0})
    cuda.Kernel("scale", "scale_call", specific=True).bind(1, 32, call)()
    expected = 4 * torch.arange(100.0) + 1.5
    expected[:10] = 2 * expected[:10] + 1
    assert torch.equal(values.cpu(), expected)


@pytest.mark.gpu
def test_a_thread_that_never_used_cuda_may_launch(sources):
    values, errors = torch.ones(32, device="cuda"), []
    launch = cuda.Kernel("scale", "scale").bind(1, 32, values, 32, 0.0)
    stream = torch.cuda.current_stream().cuda_stream

    def work():
        try:
            launch(stream)
        except DeviceError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not errors and bool((values == 2).all())


@pytest.mark.gpu
def test_a_launch_is_captured_in_a_graph(sources):
    values = torch.ones(32, device="cuda")
    launch = cuda.Kernel("scale", "scale").bind(1, 32, values, 32, 0.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    for _ in range(3):
        graph.replay()
    assert bool((values == 8).all())


@pytest.mark.gpu
def test_what_the_gpu_does_not_have_is_refused(sources):
    with pytest.raises(ConfigError, match="no kernel named 'nothing'"):
        cuda.Kernel("scale", "nothing")
    with pytest.raises(ConfigError, match="bytes of shared memory a block"):
        cuda.Kernel("scale", "scale", shared_bytes=1 << 20)
    kernel = cuda.Kernel("scale", "scale", shared_bytes=64 * 1024)
    with pytest.raises(ConfigError, match="on cuda:0"):
        kernel.bind(1, 32, torch.zeros(4), 4, 0.0)
    if kernel.parameter_sizes:
        with pytest.raises(ConfigError, match="takes 3 arguments"):
            kernel.bind(1, 32, torch.zeros(4, device="cuda"), 4)
