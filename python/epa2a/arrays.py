"""Arrays of torch, NumPy, CuPy and JAX: address, shape and strides of inputs, and new outputs.

Inputs are read by data_ptr() (torch), else by the array interfaces, else by DLPack. No framework is
imported: an array of a framework exists only if its module is in sys.modules."""

import ctypes
import functools
import sys

from . import binding
from .errors import ArgumentError, Unsupported

BYTES = {"f32": 4, "bf16": 2, "fp8": 1, "f16": 2, "i32": 4, "i64": 8, "int8": 1, "u8": 1, "u16": 2, "u32": 4, "u64": 8}
_names = {
    "float32": "f32",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "float16": "f16",
    "int32": "i32",
    "int64": "i64",
    "int8": "int8",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
}
_long_names = {short: long for long, short in _names.items()}
# NumPy lacks bf16 and e4m3; integers of the same size carry their bits.
_equivalents = {"bf16": ("u16",), "fp8": ("u8",), "u32": ("i32",), "u64": ("i64",)}
# (kind, bytes) of the array interfaces.
_typestr = {
    "f4": "f32", "f2": "f16", "i1": "int8", "i4": "i32", "i8": "i64", "u1": "u8", "u2": "u16", "u4": "u32", "u8": "u64"
}  # fmt: skip


class Array:
    """An array of a caller. Strides are in bytes; `device` is -1 for host memory, else the number
    of the CUDA device. `is_dense`: C-contiguous. `source` keeps the memory alive."""

    __slots__ = ("address", "shape", "strides", "dtype", "device", "is_dense", "source")

    def __init__(self, address, shape, strides, dtype, device, is_dense, source):
        self.address, self.shape, self.strides = address, shape, strides
        self.dtype, self.device, self.is_dense, self.source = dtype, device, is_dense, source


def _dense_strides(shape, size):
    strides = []
    for n in reversed(shape):
        strides.append(size)
        size *= n
    return tuple(reversed(strides))


def _is_dense(shape, strides, size):
    if 0 in shape:
        return True
    for n, stride in zip(reversed(shape), reversed(strides)):
        if n > 1 and stride != size:
            return False
        size *= n
    return True


def short_dtype(dtype):
    """Returns the short name of a dtype of any framework, or its own name."""
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    name = name.rpartition(".")[2]
    return _names.get(name, name)


_known_dtypes = {}  # dtype object of a framework: short name


def _dtype_of(dtype):
    name = _known_dtypes.get(dtype)
    if name is None:
        name = short_dtype(dtype)
        order = getattr(dtype, "byteorder", "=")
        if order == (">" if sys.byteorder == "little" else "<"):
            name = str(dtype)  # for example ">u2", which no argument accepts
        _known_dtypes[dtype] = name
    return name


_devices = {}  # device object of torch: number


def _device_of(device):
    number = _devices.get(device)
    if number is None:
        if device.type not in ("cpu", "cuda"):
            raise ArgumentError(f"a tensor is on the device '{device}'; use 'cpu' or 'cuda'.")
        number = _devices[device] = -1 if device.type == "cpu" else device.index
    return number


# Objects of torch, set at the first tensor: the class of tensors, their dense layout, and a function that
# returns the current stream of a device as an int; an object of class Stream takes a microsecond.
_tensor = _strided = _raw_stream = None


def _find_torch():
    global _tensor, _strided, _raw_stream

    torch = sys.modules["torch"]
    _raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    _strided, _tensor = torch.strided, torch.Tensor
    if binding.module is not None:
        binding.module.use_torch(_tensor, _strided, _raw_stream)


def _read_torch(x):
    if _tensor is None:
        _find_torch()
    device = _device_of(x.device)
    if x.layout is not _strided:
        raise ArgumentError(f"a tensor has the layout {x.layout}; use a dense tensor.")
    size = x.element_size()
    strides = tuple([s * size for s in x.stride()])
    return Array(x.data_ptr(), tuple(x.shape), strides, _dtype_of(x.dtype), device, x.is_contiguous(), x)


# Class and address field of NumPy's arrays. The address is the first field after the object header,
# in all versions of NumPy 1 and 2. __array_interface__ takes 2 us per array to build.
_ndarray = None
_pointer = ctypes.c_void_p.from_address
_header = object.__basicsize__


