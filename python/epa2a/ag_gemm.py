"""AllGather followed by a matrix product: C = A of all ranks * B^T."""

import ctypes

from . import arrays, library, structs
from .comm import Owned
from .errors import ArgumentError

_dtypes = {"bf16": structs.BF16, "f16": structs.F16, "fp8": structs.FP8_E4M3}
_BLOCK = 128


def _blocks(n):
    return (n + _BLOCK - 1) // _BLOCK


class AgGemm(Owned):
    """An AllGather with a matrix product. All ranks create it together.

    b         [n, k]; the columns of C of this rank. Must not change before close().
    max_rows  Maximum number of rows of A of one rank.
    b_scale   FP8: float32 [n / 128, k / 128], both rounded up.
    bias      float32 [n], added to each row of C.
    out_dtype None: C is F16 if b is F16, else BF16. "fp8": a call returns C and its scales.
    options   For example "algorithm=ag_gemm_2d"."""

    _destroy = "epa2a_ag_gemm_destroy"

    def __init__(self, comm, b, *, max_rows, b_scale=None, bias=None, out_dtype=None, options=""):
        self._init(comm)
        device = comm.device_number
        read = arrays.read(b, "b")
        self.dtype = "fp8" if b_scale is not None else "f16" if read.dtype == "f16" else "bf16"
        b_array = arrays.dense(b, "b", (None, None), (self.dtype,), device)
        self.n, self.k = b_array.shape
        self.out_dtype = "f16" if self.dtype == "f16" else "bf16"
        code = 0
        if out_dtype is not None:
            out_dtype = "fp8" if out_dtype == "fp8" else arrays.short_dtype(out_dtype)
            code = library.choice("out_dtype", out_dtype, {"fp8": structs.FP8_E4M3, self.out_dtype: 0})
            self.out_dtype = out_dtype
        self.max_rows = library.number("max_rows", max_rows, 0, 2**32 - 1)
        params = structs.AgGemmParams(
            max_rows=self.max_rows,
            n=self.n,
            k=self.k,
            dtype=_dtypes[self.dtype],
            options=library.options_text(options),
            out_dtype=code,
        )
        self._weights = [b_array]
        if self.n:
            params.b = b_array.address
            for name, value, shape in (
                ("b_scale", b_scale, (_blocks(self.n), _blocks(self.k))),
                ("bias", bias, (self.n,)),
            ):
                if value is not None:
                    a = arrays.dense(value, name, shape, ("f32",), device)
                    setattr(params, name, a.address)
                    self._weights.append(a)
        handle = ctypes.c_void_p()
        comm.call_waiting(self._lib.epa2a_ag_gemm_create, comm.handle, params, handle)
        self._adopt(handle)

    def __call__(self, a, rows=None, a_scale=None, c=None, *, c_scale=None, stream=None):
        """Computes C. Collective.

        a        [rows of this rank, k].
        rows     Number of rows of each rank, the same on all ranks: a sequence, or uint32 [ranks] in
                 memory of the comm. None: each rank has as many rows as this rank.
        a_scale  FP8: float32 [rows of this rank, k / 128, rounded up].
        c        [at least the sum of rows, n], on a device [at least ranks * max_rows, n]; None: a
                 new array. Returns the first rows of c, or all rows of c if the numbers of rows are
                 on a device.
        c_scale  FP8: float32 with as many rows as c, [rows, n / 128, rounded up]; None: a new array.

        With out_dtype "fp8" the result is (c, c_scale)."""
        handle = self.handle
        comm, device = self.comm, self.comm.device_number
        framework = arrays.framework_of(a)
        if rows is None:
            shape = arrays.read(a, "a").shape
            rows = [shape[0] if shape else 0] * comm.ranks
        total = None
        if isinstance(rows, (list, tuple)):
            total, rows = self._store_rows(rows, framework)
        rows_array = arrays.dense(rows, "rows", (comm.ranks,), ("u32",), device)
        if total is None and device < 0:
            numbers = (ctypes.c_uint32 * comm.ranks).from_address(rows_array.address)
            total = self._check_rows(list(numbers))
        mine = None
        if device < 0 and total is not None:
            mine = (ctypes.c_uint32 * comm.ranks).from_address(rows_array.address)[comm.rank]
        a_array = arrays.dense(a, "a", (mine, self.k), (self.dtype,), device)
        scale = None
        if self.dtype == "fp8":
            if a_scale is None:
                raise ArgumentError("a_scale is None; FP8 rows need scales.")
            wanted = (a_array.shape[0], _blocks(self.k))
            scale = arrays.dense(a_scale, "a_scale", wanted, ("f32",), device).address
        elif a_scale is not None:
            raise ArgumentError("a_scale is for FP8 rows; leave it out.")
        if c_scale is not None and self.out_dtype != "fp8":
            raise ArgumentError("c_scale is for FP8 output; create the AgGemm with out_dtype=\"fp8\".")
        least = self._least_rows(total)
        c, c_address = self._output(c, "c", least, self.n, self.out_dtype, framework)
        stream = arrays.stream_handle(stream, framework, device)
        inputs = handle, rows_array.address, a_array.address, scale
        if self.out_dtype != "fp8":
            comm.call(self._lib.epa2a_ag_gemm_run, *inputs, c_address, stream)
            return c if total is None else c[:total]
        c_scale, scale_address = self._output(c_scale, "c_scale", least, _blocks(self.n), "f32", framework)
        comm.call(self._lib.epa2a_ag_gemm_run_fp8, *inputs, c_address, scale_address, stream)
        return (c, c_scale) if total is None else (c[:total], c_scale[:total])

    def _least_rows(self, total):
        """Returns the rows for which c needs room. On a device the library may write beyond the sum of rows."""
        return self.comm.ranks * self.max_rows if total is None or self.comm.device_number >= 0 else total

    def _output(self, given, name, least, width, dtype, framework):
        """Returns the array of the caller, or a new array, and its address."""
        device = self.comm.device_number
        if given is None:
            given = arrays.empty(framework, (least, width), dtype, device)
        found = arrays.dense(given, name, (None, width), (dtype,), device, writable=True)
        if found.shape[0] < least:
            raise ArgumentError(f"{name} has {found.shape[0]} rows; pass at least {least} rows.")
        return given, found.address

    def _check_rows(self, rows):
        for n in rows:
            library.number("a number of rows", n, 0, self.max_rows)
        return sum(rows)

    def _store_rows(self, rows, framework):
        if len(rows) != self.comm.ranks:
            raise ArgumentError(f"rows has {len(rows)} numbers; pass one for each of {self.comm.ranks} ranks.")
        total = self._check_rows(rows)
        if self.comm.device_number < 0:
            numbers = (ctypes.c_uint32 * len(rows))(*rows)
            memory = arrays.Memory(ctypes.addressof(numbers), (len(rows),), "u32", -1, numbers)
            return total, memory
        stored = arrays.empty(framework, (len(rows),), "u32", self.comm.device_number)
        for rank, n in enumerate(rows):
            stored[rank] = n
        return total, stored
