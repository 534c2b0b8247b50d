"""Checks of GPUs by NVML, NVIDIA's library for it, if its driver is there."""

from __future__ import annotations

from collections.abc import Iterator

from stoker._core.machine.nvml import GpuReading, Nvml
from stoker.diagnostics.checks.finding import Finding


def utilisation() -> Iterator[Finding]:
    """Yields each GPU's utilisation and memory at this moment; nothing where there is no driver."""
    nvml = Nvml.opened()
    if nvml is None:
        return
    if nvml.code:
        yield Finding(
            "GPUs",
            "problem",
            f"NVML, the library of the NVIDIA driver, does not start (code {nvml.code})",
            "No program can use the GPUs.",
            "nvidia-smi says why; in a container: docker run --gpus all",
        )
        return
    try:
        for number, reading in enumerate(nvml.readings()):
            yield Finding(f"GPU {number}", "fine", _described(reading))
    finally:
        nvml.close()


def _described(gpu: GpuReading) -> str:
    parts = [gpu.name]
    if gpu.busy is not None:
        parts.append(f"busy {gpu.busy:.0%} of the last moment")
    if gpu.free is not None and gpu.total is not None:
        parts.append(f"{gpu.free / 2**30:.1f} GiB free of {gpu.total / 2**30:.1f} GiB")
    return ", ".join(parts)