def _find_numpy():
    """Sets _ndarray if NumPy is loaded and stores the address at the expected place."""
    global _ndarray

    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "ndarray"):
        return
    probe = numpy.zeros(3, numpy.uint8)
    found = sys.implementation.name == "cpython" and _pointer(id(probe) + _header).value
    _ndarray = numpy.ndarray if found == probe.__array_interface__["data"][0] else ()
    if binding.module is not None and _ndarray:
        binding.module.use_numpy(_ndarray, _header)


def _read_numpy(x, name, writable):
    flags = x.flags
    if writable and not flags.writeable:
        raise ArgumentError(f"{name} is read-only; pass an array that the library can write.")
    address = _pointer(id(x) + _header).value
    return Array(address, x.shape, x.strides, _dtype_of(x.dtype), -1, flags.c_contiguous, x)


def _read_interface(x, facts, device):
    address, read_only = facts["data"] if facts.get("data") else (None, False)
    shape = tuple(facts["shape"])
    typestr = facts["typestr"]
    name = short_dtype(x.dtype) if hasattr(x, "dtype") else _typestr.get(typestr[1:], typestr)
    size = int(typestr[2:])
    if typestr[0] == ">" and size > 1:
        name = typestr
    strides = tuple(facts.get("strides") or _dense_strides(shape, size))
    array = Array(address or 0, shape, strides, name, device, _is_dense(shape, strides, size), x)
    return array, read_only


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


# (code, bits) of DLPack 1.1; 10 is float8_e4m3fn.
_dlpack_types = {
    (0, 8): "int8",
    (0, 32): "i32",
    (0, 64): "i64",
    (1, 8): "u8",
    (1, 16): "u16",
    (1, 32): "u32",
    (1, 64): "u64",
    (2, 16): "f16",
    (2, 32): "f32",
    (4, 16): "bf16",
    (10, 8): "fp8",
}
_dlpack_devices = {1: False, 2: True, 3: False, 13: True}  # host, CUDA, pinned host, managed


def _read_dlpack(x):
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    try:
        capsule = x.__dlpack__()
    except Exception as error:
        raise ArgumentError(f"an array cannot be exported by DLPack: {error}.") from error
    t = _DLTensor.from_address(pointer_of(capsule, b"dltensor"))
    if t.device_type not in _dlpack_devices:
        raise ArgumentError(f"an array is on a DLPack device of type {t.device_type}; use the host or CUDA.")
    name = _dlpack_types.get((t.code, t.bits)) if t.lanes == 1 else None
    if name is None:
        raise ArgumentError(f"an array has the DLPack type ({t.code}, {t.bits}, {t.lanes}), which has no use here.")
    shape = tuple(t.shape[i] for i in range(t.ndim))
    size = t.bits // 8
    strides = tuple(t.strides[i] * size for i in range(t.ndim)) if t.strides else _dense_strides(shape, size)
    device = t.device_id if _dlpack_devices[t.device_type] else -1
    # The capsule owns the export: its destructor frees the memory, so the caller keeps it.
    dense_ = _is_dense(shape, strides, size)
    return Array((t.data or 0) + t.byte_offset, shape, strides, name, device, dense_, (x, capsule))


def read(x, name, writable=False):
    """Returns the Array of an array of any framework."""
    if _ndarray is None:
        _find_numpy()
    if _ndarray and isinstance(x, _ndarray):
        return _read_numpy(x, name, writable)
    if hasattr(x, "data_ptr"):
        return _read_torch(x)
    # CuPy's class attribute __array_interface__ is absent; NumPy lacks the CUDA interface.
    facts = getattr(x, "__array_interface__", None)
    device = -1
    if facts is None:
        facts = getattr(x, "__cuda_array_interface__", None)
        device = getattr(getattr(x, "device", None), "id", 0)
    if facts is not None:
        array, read_only = _read_interface(x, facts, device)
        if writable and read_only:
            raise ArgumentError(f"{name} is read-only; pass an array that the library can write.")
        return array
    if hasattr(x, "__dlpack__"):
        if writable:
            raise ArgumentError(
                f"{name} is an array of type {type(x).__name__}, which the library cannot write; "
                "pass an array of NumPy, torch or CuPy."
            )
        return _read_dlpack(x)
    raise ArgumentError(
        f"{name} is of type {type(x).__name__}; pass an array of torch, NumPy, CuPy or JAX."
    )


