"""A tensor in shared memory is one for the trainer, its workers, and those that take the place of dead ones."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

CACHE = """
import os, signal
import torch
from stoker import DataLoader

class Cached:
    def __init__(self):
        self.cache = torch.zeros(12).share_memory_()
        self.died = torch.zeros(1).share_memory_()

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 5 and not self.died:
            self.died.fill_(1)
            os.kill(os.getpid(), signal.SIGKILL)
        hit = bool(self.cache[index])
        self.cache[index] = 1
        return hit

if __name__ == "__main__":
    torch.multiprocessing.set_sharing_strategy(STRATEGY)
    dataset = Cached()
    replaced = []
    loader = DataLoader(
        dataset, batch_size=1, num_workers=2, multiprocessing_context=BIRTH, on_event=replaced.append
    )
    hits = [sum(bool(batch) for batch in loader) for epoch in range(2)]
    print(hits, int(dataset.cache.sum()), len(replaced))
"""


@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_replaced_workers_share_a_tensor(run: Any, birth: str, strategy: str) -> None:
    assert run(birth, CACHE.replace("STRATEGY", repr(strategy)), torch=True) == "[0, 12] 12 1"


def test_workers_share_a_tensor_over_a_file(run: Any, birth: str) -> None:
    seen = run(
        birth,
        """
        import os
        import torch
        from stoker import DataLoader

        PATH = os.path.join(os.environ["PLACE"], "numbers")

        class Numbers:
            def __init__(self):
                self.numbers = torch.from_file(PATH, shared=True, size=8, dtype=torch.int64)
            def __len__(self):
                return 8
            def __getitem__(self, index):
                self.numbers[index] = index
                return index

        if __name__ == "__main__":
            with open(PATH, "wb") as file:
                file.truncate(64)
            dataset = Numbers()
            batches = len(list(DataLoader(dataset, num_workers=2, multiprocessing_context=BIRTH)))
            print(batches, dataset.numbers.tolist())
        """,
        torch=True,
    )
    assert seen == "8 [0, 1, 2, 3, 4, 5, 6, 7]"
