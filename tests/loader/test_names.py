"""Names of users' objects: those that torch's loader does not use run only where the class offers them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.datasets.gather import describe, gatherer
from stoker.errors import SamplerError, StateError

torch = pytest.importorskip("torch")
TorchLoader = torch.utils.data.DataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.* does not share its samples out"),
    pytest.mark.filterwarnings("ignore:.* cannot say where it stands. to resume it"),
]

WORKERS: list[dict[str, Any]] = [
    {},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
]
EVERYWHERE = pytest.mark.parametrize("workers", WORKERS, ids=str)


def lists(batches: Any) -> list[Any]:
    return [batch.tolist() if hasattr(batch, "tolist") else batch for batch in batches]


def both(make: Any, epochs: int = 2, **settings: Any) -> tuple[list[Any], list[Any]]:
    """Returns the epochs of torch's loader and of Stoker's, both with the arguments that `make` returns."""
    given = []
    for kind in (TorchLoader, stoker.DataLoader):
        loader = kind(**make(), **settings)
        given.append([lists(loader) for _ in range(epochs)])
    return given[0], given[1]


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("a method of the user's was called")


class Mixin:
    """All the names that Stoker knows and torch does not, with another meaning."""

    @property
    def epoch(self) -> Any:
        raise AssertionError("a property of the user's was read")

    _epoch = current_epoch = fingerprint = num_shards = generator = weights = lengths = labels = epoch
    set_epoch = shard = order = batches = gather = gather_layout = describe = position = refuse


class Photos(Mixin, stoker.Dataset[int]):
    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> int:
        return index * 10


class Stream(Mixin, stoker.IterableDataset[int]):
    shards_itself = True

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        return iter(range(6)[info.id :: info.num_workers] if info is not None else range(6))


class Backwards(Mixin, stoker.Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(6, -1, -1))

    def __len__(self) -> int:
        return 7


class Pairs(Backwards):
    def __iter__(self) -> Iterator[Any]:
        return iter([[6, 5], [1, 0]])

    def __len__(self) -> int:
        return 2


MADE: dict[str, Any] = {
    "dataset": lambda: {"dataset": Photos(), "batch_size": 3},
    "stream": lambda: {"dataset": Stream(), "batch_size": 2},
    "sampler": lambda: {"dataset": Photos(), "sampler": Backwards(), "batch_size": 3},
    "batch sampler": lambda: {"dataset": Photos(), "batch_sampler": Pairs()},
    "inner sampler": lambda: {"dataset": Photos(), "batch_sampler": stoker.BatchSampler(Backwards(), 2, False)},
}


@EVERYWHERE
@pytest.mark.parametrize("what", MADE)
def test_names_that_torch_does_not_use_are_left_alone(what: str, workers: dict[str, Any]) -> None:
    theirs, ours = both(MADE[what], **workers)
    assert ours == theirs


@pytest.mark.parametrize("what", MADE)
def test_a_state_uses_no_name_that_is_not_offered(what: str) -> None:
    loader = stoker.DataLoader(**MADE[what]())
    whole = lists(loader)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    loader.load_state_dict(state)
    loader.describe()
    assert lists(loader) == whole[1:]


class Spying:
    """Notes each attribute that is asked for and not there."""

    asked: set[str]

    def __getattr__(self, name: str) -> Any:
        self.__dict__.setdefault("asked", set()).add(name)
        raise AttributeError(name)


class SpyingPhotos(Spying):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return index


class SpyingSampler(Spying):
    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


TORCHS_ATTRIBUTES = {"batch_size", "drop_last", "sampler", "num_replicas", "rank"}
TORCHDATAS = {"state_dict", "load_state_dict"}


def test_objects_are_asked_for_known_names_only() -> None:
    dataset, sampler, batches = SpyingPhotos(), SpyingSampler(), SpyingSampler()
    batches.__dict__["asked"] = set()
    for made in ({"sampler": sampler}, {"batch_sampler": [[1, 2]]}, {"shuffle": True}):
        loader = stoker.DataLoader(dataset, collate_fn=list, **made)
        list(loader)
        loader.state_dict()
        loader.describe()
    assert dataset.asked <= {"__getitems__", *TORCHDATAS}
    assert sampler.asked <= TORCHS_ATTRIBUTES | TORCHDATAS


class Curriculum(torch.utils.data.Dataset):  # type: ignore[misc]
    """Keeps no `epoch`: its difficulty follows from the number that its script says."""

    level = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return self.level

    def set_epoch(self, epoch: int) -> None:
        self.level = epoch * 10


@EVERYWHERE
def test_a_curriculum_is_its_scripts(workers: dict[str, Any]) -> None:
    """Also where the script resumes at its sixth epoch, in a loader that begins with its first."""
    given = []
    for kind in (TorchLoader, stoker.DataLoader):
        dataset = Curriculum()
        dataset.set_epoch(5)
        loader = kind(dataset, batch_size=4, **workers)
        given.append([])
        for epoch in (6, 7, 8):
            dataset.set_epoch(epoch)
            given[-1].append(lists(loader))
    assert given[0] == given[1]


class Scheduled(Curriculum):
    def set_epoch(self, epoch: int, of: int, *, steps: int) -> None:  # type: ignore[override]
        self.level = epoch * of + steps


class ScheduledSampler(stoker.Sampler[int]):
    data = 0

    def __iter__(self) -> Iterator[int]:
        return iter([self.data, 1])

    def set_epoch(self, epoch: int, total: int) -> None:
        self.data = epoch % total


@EVERYWHERE
def test_set_epoch_may_have_other_parameters(workers: dict[str, Any]) -> None:
    assert len(set(map(str, both(lambda: {"dataset": Scheduled()}, **workers)))) == 1
    for form in ("sampler", "batch_sampler"):
        given = ScheduledSampler() if form == "sampler" else stoker.BatchSampler(ScheduledSampler(), 1, False)
        theirs, ours = both(lambda: {"dataset": range(3), form: given}, **workers)  # noqa: B023 - used at once
        assert ours == theirs


def test_set_epoch_may_be_no_method() -> None:
    class Counted(Photos):
        set_epoch = np.zeros(2)

    theirs, ours = both(lambda: {"dataset": Counted(), "batch_size": 3})
    assert ours == theirs


def test_a_batch_sampler_hands_an_epoch_on_where_it_is_offered() -> None:
    """torch's has no `set_epoch`, so that frameworks call the sampler's once."""

    class Offering(ScheduledSampler):
        stoker_protocol = True
        told = None

        def set_epoch(self, epoch: int) -> None:  # type: ignore[override]
            self.told = epoch

    inner = Offering()
    stoker.BatchSampler(inner, 2, False).set_epoch(3)
    stoker.BatchSampler(ScheduledSampler(), 2, False).set_epoch(3)
    assert inner.told == 3


class OddOrder(stoker.RandomSampler):
    """Derived from one of ours, whose `order` it does not mean."""

    order = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[int]:
        return iter([2, 0])

    def __len__(self) -> int:
        return 2


class Named(stoker.WeightedRandomSampler):
    def order(self) -> str:  # type: ignore[override]
        return "by weight"


@pytest.mark.parametrize("settings", [{}, {"num_workers": 2}, {"seed": 3}], ids=str)
def test_a_subclass_of_a_sampler_may_use_our_names(settings: dict[str, Any]) -> None:
    loader = stoker.DataLoader(range(3), sampler=OddOrder(range(3)), **settings)
    assert lists(loader) == [[2], [0]]
    weighted = stoker.DataLoader(range(3), sampler=Named([0, 0, 1.0], 4), **settings)
    assert lists(weighted) == [[2]] * 4


def test_a_sampler_may_have_lengths_of_its_own() -> None:
    class Grouped(Backwards):
        lengths = labels = weights = [1] * 100

    theirs, ours = both(lambda: {"dataset": Photos(), "sampler": Grouped()})
    assert ours == theirs


def test_a_sampler_may_have_odd_numbers_for_names_of_torchs() -> None:
    class Odd(Pairs):
        batch_size = np.array([2, 2])
        drop_last = "never"
        num_replicas, rank = 2, "cuda:0"

    loader = stoker.DataLoader(Photos(), batch_sampler=Odd())
    assert lists(loader) == [[60, 50], [10, 0]]
    loader.load_state_dict(loader.state_dict())
    assert lists(loader) == [[60, 50], [10, 0]]


class NamedSubset(stoker.Subset[Any]):
    gather = describe = refuse

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.fingerprint = refuse


class GatheringTensors(stoker.TensorDataset):
    def gather(self, device: str) -> str:  # type: ignore[override]
        return device


@EVERYWHERE
def test_a_subclass_of_a_dataset_may_use_our_names(workers: dict[str, Any]) -> None:
    theirs, ours = both(lambda: {"dataset": NamedSubset(torch.arange(9), range(4)), "batch_size": 2}, **workers)
    assert ours == theirs
    first, second = both(lambda: {"dataset": GatheringTensors(torch.arange(4)), "batch_size": 4}, **workers)
    assert str(first) == str(second)
    assert gatherer(GatheringTensors(torch.arange(4))) is None
    assert gatherer(stoker.TensorDataset(torch.arange(4))) is not None


def test_a_subset_of_ours_describes_by_its_own_method() -> None:
    class Described(stoker.Dataset[int]):
        stoker_protocol = True

        def __len__(self) -> int:
            return 3

        def describe(self, index: int) -> str:
            return f"photo {index}"

    class Mine(stoker.Subset[Any]):
        """Defines none of the names: those of its base hold."""

    assert describe(Mine(Described(), [2]), 0) == "photo 2"
    assert describe(NamedSubset(Described(), [2]), 0) is None


class MyChain(stoker.ChainDataset[Any]):
    """A chain that was written for torch's class."""

    def __init__(self, datasets: Any) -> None:
        super().__init__(datasets)
        self.num_shards = 4

    def __iter__(self) -> Any:
        return (sample * 10 for sample in super().__iter__())

    set_epoch = shard = refuse