def accepts(dtype, wanted):
    return dtype == wanted or dtype in _equivalents.get(wanted, ())


def _check_dtype(array, name, dtypes):
    for dtype in dtypes:
        if accepts(array.dtype, dtype):
            return dtype
    wanted = " or ".join(_long_names[d] for d in dtypes)
    found = _long_names.get(array.dtype, array.dtype)
    raise ArgumentError(f"{name} has the dtype {found}; pass {wanted}.")


def _check_device(array, name, device):
    if array.device == device:
        return
    places = ["the host" if d < 0 else f"CUDA device {d}" for d in (array.device, device)]
    raise ArgumentError(f"{name} is in memory of {places[0]}; the comm uses memory of {places[1]}.")


def _check_shape(array, name, shape):
    """`shape` contains None for a length that is not fixed."""
    if len(array.shape) == len(shape) and all(b is None or a == b for a, b in zip(array.shape, shape)):
        return
    wanted = ", ".join("any" if n is None else str(n) for n in shape)
    raise ArgumentError(f"{name} has the shape {list(array.shape)}; pass [{wanted}].")


def _check_address(array, name):
    size = BYTES.get(array.dtype, 1)
    if array.address % size:
        raise ArgumentError(f"{name} begins at an address that is no multiple of {size} bytes; copy the array.")


def dense(x, name, shape, dtypes, device, writable=False):
    """Returns the Array of a C-contiguous array."""
    array = read(x, name, writable)
    if (
        array.is_dense
        and array.shape == shape
        and (array.dtype in dtypes or accepts(array.dtype, dtypes[0]))
        and array.device == device
        and array.address % BYTES[array.dtype] == 0
    ):
        return array
    _check_dtype(array, name, dtypes)
    _check_shape(array, name, shape)
    _check_device(array, name, device)
    _check_address(array, name)
    if not array.is_dense:
        raise ArgumentError(
            f"{name} is not contiguous: shape {list(array.shape)}, strides {list(array.strides)} "
            "bytes; pass a contiguous copy."
        )
    return array


def small(x, name, shape, dtypes, device):
    """Returns the Array of a small input, such as indices. Other memory orders are copied on hosts. A
    copy on a device would be work of a stream, which the caller may not use."""
    try:
        return dense(x, name, shape, dtypes, device)
    except ArgumentError:
        if device >= 0 or read(x, name).is_dense:
            raise
    return dense(x.contiguous() if hasattr(x, "data_ptr") else _numpy().ascontiguousarray(x), name, shape, dtypes, device)


def rows(x, name, shape, dtypes, device):
    """Returns the Array of a matrix with dense rows, and the distance of its rows in bytes, 0 for a
    dense matrix."""
    array = read(x, name)
    if (
        array.is_dense
        and len(array.shape) == 2
        and array.shape[1] == shape[1]
        and (shape[0] is None or array.shape[0] == shape[0])
        and (array.dtype in dtypes or accepts(array.dtype, dtypes[0]))
        and array.device == device
        and array.address % BYTES[array.dtype] == 0
    ):
        return array, 0
    dtype = _check_dtype(array, name, dtypes)
    _check_shape(array, name, shape)
    _check_device(array, name, device)
    _check_address(array, name)
    count, width = array.shape
    size = BYTES[dtype]
    if count == 0 or width == 0:
        return array, 0
    if width > 1 and array.strides[1] != size:
        raise ArgumentError(
            f"{name} has a stride of {array.strides[1]} bytes between elements of a row; pass rows "
            f"of adjacent elements ({size} bytes)."
        )
    stride = array.strides[0]
    if count == 1 or stride == width * size:
        return array, 0
    if stride < width * size or stride % size:
        raise ArgumentError(
            f"{name} has a stride of {stride} bytes between rows; a row has {width * size} bytes. "
            "Pass a contiguous copy."
        )
    return array, stride


