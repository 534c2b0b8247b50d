"""Draws the numbers of an epoch from their generators, each at the point at which torch's loader draws it.

The table of these points is in `docs/design/06-order-and-state.md`. With `seed=` or `distributed=` nothing is drawn.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker._core.protocol import asked
from stoker.loader._epoch import epoch
from stoker.loader._epoch.epoch_counter import Coming
from stoker.loader._job import datapipes
from stoker.loader._random.generators import global_generators, loaded_torch, mix, stream_of
from stoker.loader._state.schema import Place
from stoker.samplers.sequential import SequentialSampler

if TYPE_CHECKING:
    from stoker.loader._epoch.epoch_counter import EpochCounter
    from stoker.loader._options.loader_options import LoaderOptions

ORDER, BOTH = 1, 2
"""Values of `Place.undrawn`: the order's number, or both the seed and the order's number, are not drawn yet."""


class EpochSeed:
    """The seed of one epoch, and the number of its order.

    Each is drawn once. A number that is known before its draw (from a loaded state, or because `state_dict()` has found
    it ahead) replaces the drawn one; the generator advances all the same.

    Args:
        options: of the loader.
        place: start of the epoch.
        root: in later epochs of persistent workers, the seed of their first epoch; no seed is drawn then.
        coming: numbers that `state_dict()` has found ahead of their draw.

    Attributes:
        is_fixed: whether nothing is drawn, with `seed=` or `distributed=`.
    """

    def __init__(self, options: LoaderOptions, place: Place, root: int | None, coming: Coming | None) -> None:
        self.is_fixed = fixed = epoch.is_fixed(options)
        fresh = place.seed is None
        self._options = options
        self._root = root
        self._known = place
        self._coming = coming
        self.needs_seed = not fixed and (fresh or place.undrawn == BOTH)
        self.needs_order = not fixed and draws_order(options) and (fresh or place.undrawn >= ORDER)
        self._seed = None if self.needs_seed else place.seed
        self._order = None if self.needs_order else place.order

    @property
    def seed(self) -> int | None:
        """Returns the epoch's seed; None if it follows from `seed=` or earlier epochs, or is not drawn yet."""
        return self._seed

    def draw_seed(self) -> None:
        """Draws the epoch's seed if it is not drawn yet: at `iter()`, between two calls of the sampler."""
        if not self.needs_seed:
            return
        self.needs_seed = False
        if self._root is not None:
            self._seed = self._known.seed
            return
        coming = self._coming
        if coming is not None and (coming.seed is None or any_reseeded(self._options, coming.stood)):
            coming = self._coming = None
        drawn = draw(self._options.generator)
        self._seed = _first(self._known.seed, coming and coming.seed, drawn)

    def draw_order(self) -> None:
        """Draws the order's number if it is not drawn yet: when torch's sampler yields its first index."""
        if not self.needs_order:
            return
        self.needs_order = False
        coming = self._coming
        if coming is not None and any_reseeded(self._options, coming.stood):
            coming = None
        drawn = draw(generator_of_order(self._options))
        self._order = _first(self._known.order, coming and coming.order, drawn)
        if datapipes.is_iter(self._options.dataset) and self._order is not None:
            self._order = datapipes.agreed(self._order)

    def find_order(self) -> None:
        """Finds the order's number ahead of its draw."""
        if self.needs_order and self._known.order is None and (self._coming is None or self._coming.order is None):
            _, order = find_seeds(self._options, seed=False, order=True)
            self._coming = Coming(0, None, order, standing(self._options))

    def at(self, place: Place, number: int) -> Place:
        """Returns a place with the known numbers of epoch `number`, and the number of draws still to make."""
        seed = self._seed
        if self._root is not None and seed is None:
            seed = later_seed(self._root, number)
        coming = None if self._coming is None else self._coming.order
        order = _first(self._order, self._known.order, coming)
        undrawn = BOTH if self.needs_seed else ORDER if self.needs_order and order is not None else 0
        return place._replace(seed=seed, order=order, undrawn=undrawn)


def _first(*numbers: int | None) -> int | None:
    return next((number for number in numbers if number is not None), None)


def later_seed(root: int, number: int) -> int:
    """The seed of a later epoch of persistent workers: torch draws none."""
    return mix(root, number) >> 1