class Doubled(stoker.ChainDataset[Any]):
    def __iter__(self) -> Any:
        return (sample * 2 for sample in super().__iter__())


def sharded(length: int) -> Any:
    from stoker.testing.streams import Numbers

    return Numbers(0, length, num_shards=4)


@EVERYWHERE
def test_a_subclass_of_a_chain_keeps_its_samples(workers: dict[str, Any]) -> None:
    """Its shards would be those of a plain chain."""
    for kind, factor in ((MyChain, 10), (Doubled, 2)):
        loader = stoker.DataLoader(kind([sharded(5), sharded(3)]), batch_size=None, **workers)
        expected = [sample * factor for sample in itertools.chain(range(5), range(3))]
        assert [sorted(map(int, loader)) for _ in range(2)] == [sorted(expected)] * 2


def test_a_subclass_of_a_filter_keeps_its_samples() -> None:
    class Tenfold(stoker.FilterDataset[int]):
        def __iter__(self) -> Any:
            return (sample * 10 for sample in super().__iter__())

    loader = stoker.DataLoader(Tenfold(sharded(6), bool), batch_size=None, num_workers=2)
    assert sorted(map(int, loader)) == [10, 20, 30, 40, 50]


def test_combinators_hand_an_epoch_on_where_it_is_offered() -> None:
    stoker.MapDataset(Scheduled(), abs).set_epoch(3)
    stoker.ChainDataset([Stream()]).set_epoch(3)
    inner = Curriculum()
    inner.__class__ = type("Offering", (Curriculum,), {"stoker_protocol": True})
    stoker.MapDataset(inner, abs).set_epoch(3)
    assert inner.level == 30