class Argument:
    """A tensor argument of the calls that move data. The methods check an array and return its address,
    the object that keeps the memory alive, and another fact.

    The first array of a dtype takes the path of dense(), which explains each failure. A later dense array
    of the same dtype, of torch or NumPy, takes a quarter of the time."""

    __slots__ = ("name", "dtypes", "writable", "sizes")

    def __init__(self, name, *dtypes, writable=False):
        self.name, self.dtypes, self.writable = name, dtypes, writable
        self.sizes = {}  # accepted dtype of a framework: bytes of an element

    def _fast(self, x, shape, device):
        """Returns (address, x, bytes of an element), or None: dense() decides."""
        kind = type(x)
        if kind is _tensor:
            size = self.sizes.get(x.dtype)
            if (
                size is None
                or x.shape != shape
                or x.layout is not _strided
                or not x.is_contiguous()
                or (x.get_device() != device if x.is_cuda else device >= 0 or not x.is_cpu)
            ):
                return None
            address = x.data_ptr()
        elif kind is _ndarray and device < 0:
            size, flags = self.sizes.get(x.dtype), x.flags
            if (
                size is None
                or x.shape != shape
                or not flags.c_contiguous
                or (self.writable and not flags.writeable)
            ):
                return None
            address = _pointer(id(x) + _header).value
        else:
            return None
        return None if address % size else (address, x, size)

    def _checked(self, array):
        """Returns the result for a checked array, and accepts its dtype from now on."""
        size, x = BYTES[array.dtype], array.source
        if type(x) is _tensor or type(x) is _ndarray:
            self.sizes[x.dtype] = size
        return array.address, x, size

    def dense(self, x, shape, device):
        """Returns (address, object, bytes of an element) of a C-contiguous array."""
        found = self._fast(x, shape, device)
        return found or self._checked(dense(x, self.name, shape, self.dtypes, device, self.writable))

    def small(self, x, shape, device):
        """Returns the same for a small input. Other memory orders are copied on hosts."""
        found = self._fast(x, shape, device)
        return found or self._checked(small(x, self.name, shape, self.dtypes, device))

    def rows(self, x, count, width, device):
        """Returns (address, object, number of rows, distance of rows in bytes or 0) of a matrix with dense
        rows. count: number of rows; None: any."""
        kind = type(x)
        if kind is _tensor or kind is _ndarray:
            shape = x.shape
            if len(shape) == 2 and shape[1] == width and (count is None or shape[0] == count):
                found = self._fast(x, shape, device)
                if found:
                    return found[0], x, shape[0], 0
        array, stride = rows(x, self.name, (count, width), self.dtypes, device)
        return *self._checked(array)[:2], array.shape[0], stride


# ---- outputs ----


def framework_of(x):
    """Returns "torch", "cupy" or "numpy": outputs for inputs of JAX are NumPy arrays, since arrays of
    JAX are immutable."""
    if type(x) is _tensor:
        return "torch"
    if (_ndarray and isinstance(x, _ndarray)) or hasattr(x, "__array_interface__"):
        return "numpy"
    if hasattr(x, "data_ptr"):
        return "torch"
    return "cupy" if "cupy" in sys.modules and hasattr(x, "__cuda_array_interface__") else "numpy"


_torch_names = {"u32": "int32", "u64": "int64", "u16": "int16"}


@functools.cache
def _torch_dtype(dtype):
    return getattr(sys.modules["torch"], _torch_names.get(dtype, _long_names[dtype]))


@functools.cache
def _torch_device(device):
    return sys.modules["torch"].device("cpu" if device < 0 else f"cuda:{device}")


def _numpy_dtype(numpy, dtype):
    """bf16 and e4m3 have the types of ml_dtypes if the caller has imported ml_dtypes, else integers."""
    types = sys.modules.get("ml_dtypes")
    if dtype == "bf16":
        return types.bfloat16 if types else numpy.uint16
    if dtype == "fp8":
        return types.float8_e4m3fn if types else numpy.uint8
    return getattr(numpy, _long_names[dtype])


def _numpy():
    try:
        import numpy
    except ImportError:
        raise Unsupported("NumPy is not installed; install numpy, or pass arrays of torch.") from None
    return numpy


def empty(framework, shape, dtype, device):
    """Returns a new array with undefined contents. torch has signed types for counts."""
    if framework == "torch":
        return sys.modules["torch"].empty(shape, dtype=_torch_dtype(dtype), device=_torch_device(device))
    if framework == "cupy" and device >= 0:
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(device):
            return cupy.empty(shape, _numpy_dtype(cupy, dtype))
    if device >= 0:
        raise Unsupported(
            "arrays of this framework cannot be allocated on a CUDA device; pass tensors of torch "
            "or CuPy, or request views."
        )
    numpy = _numpy()
    return numpy.empty(shape, _numpy_dtype(numpy, dtype))