def draws_order(options: LoaderOptions) -> bool:
    """Whether the order of each epoch follows from a number of its own: also what an IterDataPipe draws."""
    if datapipes.is_iter(options.dataset):
        return True
    if options.batches_per_epoch is not None or not epoch.is_computed(options):
        return False
    known = epoch.knower(options)
    return not isinstance(known, SequentialSampler) and asked(known, "shuffle", True) is not False


def generator_of_order(options: LoaderOptions) -> Any:
    """Returns the generator from which torch's sampler draws the order; None for the global one."""
    return options.generator if epoch.sampler_of_indices(options) is options.own_sampler else None


def draw(generator: Any) -> int:
    """Returns 63 bits from a generator, else from torch's global generator if torch is loaded, else from NumPy's."""
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(2**63 - 1))
    torch = sys.modules.get("torch")
    if torch is None:
        return int(np.random.randint(2**63 - 1, dtype=np.int64))
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def find_seeds(options: LoaderOptions, *, seed: bool, order: bool) -> tuple[int | None, int | None]:
    """Returns the numbers that will be drawn next, and leaves the generators unchanged."""
    streams = [stream_of(generator, salt=0, lasting=True) for generator in _generators(options)]
    before = [(stream, stream.state()) for stream in streams if stream is not None]
    try:
        return draw(options.generator) if seed else None, draw(generator_of_order(options)) if order else None
    finally:
        for stream, state in before:
            stream.restore(state)


def standing(options: LoaderOptions) -> tuple[Any, ...]:
    """Returns the states of the generators from which the loader draws."""
    return tuple(_stands(generator) for generator in _generators(options))


def any_reseeded(options: LoaderOptions, before: tuple[Any, ...]) -> bool:
    """Returns whether, since `before`, a generator has been seeded or set back, and not only drawn from."""
    now = _generators(options)
    return len(now) != len(before) or any(map(_is_reseeded, now, before))


def _generators(options: LoaderOptions) -> list[Any]:
    common = list(global_generators().values())
    default = common[-1] if loaded_torch() is not None else global_generators()["NumPy"]
    generators = [options.generator, generator_of_order(options)]
    return list({id(each): each for each in (default if one is None else one for one in generators)}.values())


def _stands(generator: Any) -> Any:
    torch = loaded_torch()
    if torch is not None and isinstance(generator, torch.Generator):
        return generator.initial_seed(), generator.get_state().numpy().tobytes()
    stream = stream_of(generator, salt=0, lasting=True)
    return None if stream is None else stream.state()


def _is_reseeded(generator: Any, before: Any) -> bool:
    now, torch = _stands(generator), loaded_torch()
    if now == before:
        return False
    if torch is None or not isinstance(generator, torch.Generator):
        return True  # indistinguishable from a draw in other generators
    if now[0] != before[0]:
        return True
    fresh = torch.Generator(generator.device).manual_seed(now[0])
    return bool(now[1] == fresh.get_state().numpy().tobytes() or _is_set_back(now[1], before[1]))


def _is_set_back(now: bytes, before: bytes) -> bool:
    """Returns whether torch's CPU generator has moved back within its block of 624 numbers.

    The state holds seed and flags, then the place in the block, then the block.
    """
    if len(now) != len(before) or now[24:5016] != before[24:5016]:
        return False
    return int.from_bytes(now[16:24], sys.byteorder) < int.from_bytes(before[16:24], sys.byteorder)


def seeds_ahead(options: LoaderOptions, epochs: EpochCounter, number: int, place: Place, keeps_workers: bool) -> Place:
    """Returns the start of the next epoch, with the numbers that the loader will draw for it.

    The loader uses these numbers unless a generator is reseeded before.
    """
    if epoch.is_fixed(options) or place.seed is not None:
        return place
    root = epochs.root if keeps_workers else None
    coming = epochs.coming
    if coming is None or coming.epoch != number or any_reseeded(options, coming.stood):
        seed, order = find_seeds(options, seed=root is None, order=draws_order(options))
        coming = epochs.coming = Coming(number, seed, order, standing(options))
    if root is not None:
        undrawn = 0 if coming.order is None else ORDER
        return place._replace(seed=later_seed(root, number), order=coming.order, undrawn=undrawn, root=root)
    return place._replace(seed=coming.seed, order=coming.order, undrawn=BOTH)
