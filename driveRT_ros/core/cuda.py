"""Find, compile, cache and launch CUDA kernels: the only module that launches one.

The sources under ``kernels/`` are compiled with NVRTC for the GPU at hand, so no binary can be
missing. torch owns the memory, the context and the streams. A launch that is bound once costs one
driver call each time: its arguments stay where the driver reads them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import torch

from driveRT_ros.core.errors import ConfigError, DeviceError
from driveRT_ros.core.kernel_args import argument_array, check_size, pack_arguments
from driveRT_ros.core.nvrtc import compile_cubin, read_source

Defines = Mapping[str, object]

_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_BLOCK = (1024, 1024, 64)
_LEAST_DYNAMIC = 48 * 1024  # more needs the kernel's consent
_INVALID_CONTEXT, _INVALID_VALUE, _INVALID_HANDLE, _CONTEXT_DESTROYED = 201, 1, 400, 709
_ATTRIBUTE_MAX_THREADS, _ATTRIBUTE_STATIC_SHARED, _ATTRIBUTE_MAX_DYNAMIC = 0, 1, 8
_ATTRIBUTE_CARVEOUT = 9
_DEVICE_SHARED_OPTIN = 97
_DEPENDENT_CAPABILITY, _DEPENDENT_DRIVER = (9, 0), 12030  # the driver that captures it in graphs
_PROGRAMMATIC_STREAM_SERIALIZATION = 6


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute of cuda.h; the value is a union of 64 bytes, an int here."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z")),
        *((name, ctypes.c_uint) for name in ("block_x", "block_y", "block_z")),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("num_attributes", ctypes.c_uint),
    )


_DEPENDENT = _Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION, 0, (1,))


class Kernel:
    """One kernel, compiled and loaded on one device.

    Args:
        stem: Source file without its suffix, as ``levels``.
        name: The ``extern "C"`` name of the kernel.
        defines: Compile-time constants.
        shared_bytes: Dynamic shared memory of a launch.
        specific: Compile for exactly this chip (``sm_90a``): what wgmma and setmaxnreg need.
        device: CUDA device; by default torch's current one.

    Raises:
        ConfigError: If the source, the kernel or that much shared memory does not exist.
        DeviceError: If there is no usable CUDA device, or the source does not compile.
    """

    def __init__(
        self,
        stem: str,
        name: str,
        defines: Defines | None = None,
        *,
        shared_bytes: int = 0,
        specific: bool = False,
        device: torch.device | int | None = None,
    ) -> None:
        self.device = _device_index(device)
        self.name, self.shared_bytes = name, shared_bytes
        arch = device_arch(self.device, specific=specific)
        self._context = _context(self.device)
        module = _module(self.device, stem, arch, _key(defines))
        self.function = ctypes.c_void_p()
        with _current(self._context):  # this thread may have none, or that of another device
            code = _driver().cuModuleGetFunction(ctypes.byref(self.function), module, name.encode())
            if code == 500:
                raise ConfigError(f"kernels/{stem}.cu has no kernel named '{name}'.")
            _check(code, f"looking up the kernel '{name}'")
            self.max_threads = self._attribute(_ATTRIBUTE_MAX_THREADS)
            self._allow_shared()
            self.parameter_sizes = self._parameter_sizes()
        self.may_depend = waits_itself(stem, name) and _may_depend(self.device)

    def bind(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        *args: object,
        dependent: bool = False,
    ) -> Launch:
        """Prepare a launch; see :class:`Launch`."""
        return Launch(self, grid, block, args, dependent=dependent)

    def prefer_shared(self, percent: int) -> Kernel:
        """Ask for a share of a multiprocessor's memory as shared memory, and return itself.

        By itself the driver may leave more of it to the first cache, and less to blocks that could
        run beside each other.

        Args:
            percent: Of the most that a multiprocessor can have as shared memory; 0 to 100.
        """
        with _current(self._context):
            code = _driver().cuFuncSetAttribute(self.function, _ATTRIBUTE_CARVEOUT, percent)
        _check(code, f"sharing out the memory of multiprocessors for '{self.name}'")
        return self

    def _attribute(self, attribute: int) -> int:
        value = ctypes.c_int()
        code = _driver().cuFuncGetAttribute(ctypes.byref(value), attribute, self.function)
        _check(code, f"asking for an attribute of the kernel '{self.name}'")
        return value.value

    def _allow_shared(self) -> None:
        limit = ctypes.c_int()
        code = _driver().cuDeviceGetAttribute(
            ctypes.byref(limit), _DEVICE_SHARED_OPTIN, self.device
        )
        _check(code, "asking for the shared memory of the device")
        static = self._attribute(_ATTRIBUTE_STATIC_SHARED)
        needed = self.shared_bytes + static
        if self.shared_bytes < 0 or needed > limit.value:
            raise ConfigError(
                f"The kernel '{self.name}' needs {needed} bytes of shared memory a block, the GPU "
                f"has {limit.value}; choose a smaller tile or fewer stages."
            )
        if needed > _LEAST_DYNAMIC:  # the limit counts static shared memory too
            # The function may be that of a kernel before, whose launches need more.
            allowed = min(self._attribute(_ATTRIBUTE_MAX_DYNAMIC), limit.value - static)
            most = max(self.shared_bytes, allowed)
            code = _driver().cuFuncSetAttribute(self.function, _ATTRIBUTE_MAX_DYNAMIC, most)
            _check(code, f"allowing '{self.name}' {self.shared_bytes} bytes of shared memory")

    def _parameter_sizes(self) -> tuple[int, ...] | None:
        """Return the size of each parameter, or None where the driver is too old to tell."""
        ask = getattr(_driver(), "cuFuncGetParamInfo", None)  # since CUDA 12.4
        if ask is None:
            return None
        sizes: list[int] = []
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        while True:
            code = ask(
                self.function, ctypes.c_size_t(len(sizes)), ctypes.byref(offset), ctypes.byref(size)
            )
            if code == _INVALID_VALUE:  # one past the last
                return tuple(sizes)
            _check(code, f"asking for the parameters of the kernel '{self.name}'")
            sizes.append(size.value)


def kernel_on(
    device: torch.device | int | None, stem: str, name: str, defines: Defines | None = None
) -> Kernel:
    """Return a kernel that is looked up once for a device, and then the same for everybody.

    The arguments are those of :class:`Kernel`.
    """
    return _kept_kernel(_device_index(device), stem, name, _key(defines))


def _key(defines: Defines | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((k, str(v)) for k, v in (defines or {}).items()))


@functools.cache
def _kept_kernel(device: int, stem: str, name: str, defines: tuple[tuple[str, str], ...]) -> Kernel:
    return Kernel(stem, name, dict(defines), device=device)


class Launch:
    """A kernel with its grid and arguments, ready to go any number of times, from any thread.

    Args:
        kernel: The kernel.
        grid: Blocks along x, y, z; a launch with a zero among them does nothing.
        block: Threads along x, y, z.
        args: Contiguous tensors (passed by address, and kept alive), None (a null pointer),
            integers (32 bits), floats (single precision), structs or ctypes values.
        dependent: Let the blocks start while the kernel before in the stream still runs, where the
            GPU and the driver can (programmatic dependent launch) and the kernel waits for it
            itself. The first launch after another stream was waited for must not be dependent.

    Raises:
        ConfigError: If a size, an argument or the number of arguments cannot be right.
    """

    def __init__(
        self,
        kernel: Kernel,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[object],
        *,
        dependent: bool = False,
    ) -> None:
        self.kernel = kernel
        self.grid = check_size("grid", kernel.name, grid, _MAX_GRID)
        self.block = check_size("block", kernel.name, block, _MAX_BLOCK)
        threads = self.block[0] * self.block[1] * self.block[2]
        if not 0 < threads <= kernel.max_threads:
            raise ConfigError(
                f"The kernel '{kernel.name}' can run 1 to {kernel.max_threads} threads a block, "
                f"got {self.block}."
            )
        device = torch.device("cuda", kernel.device)
        self._values = pack_arguments(kernel.name, args, device, kernel.parameter_sizes)
        self._keep = tuple(args)
        self._argv = argument_array(self._values)
        self._empty = 0 in self.grid
        self._sizes = [ctypes.c_uint(v) for v in (*self.grid, *self.block, kernel.shared_bytes)]
        self.dependent = dependent and kernel.may_depend
        self._configs: dict[int, _Config] = {}  # by stream: a thread may not change another's
        self._launch = _driver().cuLaunchKernelEx if self.dependent else _driver().cuLaunchKernel

    def __call__(self, stream: int | None = None) -> None:
        """Enqueue the kernel.

        Args:
            stream: Handle of a CUDA stream of the kernel's device; torch's current one by default.

        Raises:
            DeviceError: If the driver refuses; the message names kernel, grid and sizes.
        """
        if self._empty:
            return
        if stream is None:
            stream = torch.cuda.current_stream(self.kernel.device).cuda_stream
        code = self._enqueue(stream)
        if code in (_INVALID_CONTEXT, _INVALID_HANDLE, _CONTEXT_DESTROYED):
            code = self._enqueue_in_context(stream)
        if code:
            _check(
                code,
                f"launching '{self.kernel.name}' on a grid of {self.grid} blocks of {self.block} "
                f"threads with {self.kernel.shared_bytes} bytes of shared memory and "
                f"{len(self._values)} arguments",
            )

    def _enqueue(self, stream: int) -> int:
        function, argv = self.kernel.function, self._argv
        if not self.dependent:
            return self._launch(function, *self._sizes, ctypes.c_void_p(stream), argv, None)
        config = self._configs.get(stream)
        if config is None:
            sizes = (*self.grid, *self.block, self.kernel.shared_bytes)
            config = _Config(*sizes, stream, ctypes.pointer(_DEPENDENT), 1)
            self._configs[stream] = config
        return self._launch(ctypes.byref(config), function, argv, None)

    def _enqueue_in_context(self, stream: int) -> int:
        """Enqueue where this thread has no context or that of another device, which it keeps."""
        driver, before = _driver(), ctypes.c_void_p()
        _check(driver.cuCtxGetCurrent(ctypes.byref(before)), "asking for the CUDA context")
        _check(driver.cuCtxSetCurrent(self.kernel._context), "setting the CUDA context")
        code = self._enqueue(stream)
        # What torch calls the current device depends on it; without a context that is device 0.
        if before.value or self.kernel.device:
            driver.cuCtxSetCurrent(before)
        return code


class Branch:
    """Work beside a stream, for kernels that leave most of the GPU idle.

    Both ends are events, so a branch may be part of a CUDA graph and never waits for the host. The
    first launch on the branch, and the first after :meth:`join`, must not be dependent.

    Args:
        device: CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._begin, self._end = torch.cuda.Event(), torch.cuda.Event()

    def fork(self) -> int:
        """Begin after what torch's current stream holds; return the handle of the branch."""
        self._begin.record(torch.cuda.current_stream(self._device))
        self._stream.wait_event(self._begin)
        return self._stream.cuda_stream

    def current(self) -> AbstractContextManager[None]:
        """Return a context in which the branch is torch's current stream."""
        return torch.cuda.stream(self._stream)  # type: ignore[no-any-return]

    def join(self) -> None:
        """Let torch's current stream wait for the branch."""
        self._end.record(self._stream)
        torch.cuda.current_stream(self._device).wait_event(self._end)


