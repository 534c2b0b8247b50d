from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker import collate
from stoker.collate import default
from stoker.collate._compiled import compiled as compiled_module
from stoker.collate._compiled import incremental as early_module
from stoker.collate._compiled.incremental import AT_ONCE, FILLED, HEAVY, LARGE, LOOKED_AT, MISFITS, WORTH, is_worth_it
from stoker.errors import MemoryLimitError

Shape = (LARGE // 4,)


class Pair(NamedTuple):
    image: Any
    label: Any


@dataclasses.dataclass(frozen=True)
class Record:
    image: Any
    name: str


def image(number: int, dtype: str = "f4") -> np.ndarray[Any, Any]:
    return np.full(Shape, number, dtype)


def in_tensors(sample: Any) -> Any:
    import torch

    if isinstance(sample, np.ndarray):
        return torch.from_numpy(sample)
    if isinstance(sample, dict):
        return {key: in_tensors(value) for key, value in sample.items()}
    if isinstance(sample, Record):
        return Record(in_tensors(sample.image), sample.name)
    if isinstance(sample, Pair):
        return Pair(*map(in_tensors, sample))
    return type(sample)(map(in_tensors, sample)) if isinstance(sample, (list, tuple)) else sample


SAMPLES: dict[str, Callable[[int], Any]] = {
    "bare": image,
    "tuple": lambda number: (image(number), number),
    "list": lambda number: [number, image(number), str(number)],
    "dict": lambda number: {"id": number, "image": image(number), "mask": image(-number, "i8")},
    "named": lambda number: Pair(image(number), number / 2),
    "record": lambda number: Record(image(number), f"{number}"),
    "nested": lambda number: {"views": [(image(number), 1), (image(number + 1), 2)], "small": np.arange(3)},
    "beside what is general": lambda number: (image(number), OrderedDict(a=number), {"b": b"z"}),
}


@pytest.fixture(autouse=True)
def worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sample is slow enough."""
    monkeypatch.setattr(early_module, "WORTH", -1.0)


@pytest.fixture(params=["arrays", "tensors"])
def made_of(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    if request.param == "arrays":
        return lambda sample: sample
    pytest.importorskip("torch")
    return in_tensors


def bare(thing: Any) -> Any:
    """Records are not to be compared where they hold arrays."""
    if isinstance(thing, Record):
        return {"type": "Record", **vars(thing)}
    return list(map(bare, thing)) if type(thing) is list else thing


def started(fn: Any, samples: Sequence[Any], in_runs: bool = False) -> collate.Compiled:
    """A collation that knows what samples are like, and that these have memory of their own."""
    compiled = collate.compiling(fn)
    assert isinstance(compiled, collate.Compiled)
    call = compiled.rows if in_runs else compiled
    call(samples)
    compiled.begin(len(samples), None, run_of=len(samples) if in_runs else None)
    call(samples)
    compiled.end()
    return compiled


def collated(compiled: collate.Compiled, samples: Sequence[Any], lender: Any = None, in_runs: bool = False) -> Any:
    """As a worker does it: each sample is handed over as it comes."""
    keep = compiled.begin(len(samples), lender, run_of=len(samples) if in_runs else None)
    kept = list(samples) if keep is None else [keep(place, sample) for place, sample in enumerate(samples)]
    try:
        return (compiled.rows if in_runs else compiled)(kept)
    finally:
        compiled.end()


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("kind", SAMPLES)
def test_incremental_collation_gives_the_same_batch(kind: str, made_of: Any, assert_same: Any) -> None:
    make = SAMPLES[kind]
    samples = [made_of(make(number)) for number in range(4)]
    before = copy.deepcopy(samples)
    compiled = started(collate.default_collate, samples)
    assert_same(bare(collated(compiled, samples)), bare(collate.default_collate(samples)))
    assert_same(bare(samples), bare(before))


@pytest.mark.parametrize("kind", ["bare", "tuple", "list", "dict", "named", "record"])
def test_incremental_collation_gives_the_same_rows(kind: str, made_of: Any, assert_same: Any) -> None:
    samples = [made_of(SAMPLES[kind](number)) for number in range(4)]
    compiled = started(collate.default_collate, samples, in_runs=True)
    assert_same(bare(collated(compiled, samples, in_runs=True)), bare(compiled.rows(samples)))


@pytest.mark.parametrize("kind", SAMPLES)
def test_rows_are_written_once_where_the_batch_lies(kind: str, made_of: Any, slot: Any) -> None:
    samples = [made_of(SAMPLES[kind](number)) for number in range(4)]
    compiled = started(collate.default_collate, samples)
    keep = compiled.begin(4, slot)
    assert keep is not None
    kept = [keep(place, sample) for place, sample in enumerate(samples)]
    given, large = list(slot.given), [leaf for leaf in leaves_of(kept) if leaf.nbytes >= LARGE]
    assert large and all(map(slot.holds, large))
    batch = compiled(kept)
    assert all(size < LARGE for size in slot.given[len(given) :])
    assert all(slot.holds(leaf) for leaf in leaves_of(batch) if leaf.nbytes >= LARGE)


def leaves_of(thing: Any) -> list[Any]:
    if isinstance(thing, dict):
        return [leaf for value in thing.values() for leaf in leaves_of(value)]
    if isinstance(thing, Record):
        return leaves_of(thing.image)
    if isinstance(thing, (list, tuple)):
        return [leaf for value in thing for leaf in leaves_of(value)]
    return [thing] if hasattr(thing, "nbytes") else []


def test_a_sample_is_forgotten_when_the_next_is_made() -> None:
    arrays: list[weakref.ref[Any]] = []
    samples = [(image(number), number) for number in range(8)]
    compiled = started(collate.numpy_collate, samples)
    keep, kept = compiled.begin(8, None), []
    assert keep is not None
    for number in range(8):
        array = image(number)
        arrays.append(weakref.ref(array))
        kept.append(keep(number, (array, number)))
        del array
        assert arrays[-1]() is None
    assert [label for _, label in kept] == list(range(8))


def test_nothing_is_kept_of_lent_memory(slot: Any) -> None:
    samples = [(image(number), number) for number in range(4)]
    compiled = started(collate.numpy_collate, samples)
    lent: list[weakref.ref[Any]] = []

    def lend(size: int) -> Any:
        part = np.empty(size, np.uint8)
        lent.append(weakref.ref(part))
        return part

    batch = collated(compiled, samples, lend)
    gc.disable()
    try:
        assert lent[0]() is not None
        del batch
        assert all(part() is None for part in lent)
        keep = compiled.begin(4, lend)
        assert keep is not None
        keep(0, samples[0])  # the next one raised
        compiled.end()
        del keep
        assert all(part() is None for part in lent)
    finally:
        gc.enable()


ODD: list[Callable[[], Any]] = [
    lambda: (image(9, "f8"), 1),
    lambda: (image(9, ">f4"), 1),
    lambda: (image(9)[:-1], 1),
    lambda: (image(9).reshape(2, -1), 1),
    lambda: (np.ma.masked_array(image(9)), 1),
    lambda: (image(9), 1.5),
    lambda: (image(9), "one"),
    lambda: (image(9),),
    lambda: [image(9), 1],
    lambda: Pair(image(9), 1),
    lambda: (None, 1),
    lambda: {"a": image(9)},
    lambda: None,
]


@given(odd=st.sampled_from(range(len(ODD))), place=st.integers(0, 4), second=st.integers(0, 4))
def test_an_odd_sample_is_the_general_paths(odd: int, place: int, second: int, assert_same: Any) -> None:
    usual = [(image(number), number) for number in range(5)]
    compiled = started(collate.numpy_collate, usual)
    samples = list(usual)
    samples[place] = ODD[odd]()
    samples[second] = ODD[odd]()
    expected, got = (
        outcome(lambda: collate.numpy_collate(samples)),
        outcome(lambda: collated(compiled, samples)),
    )
    if isinstance(expected, tuple) and isinstance(expected[0], type):
        assert got == expected
    else:
        assert_same(got, expected)
    assert_same(collated(compiled, usual), collate.numpy_collate(usual))


def test_odd_tensors(assert_same: Any) -> None:
    torch = pytest.importorskip("torch")
    usual = torch.ones(Shape)
    odd_ones = [
        usual.double(),
        usual[:-1],
        usual.clone().requires_grad_(),
        torch.nn.Parameter(usual.clone()),
        usual.to("meta"),
        usual.to_sparse(),
        usual.numpy(),
    ]
    for odd in odd_ones:
        compiled = started(collate.default_collate, [usual.clone() for _ in range(3)])
        samples = [usual.clone(), odd, usual.clone()]
        expected, got = (
            outcome(lambda samples=samples: collate.default_collate(samples)),
            outcome(lambda samples=samples, compiled=compiled: collated(compiled, samples)),
        )
        if isinstance(expected, tuple):
            assert got == expected
        else:
            assert got.requires_grad == expected.requires_grad
            assert_same(got.detach(), expected.detach())


def test_transposed_and_conjugated_values_are_the_same(assert_same: Any) -> None:
    torch = pytest.importorskip("torch")
    wide = [torch.randn(64, 128).t() for _ in range(3)]
    assert_same(collated(started(collate.default_collate, wide), wide), collate.default_collate(wide))
    complex_ones = [torch.randn(64, 128, dtype=torch.complex64).conj() for _ in range(3)]
    compiled = started(collate.default_collate, complex_ones)
    assert_same(collated(compiled, complex_ones), collate.default_collate(complex_ones))
    steps = [image(number)[::-1] for number in range(3)]
    assert_same(collated(started(collate.numpy_collate, steps), steps), collate.numpy_collate(steps))


def test_samples_that_are_made_again_or_left_out(assert_same: Any, slot: Any) -> None:
    samples = [(image(number), number) for number in range(6)]
    compiled = started(collate.numpy_collate, samples)
    slot.given.clear()
    keep = compiled.begin(6, slot)
    assert keep is not None
    for place in (0, 1, 2):
        keep(place, samples[5])
    kept = [keep(place, samples[place]) for place in (0, 1, 3, 5)]
    batch = compiled(kept)
    assert [size for size in slot.given if size >= LARGE] == [6 * LARGE], "there was a gap between its rows"
    assert_same(batch, collate.numpy_collate([samples[place] for place in (0, 1, 3, 5)]))
    compiled.end()


def test_more_samples_than_planned_rows_are_collated(assert_same: Any) -> None:
    samples = [(image(number), number) for number in range(4)]
    compiled = started(collate.numpy_collate, samples)
    keep = compiled.begin(2, None)
    assert keep is not None
    kept = [keep(place, sample) for place, sample in enumerate(samples)]
    assert_same(compiled(kept), collate.numpy_collate(samples))


def test_no_sample_is_tried_after_one_that_does_not_fit() -> None:
    samples = [image(number) for number in range(3)]
    keep = started(collate.numpy_collate, samples).begin(3, None)
    assert keep is not None
    assert keep(0, samples[0]) is not samples[0]
    odd = image(1, "i2")
    assert keep(1, odd) is odd
    assert keep(2, samples[2]) is samples[2]


class Mine(np.ndarray[Any, Any]):
    pass


def test_an_array_of_another_class_is_that_classs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        collate.default_collate_fn_map, Mine, lambda batch, *, collate_fn_map: [type(value).__name__ for value in batch]
    )
    samples = [image(number) for number in range(3)]
    compiled = started(collate.numpy_collate, samples)
    assert collated(compiled, [sample.view(Mine) for sample in samples]) == ["Mine"] * 3


def test_a_shorter_batch(assert_same: Any, slot: Any) -> None:
    samples = [(image(number), number) for number in range(6)]
    compiled = started(collate.numpy_collate, samples)
    keep = compiled.begin(6, slot, travels=True)
    assert keep is not None
    batch = compiled([keep(place, sample) for place, sample in enumerate(samples[:2])])
    assert_same(batch, collate.numpy_collate(samples[:2]))
    assert slot.holds(batch[0])
    keep = compiled.begin(6, slot)  # lent, as memory is that stays here and is used again
    assert keep is not None
    batch = compiled([keep(place, sample) for place, sample in enumerate(samples[:2])])
    assert not slot.holds(batch[0])


def test_a_shorter_batch_keeps_no_more_than_it_shows(made_of: Any, assert_same: Any) -> None:
    samples = [made_of(image(number)) for number in range(6)]
    compiled = started(collate.default_collate, samples)
    keep = compiled.begin(6, None)
    assert keep is not None
    batch = compiled([keep(place, sample) for place, sample in enumerate(samples[:2])])
    assert_same(batch, collate.default_collate(samples[:2]))
    assert batch.untyped_storage().nbytes() == 2 * LARGE if hasattr(batch, "untyped_storage") else batch.base is None


def test_rows_in_another_order_are_not_taken_for_the_batch(assert_same: Any) -> None:
    samples = [(image(number), number) for number in range(4)]
    compiled = started(collate.numpy_collate, samples)
    keep = compiled.begin(4, None)
    assert keep is not None
    kept = [keep(place, sample) for place, sample in enumerate(samples)]
    for order in ([1, 0, 2, 3], [1, 2, 3], [0, 0, 1, 2]):
        assert_same(
            compiled([kept[place] for place in order]), collate.numpy_collate([samples[place] for place in order])
        )


def test_buffer_that_all_samples_share_stays_shared() -> None:
    buffer = image(0)
    compiled = collate.compiling(collate.numpy_collate)
    assert isinstance(compiled, collate.Compiled)
    for batch in range(3):
        keep = compiled.begin(4, None)
        assert (keep is None) == (batch > 0)  # the first batch finds it out
        samples = []
        for number in range(4):
            buffer[:] = number
            samples.append(buffer if keep is None else keep(number, buffer))
        assert (compiled(samples) == 3).all()
        compiled.end()


def test_overlapping_parts_of_one_buffer_are_not_copied() -> None:
    buffer = np.zeros(4 * LARGE, np.float32)
    compiled = collate.compiling(collate.numpy_collate)
    assert isinstance(compiled, collate.Compiled)
    for batch in range(3):
        keep = compiled.begin(4, None)
        assert (keep is None) == (batch > 0)
        parts = [buffer[number : number + LARGE // 4] for number in range(4)]
        assert keep is None or all(keep(number, part) is part for number, part in enumerate(parts))
        compiled(parts)
        compiled.end()
    compiled([buffer[number * LARGE // 4 :][: LARGE // 4] for number in range(4)])
    compiled.begin(4, None)
    compiled([buffer[number * LARGE // 4 :][: LARGE // 4] for number in range(4)])
    assert compiled.begin(4, None) is not None


def test_early_rows_that_never_fit_are_given_up() -> None:
    samples = [image(number) for number in range(3)]
    compiled = started(collate.numpy_collate, samples)
    asked: list[int] = []

    def lend(size: int) -> None:
        asked.append(size)

    for _ in range(20):
        keep = compiled.begin(3, lend)
        odd = [samples[0], samples[1].astype("f8").astype("f4")[::-1].view(Mine), samples[2]]
        compiled([keep(place, sample) for place, sample in enumerate(odd)] if keep else odd)
        compiled.end()
    assert len(asked) <= MISFITS


def test_memory_maps_are_written_once(tmp_path: Any, slot: Any) -> None:
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", image(number))
    samples = [np.load(tmp_path / f"{number}.npy", mmap_mode="r") for number in range(3)]
    compiled = started(collate.numpy_collate, samples)
    slot.given.clear()
    keep = compiled.begin(3, slot)
    assert keep is not None
    batch = compiled([keep(place, sample) for place, sample in enumerate(samples)])
    assert slot.given == [3 * LARGE] and (batch[:, 0] == [0, 1, 2]).all()


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("error", [MemoryLimitError("none left"), MemoryError("none left"), ValueError("none left")])
def test_no_sample_is_held_of_a_batch_beyond_the_memory(error: Exception, is_first: bool) -> None:
    samples = [(image(number), number) for number in range(4)]
    compiled = collate.Compiled("numpy") if is_first else started(collate.numpy_collate, samples)

    def refuses(size: int) -> Any:
        raise error

    keep = compiled.begin(4, refuses)
    assert keep is not None
    kept = [keep(place, sample) for place, sample in enumerate(samples)]
    assert kept[is_first:] == [None] * (4 - is_first)
    with pytest.raises(type(error), match="none left"):
        compiled(kept)
    compiled.end()
    assert (collated(compiled, samples)[1] == range(4)).all()


@pytest.mark.parametrize("in_runs", [False, True])
def test_refused_batch_keeps_no_samples_alive(in_runs: bool, slot: Any) -> None:
    """Not even in the frames of its error, which nothing but `gc` would free where they were part of a ring.

    A run of rows raises it at once: the samples that are not made yet need not be made.
    """
    compiled = collate.Compiled("numpy")
    held: list[weakref.ref[Any]] = []

    def refuses(size: int) -> Any:
        raise MemoryLimitError("none left")

    def made(keep: Any) -> list[Any]:
        samples = []
        for number in range(4):
            array = image(number)
            held.append(weakref.ref(array))
            samples.append(keep(number, (array, number)))
        return samples

    def job(lender: Any) -> Any:
        keep = compiled.begin(4, lender, travels=True, run_of=4 if in_runs else None)
        assert keep is not None
        return (compiled.rows if in_runs else compiled)(made(keep))

    gc.disable()
    try:
        with contextlib.suppress(MemoryLimitError):
            job(refuses)
        compiled.end()
        assert held and not any(one() for one in held)
        batch = job(slot)
        assert not any(one() for one in held)
    finally:
        gc.enable()
    assert slot.holds(batch[0]) and (batch[0][:, 0] == range(4)).all()


@pytest.mark.parametrize("in_runs", [False, True])
def test_the_first_batch_holds_its_first_sample_alone(in_runs: bool, slot: Any, assert_same: Any) -> None:
    compiled = collate.Compiled("numpy")
    keep = compiled.begin(8, slot, travels=True, run_of=8 if in_runs else None)
    assert keep is not None
    samples: list[Any] = []
    held: list[weakref.ref[Any]] = []
    for number in range(8):
        array = image(number)
        held.append(weakref.ref(array))
        samples.append(keep(number, (array, number)))
        del array
        assert [one() is None for one in held] == [False] + [True] * number
    batch = (compiled.rows if in_runs else compiled)(samples)
    assert [size for size in slot.given if size >= LARGE] == [8 * LARGE] and slot.holds(batch[0])
    assert_same(batch, collate.numpy_collate([(image(number), number) for number in range(8)]))
    compiled.end()
    del samples, keep
    assert held[0]() is None


@pytest.mark.parametrize("in_runs", [False, True])
def test_batch_of_changed_samples_is_written_as_they_come(in_runs: bool, slot: Any) -> None:
    """Of which the first is held, and no memory is asked for as if they were like those before."""
    compiled = collate.Compiled("numpy")
    for scale in 1, 2, 2, 1:
        slot.given.clear()
        keep = compiled.begin(4, slot, travels=True, run_of=4 if in_runs else None)
        assert keep is not None
        samples, held = [], []
        for number in range(4):
            array = np.full(Shape[0] * scale, number, "f4")
            held.append(weakref.ref(array))
            samples.append(keep(number, (array, number)))
            del array
        assert [one() is None for one in held[1:]] == [True] * 3
        batch = (compiled.rows if in_runs else compiled)(samples)
        assert [size for size in slot.given if size >= LARGE] == [4 * LARGE * scale] and slot.holds(batch[0])
        assert batch[0].shape == (4, Shape[0] * scale) and (batch[0] == np.arange(4)[:, None]).all()
        compiled.end()


@pytest.mark.parametrize("kind", SAMPLES)
def test_the_first_batch_is_the_same(kind: str, made_of: Any, assert_same: Any) -> None:
    samples = [made_of(SAMPLES[kind](number)) for number in range(4)]
    compiled = collate.compiling(collate.default_collate)
    assert isinstance(compiled, collate.Compiled)
    assert_same(bare(collated(compiled, samples)), bare(collate.default_collate(samples)))


@given(odd=st.sampled_from(range(len(ODD))), place=st.integers(0, 4))
def test_an_odd_sample_in_the_first_batch_is_the_general_paths(odd: int, place: int, assert_same: Any) -> None:
    samples: list[Any] = [(image(number), number) for number in range(5)]
    samples[place] = ODD[odd]()
    expected = outcome(lambda: collate.numpy_collate(samples))
    got = outcome(lambda: collated(collate.Compiled("numpy"), samples))
    if isinstance(expected, tuple) and isinstance(expected[0], type):
        assert got == expected
    else:
        assert_same(got, expected)


@pytest.mark.parametrize("places", [[0, 0, 1, 2], [0, 1, 0, 1, 2], [0, 1, 2, 0, 1, 2], [1, 2], [0, 2]])
def test_first_batch_with_remade_or_skipped_samples(places: list[int], assert_same: Any) -> None:
    compiled = collate.Compiled("numpy")
    keep = compiled.begin(3, None)
    assert keep is not None
    kept: dict[int, Any] = {}
    for turn, place in enumerate(places):
        kept[place] = keep(place, (image(turn), turn))
    turns = [len(places) - 1 - places[::-1].index(place) for place in sorted(kept)]
    assert_same(
        compiled([kept[place] for place in sorted(kept)]), collate.numpy_collate([(image(t), t) for t in turns])
    )


@pytest.mark.parametrize("in_runs", [False, True])
def test_heavy_batch_after_quick_ones_is_written_early(
    in_runs: bool, new_slot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = collate.Compiled("numpy")
    for scale, is_worthwhile in (16, False), (16, False), (32, True):
        monkeypatch.setattr(compiled_module, "is_worth_it", lambda *_, answer=is_worthwhile: answer)
        slot = new_slot()
        keep = compiled.begin(4, slot, travels=True, run_of=4 if in_runs else None)
        assert keep is not None
        samples, held = [], []
        for number in range(4):
            array = np.full(LOOKED_AT // 64 * scale, number, "f4")
            held.append(weakref.ref(array))
            samples.append(keep(number, array))
            del array
        assert [one() is None for one in held[1:]] == [is_worthwhile] * 3
        batch = (compiled.rows if in_runs else compiled)(samples)
        assert (slot.holds(batch) or not is_worthwhile) and (batch == np.arange(4)[:, None]).all()
        compiled.end()


def test_quick_samples_of_a_heavy_batch_are_worth_keeping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    size, count = HEAVY // 64, 64
    filled = AT_ONCE + size / FILLED
    assert is_worth_it(1.1 * filled, size, count) and not is_worth_it(0.9 * filled, size, count)
    assert not is_worth_it(0.9 * WORTH, size - 1, count)
    assert is_worth_it(1.1 * WORTH, LARGE, 2)


def test_interruption_passes_through_incremental_collation() -> None:
    def interrupted(size: int) -> Any:
        raise KeyboardInterrupt

    samples = [image(number) for number in range(4)]
    keep = started(collate.numpy_collate, samples).begin(4, interrupted)
    assert keep is not None
    with pytest.raises(KeyboardInterrupt):
        keep(0, samples[0])


@pytest.mark.parametrize(
    ("worth", "size", "count"),
    [(1e9, LARGE, 4), (-1.0, LARGE - 4, 4), (-1.0, LARGE, 1)],
    ids=["quick samples", "small samples", "one sample"],
)
def test_small_or_single_samples_are_not_written_early(
    monkeypatch: pytest.MonkeyPatch, worth: float, size: int, count: int
) -> None:
    monkeypatch.setattr(early_module, "WORTH", worth)
    samples = [np.zeros(size // 4, "f4") for _ in range(count)]
    assert started(collate.numpy_collate, samples).begin(count, None) is None


def test_functions_that_are_registered_meanwhile_are_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    samples = [torch.zeros(Shape) for _ in range(3)]
    compiled = started(collate.default_collate, samples)
    keep = compiled.begin(3, None)
    assert keep is not None
    kept = [keep(place, sample) for place, sample in enumerate(samples)]
    theirs = torch.utils.data._utils.collate.default_collate_fn_map
    monkeypatch.setitem(theirs, torch.Tensor, lambda batch, *, collate_fn_map: "the user's")
    assert compiled(kept) == "the user's"


def test_the_general_path_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [{"a": image(number), "b": (number, image(number))} for number in range(4)]
    compiled = started(collate.numpy_collate, samples)
    monkeypatch.setattr(default, "collated_by", lambda *_: pytest.fail("it was"))
    copies: list[int] = []
    monkeypatch.setattr(np, "concatenate", lambda *_, **__: copies.append(1))
    collated(compiled, samples)
    assert not copies
