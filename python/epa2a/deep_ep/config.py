"""Config: the tuning numbers of DeepEP's normal mode.

Engines read and pass these numbers, and size buffers with the hints. The numbers have no effect. The
hints are 0: the memory of a dispatch depends on its tokens, and Buffer allocates this memory."""

NUMBERS = (
    "num_sms",
    "num_max_nvl_chunked_send_tokens",
    "num_max_nvl_chunked_recv_tokens",
    "num_max_rdma_chunked_send_tokens",
    "num_max_rdma_chunked_recv_tokens",
)


class Config:
    """Numbers of multiprocessors and of tokens per chunk."""

    def __init__(self, num_sms=20, num_max_nvl_chunked_send_tokens=6, num_max_nvl_chunked_recv_tokens=256,
                 num_max_rdma_chunked_send_tokens=6, num_max_rdma_chunked_recv_tokens=256):
        values = (num_sms, num_max_nvl_chunked_send_tokens, num_max_nvl_chunked_recv_tokens,
                  num_max_rdma_chunked_send_tokens, num_max_rdma_chunked_recv_tokens)
        for name, value in zip(NUMBERS, values):
            least = 0 if name == "num_sms" else 1
            if not isinstance(value, int) or value < least:
                raise ValueError(f"Config: {name} is {value!r}; pass an integer of at least {least}")
            setattr(self, name, value)
        for network in ("nvl", "rdma"):
            send = getattr(self, f"num_max_{network}_chunked_send_tokens")
            recv = getattr(self, f"num_max_{network}_chunked_recv_tokens")
            if send >= recv:
                raise ValueError(f"Config: num_max_{network}_chunked_send_tokens is {send}; pass a number below "
                                 f"num_max_{network}_chunked_recv_tokens, {recv}")

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Returns num_nvl_bytes for a Buffer: 0 bytes."""
        return 0

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Returns num_rdma_bytes for a Buffer: 0 bytes."""
        return 0

    def __repr__(self):
        return "Config(" + ", ".join(f"{name}={getattr(self, name)}" for name in NUMBERS) + ")"