def tensor_maker(shape, dtype, device):
    """Returns a function that returns a new tensor of torch. A tensor with strides takes less time to create
    than one without."""
    shape = tuple(shape)
    strides = [n // BYTES[dtype] for n in _dense_strides(shape, BYTES[dtype])]
    kind, place = _torch_dtype(dtype), _torch_device(device)
    return functools.partial(sys.modules["torch"].empty_strided, shape, strides, dtype=kind, device=place)


def address_of(array):
    """Returns the address of an array of empty()."""
    return array.data_ptr() if type(array) is _tensor else read(array, "array").address


def is_inference(framework):
    """Returns whether torch marks new tensors as tensors without a gradient, for ever."""
    return framework == "torch" and sys.modules["torch"].is_inference_mode_enabled()


def part_of_block(framework, block, at, count, shape, dtype):
    """Returns an array over bytes of a block."""
    if framework == "torch":
        size = BYTES[dtype]
        strides = [n // size for n in _dense_strides(shape, size)]
        return block.view(_torch_dtype(dtype)).as_strided(shape, strides, at // size)
    part = block[at : at + count]
    module = type(block).__module__.partition(".")[0]
    return part.view(_numpy_dtype(sys.modules[module], dtype)).reshape(shape)


class Memory:
    """Memory of the library with the array interfaces. `owner` is kept alive."""

    def __init__(self, address, shape, dtype, device, owner=None, strides=None):
        self.address, self.owner = address, owner
        typestr = {"bf16": "<u2", "fp8": "|u1"}.get(dtype)
        if typestr is None:
            typestr = next(("|" if t[1] == "1" else "<") + t for t, d in _typestr.items() if d == dtype)
        facts = {"shape": tuple(shape), "typestr": typestr, "data": (address, False), "version": 3}
        if strides is not None:
            facts["strides"] = strides
        if device < 0:
            self.__array_interface__ = facts
        else:
            self.__cuda_array_interface__ = facts


def wrap(framework, memory, dtype, device):
    """Returns an array of a framework over Memory, without a copy."""
    if framework == "torch":
        torch = sys.modules["torch"]
        if device < 0:
            facts = memory.__array_interface__
            span = BYTES[dtype]
            strides = facts.get("strides") or _dense_strides(facts["shape"], span)
            count = sum((n - 1) * s for n, s in zip(facts["shape"], strides)) + span
            buffer = (ctypes.c_uint8 * (count if 0 not in facts["shape"] else 0)).from_address(memory.address)
            buffer.owner = memory
            kind = _torch_dtype(dtype)
            flat = torch.frombuffer(buffer, dtype=kind) if len(buffer) else torch.empty(0, dtype=kind)
            return flat.as_strided(facts["shape"], [s // span for s in strides])
        bits = torch.as_tensor(memory, device=f"cuda:{device}")
        return bits.view(_torch_dtype(dtype))
    if framework == "cupy" and device >= 0:
        cupy = sys.modules["cupy"]
        return cupy.asarray(memory).view(_numpy_dtype(cupy, dtype))
    if device >= 0:
        return memory
    numpy = _numpy()
    return numpy.asarray(memory).view(_numpy_dtype(numpy, dtype))


# ---- streams ----


def stream_handle(stream, framework, device):
    """Returns a cudaStream_t as an int, or None for the stream of the comm. Without an argument, the
    current stream of the framework. The library knows the default stream 0 as cudaStreamLegacy (1)."""
    if device < 0:
        return None
    if stream is None:
        if framework == "torch":
            if _raw_stream is not None:
                return _raw_stream(device) or 1
            stream = sys.modules["torch"].cuda.current_stream(device)
        elif framework == "cupy":
            stream = sys.modules["cupy"].cuda.get_current_stream()
        else:
            return None
    for attribute in ("cuda_stream", "ptr", "handle"):
        value = getattr(stream, attribute, None)
        if value is not None:
            stream = value
            break
    try:
        handle = stream.__index__()
    except AttributeError:
        raise ArgumentError(
            f"stream is of type {type(stream).__name__}; pass a stream of torch or CuPy, or an int."
        ) from None
    return handle or 1