def waits_itself(stem: str, name: str) -> bool:
    """Tell whether a kernel begins with ``begin_dependent`` of kernels/common.cuh.

    One that did not could end before the kernel before it, and what comes after would read too
    early.
    """
    source = read_source(f"{stem}.cu").decode()
    begin = rf"__global__[^;{{]*\b{re.escape(name)}\s*\([^;{{]*\{{\s*begin_dependent\(\);"
    return re.search(begin, source) is not None


def device_arch(device: int, *, specific: bool = False) -> str:
    """Return what NVRTC calls the architecture of a device, as ``sm_90``.

    Args:
        device: Index of the CUDA device.
        specific: Ask for the instructions of this very chip, where it has any (``sm_90a``).
    """
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}" + ("a" if specific and major >= 9 else "")


# ---- driver -------------------------------------------------------------------------------------


@functools.cache
def _driver() -> ctypes.CDLL:
    if not torch.cuda.is_available():
        raise DeviceError(
            f"torch {torch.__version__} finds no CUDA device; use device 'cpu', or install a "
            "driver and a CUDA build of torch."
        )
    torch.cuda.init()
    return ctypes.CDLL("libcuda.so.1")


def _check(code: int, doing: str) -> None:
    if code == 0:
        return
    text = ctypes.c_char_p()
    _driver().cuGetErrorString(code, ctypes.byref(text))
    reason = text.value.decode() if text.value else "unknown"
    raise DeviceError(f"CUDA error {code} ({reason}) while {doing}.", code)


