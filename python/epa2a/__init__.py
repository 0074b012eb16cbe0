"""Expert-parallel all-to-all of mixture-of-experts (MoE) models.

    import epa2a, numpy as np

    def rank(comm):
        moe = epa2a.Moe(comm, max_tokens=64, hidden=1024, experts=8, topk=2, dtype="f16", recv="f16")
        x = np.random.randn(64, 1024).astype(np.float16)
        idx = np.argsort(np.random.rand(64, 8))[:, :2]
        got = moe.dispatch(x, idx, np.full((64, 2), 0.5, np.float32))
        assert np.allclose(moe.combine(got, got.x), x, atol=1e-2)

    epa2a.spawn(rank, 4)

Comm      A group of ranks.
Moe       Dispatch and combine of one shape; a dispatch returns a Received.
FusedMoE  A complete MoE layer.
AgGemm    AllGather followed by a matrix product.
spawn     Runs a function in a new process for each rank.
Error     Base class of all failures of the library.

Arrays are those of torch, NumPy, CuPy or JAX. The import of this package loads neither these nor
libepa2a: the first use of a class loads its module, and the first call loads the library."""

_homes = {
    "AgGemm": "ag_gemm",
    "Comm": "comm",
    "FusedMoE": "layer",
    "Moe": "moe",
    "Need": "moe",
    "Received": "moe",
    "Pending": "moe",
    "build": "library",
    "spawn": "processes",
    "SpawnError": "processes",
    "Error": "errors",
    "ArgumentError": "errors",
    "Unsupported": "errors",
    "NoMemory": "errors",
    "SystemFailure": "errors",
    "Timeout": "errors",
    "Aborted": "errors",
    "RankDied": "errors",
    "AllGatherGemmContext": "seeds",
    "DispatchMetaInfo": "seeds",
    "EPLowLatencyAllToAllLayer": "seeds",
    "LowlatencyCombineContext": "seeds",
    "LowlatencyDispatchContext": "seeds",
    "create_ag_gemm_context": "seeds",
    "create_ep_ll_a2a_ctx": "seeds",
}
__all__ = sorted(_homes)


def __getattr__(name):
    import importlib

    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("epa2a")
        except metadata.PackageNotFoundError:
            return importlib.import_module(".library", __name__).build().split(":")[0]
    if name not in _homes:
        raise AttributeError(f"module 'epa2a' has no attribute '{name}'")
    value = getattr(importlib.import_module("." + _homes[name], __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(set(globals()) | set(_homes))
