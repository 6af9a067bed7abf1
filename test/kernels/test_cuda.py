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
from test.support.kernel_folder import SCALE, scale_sources


@pytest.fixture
def sources(tmp_path, monkeypatch):
    yield from scale_sources(tmp_path, monkeypatch)


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
