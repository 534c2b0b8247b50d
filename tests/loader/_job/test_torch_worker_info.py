"""torch that is imported by a sample."""

from __future__ import annotations

import itertools
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

import stoker

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # a machine may have one CPU
    pytest.mark.filterwarnings("ignore:.* does not share its samples out among workers"),
]


@pytest.mark.slow
@pytest.mark.parametrize("birth", ["fork", "forkserver"])
def test_generator_of_a_stream_begins_alike_in_all_workers(birth: str) -> None:
    """They read one stream by stride, so it must have one order."""

    class Shuffled(stoker.IterableDataset[int]):  # one of this module would bring torch with it
        def __iter__(self) -> Iterator[int]:
            import torch

            yield from torch.randperm(24).tolist()

    made: list[list[Any]] = []
    for _ in range(2):
        loader = stoker.DataLoader(
            Shuffled(), 2, num_workers=2, seed=5, output="numpy", collate_fn=list, multiprocessing_context=birth
        )
        made.append(list(itertools.chain.from_iterable(loader)))
    assert made[0] == made[1] != sorted(made[0]) == list(range(24))


PROXIES = {
    "forwards": "proxy = type('Lazy', (), {'__getattr__': lambda self, name: getattr(real, name)})()",
    "copies": "proxy = types.SimpleNamespace(**vars(real))",
    "mocks": "proxy = mock.MagicMock(wraps=real)",
    "spies": "proxy = types.SimpleNamespace(get_worker_info=lambda: real.get_worker_info())",
}


@pytest.mark.parametrize("method", ["process", "thread"])
@pytest.mark.parametrize("kind", PROXIES)
def test_workers_know_torchs_function_behind_a_proxy_module(kind: str, method: str) -> None:
    """As a test tool or a library for lazy imports may put it into `sys.modules`."""
    script = f"""
        import sys, types
        from unittest import mock

        import torch.utils.data

        NAME = "torch.utils.data._utils.worker"
        real = sys.modules[NAME]
        {PROXIES[kind]}
        sys.modules[NAME] = proxy

        import stoker

        class Tells:
            def __len__(self):
                return 4

            def __getitem__(self, index):
                infos = torch.utils.data.get_worker_info(), stoker.get_worker_info()
                return [-1 if info is None else info.num_workers for info in infos]

        for _ in range(2):
            loader = stoker.DataLoader(Tells(), None, num_workers=2, worker_method={method!r}, collate_fn=list)
            assert list(loader) == [[2, 2]] * 4, list(loader)
        for Loader in (stoker.DataLoader, torch.utils.data.DataLoader):
            assert list(Loader(Tells(), None, collate_fn=list)) == [[-1, -1]] * 4
        theirs = torch.utils.data.DataLoader(Tells(), None, num_workers=2, collate_fn=list)
        assert list(theirs) == [[2, 2]] * 4, list(theirs)
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)], check=True, timeout=100)