def _device_index(device: torch.device | int | None) -> int:
    _driver()
    if isinstance(device, torch.device):
        device = device.index
    return torch.cuda.current_device() if device is None else device


def _may_depend(device: int) -> bool:
    """Tell whether a launch may begin before the kernel that it depends on has ended."""
    version = ctypes.c_int()
    _check(_driver().cuDriverGetVersion(ctypes.byref(version)), "asking for the driver's version")
    capability = torch.cuda.get_device_capability(device)
    return capability >= _DEPENDENT_CAPABILITY and version.value >= _DEPENDENT_DRIVER


@functools.cache
def _context(device: int) -> ctypes.c_void_p:
    """Return the primary context of a device: the one torch uses."""
    context = ctypes.c_void_p()
    code = _driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    _check(code, f"taking the context of CUDA device {device}")
    return context


@contextlib.contextmanager
def _current(context: ctypes.c_void_p) -> Iterator[None]:
    """Make a context that of this thread, for what asks about or changes what is in it."""
    driver = _driver()
    _check(driver.cuCtxPushCurrent_v2(context), "setting the CUDA context")
    try:
        yield
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


@functools.cache
def _module(
    device: int, stem: str, arch: str, defines: tuple[tuple[str, str], ...]
) -> ctypes.c_void_p:
    cubin, _ = compile_cubin(stem, arch, dict(defines))
    module = ctypes.c_void_p()
    with _current(_context(device)):
        code = _driver().cuModuleLoadData(ctypes.byref(module), cubin)
    _check(code, f"loading {stem}.cu compiled for {arch}")
    return module
