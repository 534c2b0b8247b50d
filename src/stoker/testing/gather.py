"""Test suite for datasets that gather: the batch equals the collated samples, bit for bit, without side effects.

A test module subclasses the suite; the dataset has at least three samples:

    @pytest.mark.parametrize("dataset", [Embeddings("train"), Embeddings("test")])
    class TestEmbeddings(GatherSuite):
        pass

The suite needs only pytest's collection. It also compares torch tensors if torch is loaded.
"""

from __future__ import annotations

import pickle
import random
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from stoker import collate
from stoker.collate.tensors import is_tensor
from stoker.datasets.gather import gatherer, leaves_of, mapped
from stoker.extend import Gathers


class GatherSuite:
    """Tests of one dataset, which the subclass provides as `dataset`."""

    negative: ClassVar[bool] = True
    """Whether `dataset[-1]` is its last sample."""

    def gathers(self, dataset: Any) -> Gathers:
        """Returns the object that gathers for the dataset."""
        found = gatherer(dataset)
        assert found is not None, (
            f"{type(dataset).__name__} offers no gather(): the method or stoker_protocol = True is missing, or a "
            "subclass overrides only how samples are fetched"
        )
        assert found.gather_layout() is not None, f"{type(dataset).__name__}.gather_layout() says that it cannot gather"
        return found

    def batches(self, dataset: Any) -> Iterator[list[int]]:
        """Yields indices to gather: in order, not in order, once and several times, from both ends, a single one."""
        length, draw = len(dataset), random.Random(0)
        yield list(range(min(length, 64)))
        yield list(reversed(range(min(length, 64))))
        yield [draw.randrange(length) for _ in range(64)]
        yield [length - 1, 0, length - 1, length // 2, 0]
        yield [0]
        yield [length - 1]
        if self.negative:
            yield [-1, 0, -length, 1]
            yield [draw.randrange(-length, length) for _ in range(64)]

    def test_it_gives_the_collated_samples(self, dataset: Any) -> None:
        found = self.gathers(dataset)
        kinds: list[Any] = [collate.numpy_collate]
        if "torch" in sys.modules:
            kinds += [collate.default_collate, collate.deferred_collate]
        for collate_fn in kinds:
            batches = collate.gathering(collate_fn, dataset, found)
            assert batches is not None
            for indices in self.batches(dataset):
                whole = batches(indices)
                if whole is not collate.NOT_GATHERED:
                    expected = collate_fn([dataset[index] for index in indices])
                    different = list(differences(whole, expected))
                    assert not different, f"samples {indices}: {different}"

    def test_some_batches_are_gathered(self, dataset: Any) -> None:
        found = self.gathers(dataset)
        assert found.gather(np.arange(len(dataset)), out_for(found, len(dataset))) is None

    def test_a_batch_can_be_gathered_in_parts(self, dataset: Any) -> None:
        found, indices = self.gathers(dataset), np.arange(len(dataset))[::-1].copy()
        whole, parts = out_for(found, len(indices)), out_for(found, len(indices))
        if found.gather(indices, whole) is NotImplemented:
            return
        for start, stop in ((0, 1), (1, 2), (2, len(indices))):
            part = mapped(lambda leaf, rows=slice(start, stop): leaf[rows], parts)  # type: ignore[misc]
            if found.gather(indices[start:stop], part) is NotImplemented:
                return
        assert not list(differences(parts, whole))

    def test_it_leaves_alone_what_is_not_its_own(self, dataset: Any) -> None:
        found, indices = self.gathers(dataset), np.arange(len(dataset))
        out = out_for(found, len(indices))
        given, states = [*map(id, leaves_of(out))], generators()
        found.gather(indices, out)
        assert [*map(id, leaves_of(out))] == given, "a leaf of `out` was replaced"
        assert indices.tolist() == list(range(len(dataset))), "the indices were changed"
        assert generators() == states, "random numbers were drawn: samples would not be reproducible"

    def test_it_keeps_nothing(self, dataset: Any) -> None:
        found, indices = self.gathers(dataset), np.arange(len(dataset))
        first, owners = lent(out_for(found, len(indices)))
        found.gather(indices, first)
        before = mapped(copied, first)
        found.gather(indices[::-1].copy(), out_for(found, len(indices)))
        assert not list(differences(mapped(copied, first), before)), (
            "the next call changed the result of an earlier one"
        )
        del first
        assert not any(owner() is not None for owner in owners), "`out`, or a view of it, is kept after the call"

    def test_indices_outside_are_refused(self, dataset: Any) -> None:
        found = self.gathers(dataset)
        for outside in (len(dataset), -len(dataset) - 1):
            try:
                answer = found.gather(np.array([0, outside]), out_for(found, 2))
            except (IndexError, ValueError):
                continue
            assert answer is NotImplemented, f"index {outside} was accepted with {len(dataset)} samples"

    def test_a_copy_of_it_gathers_alike(self, dataset: Any) -> None:
        copies = pickle.loads(pickle.dumps(dataset, 5))
        there, here = self.gathers(copies), self.gathers(dataset)
        batches = [out_for(found, len(dataset)) for found in (there, here)]
        for found, out in zip((there, here), batches, strict=True):
            if found.gather(np.arange(len(dataset)), out) is NotImplemented:
                return
        assert not list(differences(*batches))


def out_for(found: Gathers, count: int) -> Any:
    """Returns an `out` for `count` samples, filled with values that no test expects."""

    def rows(leaf: Any) -> Any:
        if is_tensor(leaf):
            return leaf.new_full((count, *leaf.shape[1:]), 77)
        return np.full((count, *leaf.shape[1:]), 77, leaf.dtype)

    return mapped(rows, found.gather_layout())


def lent(out: Any) -> tuple[Any, list[weakref.ref[Any]]]:
    """Returns the same `out`, with views as leaves, and weak references to the owners of their memory, which live as
    long as any view.
    """
    owners = []

    def view(leaf: Any) -> Any:
        owner = copied(leaf)
        owners.append(weakref.ref(owner))
        if not is_tensor(leaf):
            return owner[...]
        if not owner.size:  # an empty array has no memory to view
            return leaf
        return sys.modules["torch"].from_numpy(owner).view(leaf.dtype).reshape(leaf.shape)

    return mapped(view, out), owners


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Yields the differences of two batches: in structure, kinds of leaves, dtypes, shapes, or bytes."""
    if type(one) is not type(other):
        yield f"{path}: {type(one)} and {type(other)}"
    elif isinstance(one, np.ndarray) or is_tensor(one):
        if one.dtype != other.dtype or one.shape != other.shape or copied(one).tobytes() != copied(other).tobytes():
            yield f"{path}: {one!r} and {other!r}"
    elif isinstance(one, Mapping):
        if list(one) != list(other):
            yield f"{path}: keys {list(one)} and {list(other)}"
        for key in one.keys() & other.keys():
            yield from differences(one[key], other[key], f"{path}[{key!r}]")
    elif isinstance(one, Sequence) and not isinstance(one, (str, bytes)):
        if len(one) != len(other):
            yield f"{path}: {len(one)} and {len(other)} fields"
        for place, pair in enumerate(zip(one, other, strict=False)):
            yield from differences(*pair, f"{path}[{place}]")
    elif hasattr(one, "__dict__"):
        yield from differences(vars(one), vars(other), f"{path}.")
    elif one != other:
        yield f"{path}: {one!r} and {other!r}"


def copied(leaf: Any) -> Any:
    """Returns a leaf's values as an array of its own; a tensor becomes an array of bytes."""
    if not is_tensor(leaf):
        return np.array(leaf, subok=True)
    flat = leaf.detach().contiguous().clone().reshape(-1)
    return flat.view(sys.modules["torch"].uint8).numpy()


def generators() -> list[Any]:
    """Returns the states of the global random generators."""
    states: list[Any] = [random.getstate(), str(np.random.get_state())]
    torch = sys.modules.get("torch")
    return states if torch is None else [*states, torch.get_rng_state().tolist()]
