"""What a worker may hand over, and what is refused with advice."""

from __future__ import annotations

import pytest

from stoker.errors import DeviceInWorkerError

torch = pytest.importorskip("torch")

from stoker._engine.transport import writer  # noqa: E402


class OnAnAccelerator:
    """Looks like a tensor on a GPU, as far as the writer asks: machines that run the tests have none."""

    device = torch.device("cuda", 0)


def test_a_tensor_on_an_accelerator_is_refused_with_advice() -> None:
    with pytest.raises(DeviceInWorkerError, match=r"cuda:0.*pin_memory=True"):
        writer.describe(OnAnAccelerator())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_real_cuda_tensor_is_refused() -> None:
    with pytest.raises(DeviceInWorkerError, match="cuda:0"):
        writer.describe(torch.zeros(1 << 18, device="cuda"))
