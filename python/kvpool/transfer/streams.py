"""Reads torch's current CUDA stream. Only this module does so."""

from __future__ import annotations


def current_stream(device: int) -> int:
    """Returns the driver's handle of torch's current stream on a device: 0 for the legacy default stream.

    It takes about 0.1 us if torch has the call that its own compilers use, otherwise 1 us. Torch must
    be able to use the device.
    """
    import torch

    fast = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if fast is not None:
        return int(fast(device))
    return int(torch.cuda.current_stream(device).cuda_stream)