class Offered(stoker.IterableDataset[int]):
    """Says that its methods are meant for Stoker."""

    stoker_protocol = True
    epoch = 0
    num_shards = 2

    def __init__(self, numbers: Any = range(6)) -> None:
        self.numbers = numbers

    def __iter__(self) -> Iterator[int]:
        return iter([100 * self.epoch + number for number in self.numbers])

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def shard(self, num_shards: int, index: int) -> Offered:
        part = Offered(self.numbers[index::num_shards])
        part.epoch = self.epoch
        return part

    def fingerprint(self) -> str:
        return "six numbers"


@pytest.mark.filterwarnings("error:.* does not share its samples out")
def test_a_class_that_offers_its_methods_is_asked() -> None:
    loader = stoker.DataLoader(Offered(), batch_size=None, num_workers=2)
    assert [sorted(map(int, loader)) for _ in range(2)] == [[*range(6)], [*range(100, 106)]]
    assert loader.state_dict()["kind"]["fingerprint"] == "six numbers"


def test_a_subclass_may_take_the_offer_back() -> None:
    class Not(Offered):
        stoker_protocol = False
        set_epoch = shard = fingerprint = refuse  # type: ignore[assignment]

    loader = stoker.DataLoader(Not(), batch_size=None, num_workers=2)
    assert [sorted(map(int, loader)) for _ in range(2)] == [[*range(6)]] * 2
    assert "fingerprint" not in loader.state_dict()["kind"]


# States: their names are torchdata's, and what they raise is for the caller who asks


class Stateful:
    def state_dict(self) -> Any:
        raise RuntimeError("not now")

    def load_state_dict(self, state: Any) -> None:
        raise RuntimeError("never")


