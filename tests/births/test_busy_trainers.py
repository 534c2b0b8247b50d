"""Trainers with threads and locks of their own, and with torch's thread pools, start workers all the same."""

from __future__ import annotations

from typing import Any

import pytest


def test_busy_threads_and_locks(run: Any, birth: str) -> None:
    """Threads that log, allocate and take locks all the time while iterators are made."""
    seen = run(
        birth,
        """
        import logging, queue, sys, threading
        import numpy as np
        from stoker import DataLoader
        lock, mine, ends = threading.Lock(), queue.Queue(), threading.Event()
        logging.basicConfig(stream=open('/dev/null', 'w'))

        def busy():
            while not ends.is_set():
                with lock:
                    sum(range(100))
                mine.put(np.zeros(1000)); mine.get()
                logging.warning('busy')

        class Data:
            def __len__(self):
                return 8
            def __getitem__(self, index):
                return np.full(20_000, index)

        if __name__ == '__main__':
            threads = [threading.Thread(target=busy) for _ in range(4)]
            for thread in threads:
                thread.start()
            for _ in range(5 if BIRTH == 'fork' else 2):
                batches = list(DataLoader(Data(), num_workers=2, batch_size=2, multiprocessing_context=BIRTH))
                assert [int(batch[1, -1]) for batch in batches] == [1, 3, 5, 7]
            ends.set()
            for thread in threads:
                thread.join()
            print('through')
        """,
    )
    assert seen == "through"


@pytest.mark.slow
@pytest.mark.parametrize("birth", ["fork", "forkserver"], indirect=True)
def test_torch_on_several_threads_before(run: Any, birth: str) -> None:
    """OpenMP's threads do not survive a fork: who computes in a worker must not wait for them."""
    pytest.importorskip("torch")
    seen = run(
        birth,
        """
        import torch
        from stoker import DataLoader
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, index):
                side = torch.full((300, 300), float(index))
                return (side @ side).relu().sum(), torch.get_num_threads()
        if __name__ == '__main__':
            torch.set_num_threads(4)
            big = torch.rand(1000, 1000)
            for _ in range(3):
                (big @ big).exp().sum()
            for _ in range(2):
                for value, threads in DataLoader(Data(), num_workers=2, batch_size=2, multiprocessing_context=BIRTH):
                    assert threads.tolist() == [1, 1], threads
                (big @ big).exp().sum()
            print(torch.get_num_threads(), value.tolist()[0] > 0)
        """,
        torch=True,
    )
    assert seen == "4 True"
