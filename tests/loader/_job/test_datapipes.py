from __future__ import annotations

import functools
import json
import os
from typing import Any

import pytest

import stoker
from stoker.loader._epoch.gather_or_split import may_share
from stoker.loader.record import options_of

torch = pytest.importorskip("torch")
pytest.importorskip("torch.utils.data.datapipes")

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # a machine may have one CPU
    pytest.mark.filterwarnings("ignore:MapperIterDataPipe cannot say where it stands"),
]


def die_once(marker: str, item: int) -> int:
    if item == 7 and not os.path.exists(marker):
        open(marker, "w").close()
        os._exit(3)
    return item


SETTINGS = [
    *({}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}, {"num_workers": 2, "seed": 4}),
    *({"num_workers": 2, "persistent_workers": True}, {"num_workers": 2, "multiprocessing_context": "forkserver"}),
]


def pipe(function: Any = abs) -> Any:
    from torch.utils.data.datapipes.iter import IterableWrapper

    return IterableWrapper(range(24)).shuffle().sharding_filter().map(function)


def items(batches: list[list[int]]) -> list[int]:
    return sorted(item for batch in batches for item in batch)


def lists(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_shuffled_datapipe_resumes_exactly(settings: Any) -> None:
    with stoker.DataLoader(pipe(), batch_size=2, **settings) as loader:
        epochs = [lists(loader)]
        batches = iter(loader)
        epochs.append([next(batches).tolist() for _ in range(3)])
        state = json.dumps(loader.state_dict())
        rest = lists(batches)
    assert items(epochs[1] + rest) == list(range(24)) and epochs[0] != epochs[1] + rest
    with stoker.DataLoader(pipe(), batch_size=2, **settings) as other:
        other.load_state_dict(json.loads(state))
        assert lists(other) == rest


def test_order_of_a_datapipe_follows_from_the_loaders_seed() -> None:
    orders = [lists(stoker.DataLoader(pipe(), batch_size=24, seed=seed)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_datapipe_of_a_worker_that_dies_goes_on(tmp_path: Any) -> None:
    once = functools.partial(die_once, str(tmp_path / "died"))
    loader: Any = stoker.DataLoader(pipe(once), batch_size=2, num_workers=2)
    with pytest.warns(stoker.StokerWarning, match="exited"):
        batches = lists(loader)
    assert items(batches) == list(range(24))


def test_loader_of_a_datapipe_is_taken_over_from_torch() -> None:
    theirs = torch.utils.data.DataLoader(pipe(), batch_size=5, shuffle=False, num_workers=2)
    assert lists(stoker.DataLoader.from_torch(theirs)) == lists(theirs)


def test_loader_works_where_torch_has_no_datapipes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IterDataPipe", "MapDataPipe"):
        monkeypatch.delattr(torch.utils.data, name)

    class Stream(stoker.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(3))

    for settings in ({}, {"num_workers": 1}):
        assert lists(stoker.DataLoader(Stream(), **settings)) == [[0], [1], [2]]
        assert lists(stoker.DataLoader([0, 1, 2], **settings)) == [[0], [1], [2]]
        with pytest.raises(ValueError, match="expected unspecified shuffle option"):
            stoker.DataLoader(Stream(), shuffle=True)


class SharedMap(torch.utils.data.MapDataPipe):  # type: ignore[misc]
    def __getitem__(self, index: int) -> int:
        return index

    def __len__(self) -> int:
        return 8

    def apply_sharding(self, instances: int, instance: int) -> None:
        self.share = instances, instance


def test_workers_with_a_share_make_whole_batches() -> None:
    for dataset, together in ((list(range(8)), True), (SharedMap(), False)):
        assert may_share(options_of(stoker.DataLoader(dataset, batch_size=4, num_workers=2))) is together