class StatefulSampler(Stateful, stoker.Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([2, 0, 1])


class StatefulIterator(Stateful):
    def __init__(self) -> None:
        self.numbers = iter([2, 0, 1])

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        return next(self.numbers)


class IteratedSampler(stoker.Sampler[int]):
    def __iter__(self) -> Any:
        return StatefulIterator()


class StatefulStream(Stateful, stoker.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([2, 0, 1])


class IteratedStream(stoker.IterableDataset[int]):
    def __iter__(self) -> Any:
        return StatefulIterator()


class AskingStream(StatefulStream):
    """Its `state_dict` has parameters, as litdata's."""

    def state_dict(self, given: int) -> Any:  # type: ignore[override]
        return {"given": given}


class NoMethods(StatefulStream):
    """The names are no methods."""

    state_dict = load_state_dict = None  # type: ignore[assignment]


RAISING: dict[str, Any] = {
    "sampler": lambda: {"dataset": range(3), "sampler": StatefulSampler()},
    "sampler in a batch sampler": lambda: {
        "dataset": range(3), "batch_sampler": torch.utils.data.BatchSampler(StatefulSampler(), 1, False),
    },
    "sampler's iterator": lambda: {"dataset": range(3), "sampler": IteratedSampler(), "batch_size": None},
    "stream": lambda: {"dataset": StatefulStream()},
    "stream's iterator": lambda: {"dataset": IteratedStream()},
    "stream that wants to know": lambda: {"dataset": AskingStream()},
}  # fmt: skip


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1}], ids=str)
@pytest.mark.parametrize("what", RAISING)
def test_a_state_that_cannot_be_said_does_not_end_an_epoch(what: str, workers: dict[str, Any]) -> None:
    theirs, ours = both(RAISING[what], **workers)
    assert ours == theirs
    loader = stoker.DataLoader(**RAISING[what](), **workers)
    iterator = iter(loader)
    first = next(iterator)
    with pytest.raises(StateError, match=r"cannot say where it stands.*(not now|state_dict)"):
        loader.state_dict()
    assert lists([first, *iterator]) == ours[0]


def test_a_stream_may_have_attributes_of_the_names_of_states() -> None:
    theirs, ours = both(lambda: {"dataset": NoMethods()})
    assert ours == theirs
    loader = stoker.DataLoader(NoMethods())
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(loader.state_dict())
    assert lists(loader) == [[0], [1]]


# A library's set_epoch: called for scripts that forget it, and never against those that do not

CALLS: list[list[int | None]] = [
    [0, 1, 2, 3],
    [6, 7, 8],
    [5, 5, 0, 0, 5],
    [7, None, None, 2, None],
    [0, 3, None],
]


@pytest.mark.parametrize("calls", CALLS, ids=str)
@pytest.mark.parametrize("form", ["sampler", "batch_sampler"])
@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_a_distributed_sampler_stays_where_its_script_sets_it(calls: Any, form: str, workers: dict[str, Any]) -> None:
    given: list[list[Any]] = []
    for kind in (TorchLoader, stoker.DataLoader):
        sampler = torch.utils.data.DistributedSampler(range(12), 2, 1)
        made = sampler if form == "sampler" else torch.utils.data.BatchSampler(sampler, 1, False)
        loader = kind(range(12), **{form: made}, **workers)
        given.append([])
        for number in calls:
            if number is not None:
                sampler.set_epoch(number)
            given[-1].append(lists(loader))
    assert given[0] == given[1]


def test_distributed_sampler_advances_without_set_epoch() -> None:
    loader = stoker.DataLoader(range(12), sampler=torch.utils.data.DistributedSampler(range(12), 2, 1))
    alone, expected = torch.utils.data.DistributedSampler(range(12), 2, 1), []
    for number in range(3):
        alone.set_epoch(number)
        expected.append([[index] for index in alone])
    assert [lists(loader) for _ in range(3)] == expected


def test_subclass_of_distributed_sampler_keeps_its_set_epoch() -> None:
    class Staged(torch.utils.data.DistributedSampler):  # type: ignore[misc]
        def set_epoch(self, epoch: int, stage: int) -> None:
            self.epoch = 10 * stage + epoch

    theirs, ours = both(lambda: {"dataset": range(8), "sampler": Staged(range(8), 2, 0)})
    assert ours == theirs


def test_an_order_that_is_not_offered_cannot_be_shared_out() -> None:
    with pytest.raises(SamplerError, match="stoker_protocol = True"):
        stoker.DataLoader(range(7), sampler=Backwards(), distributed="pad", num_replicas=2, rank=0)
