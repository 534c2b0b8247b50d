"""Settings are put into existing loaders of both kinds, and the next epoch follows them."""

from __future__ import annotations

import pytest

from stoker.diagnostics.settings.setting_trial import LoaderSetting, Override, put_into, setting_of

data = pytest.importorskip("torch.utils.data")
stoker_loader = pytest.importorskip("stoker.loader.dataloader")


@pytest.fixture(params=["torch", "stoker"])
def kind(request: pytest.FixtureRequest) -> type:
    return data.DataLoader if request.param == "torch" else stoker_loader.DataLoader


def sizes(loader: object) -> list[int]:
    return [len(batch) for batch in loader]  # type: ignore[attr-defined]


def test_a_setting_is_what_the_next_epoch_has(kind: type) -> None:
    loader = kind(list(range(10)), batch_size=4)
    assert setting_of(loader) == LoaderSetting(0, None, 1, 4)
    put_into(loader, LoaderSetting(1, 3, batch_size=5))
    assert (loader.num_workers, loader.prefetch_factor, loader.batch_size) == (1, 3, 5)
    assert sizes(loader) == [5, 5]
    put_into(loader, LoaderSetting(0))
    assert setting_of(loader) == LoaderSetting(0, None, 1, 5)
    assert sizes(loader) == [5, 5]


def test_samples_and_order_stay(kind: type) -> None:
    loader = kind(list(range(10)), batch_size=4, drop_last=True)
    put_into(loader, LoaderSetting(2, 2, batch_size=3))
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_kept_workers_end_with_their_setting(kind: type) -> None:
    loader = kind(list(range(8)), batch_size=4, num_workers=1, persistent_workers=True)
    assert sizes(loader) == [4, 4]
    kept = loader._iterator
    put_into(loader, setting_of(loader))  # as at each epoch: nothing changes
    assert loader._iterator is kept
    put_into(loader, LoaderSetting(2, 2, persistent=True))
    assert loader._iterator is None
    assert sizes(loader) == [4, 4]
    put_into(loader, LoaderSetting(0))
    assert sizes(loader) == [4, 4] and loader._iterator is None


def test_threads_are_stokers() -> None:
    loader = stoker_loader.DataLoader(list(range(8)), batch_size=4)
    put_into(loader, LoaderSetting(1, None, threads=4))
    assert setting_of(loader).threads == 4 and loader.prefetch_factor >= 2
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(ValueError, match="this loader is torch's"):
        put_into(data.DataLoader([1]), LoaderSetting(1, threads=4))


def test_automatic_workers_are_switched_off() -> None:
    loader = stoker_loader.DataLoader(list(range(8)), num_workers="auto")
    put_into(loader, setting_of(loader))
    assert loader._stoker.auto is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({"batch_size": None}, "without batches"), ({"batch_sampler": [[0, 1], [2]]}, "by a list of its own")],
)
def test_batches_made_otherwise_keep_their_size(kind: type, arguments: dict[str, object], said: str) -> None:
    loader = kind([1, 2, 3], **arguments)
    with pytest.raises(ValueError, match=said):
        put_into(loader, LoaderSetting(0, batch_size=8))
    put_into(loader, LoaderSetting(1, 2))
    assert loader.num_workers == 1


def test_override_changes_the_loader_that_is_meant() -> None:
    class Rows(data.Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return index

    override = Override.of_text(Override(LoaderSetting(2, 2), "train.py:3", "Rows").as_text())
    for dataset, site, workers in ((Rows(), "train.py:3", 2), (Rows(), "train.py:4", 0), ([1], "train.py:3", 0)):
        loader = data.DataLoader(dataset)
        override(loader, site)
        assert loader.num_workers == workers


def test_arguments_are_those_of_the_constructor() -> None:
    assert LoaderSetting(0, None, 1, 32).arguments == {"batch_size": 32, "num_workers": 0}
    assert LoaderSetting(2, 4, 8, None, True).arguments == {
        "num_workers": 2,
        "prefetch_factor": 4,
        "threads_per_worker": 8,
        "persistent_workers": True,
    }
