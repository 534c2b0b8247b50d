"""An arena without memory, for tests of who decides about it."""

from __future__ import annotations

from stoker._engine.transport.arena import Slot, SpokenFor
from stoker.errors import MemoryLimitError


class Memory:
    """An arena of a given size in bytes. A slot that is put back twice is an error."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.taken: dict[int, Slot] = {}
        self.registered: set[int] = set()
        self._given = 0

    @property
    def left(self) -> int:
        return self.capacity - sum(slot.capacity for slot in self.taken.values())

    def can_give(self, count: int, size: int, spoken_for: SpokenFor = lambda: 0) -> bool:
        return self.left >= count * size

    def wanted(self, count: int, size: int) -> int:
        return count * size

    def take_free(self, size: int) -> Slot | None:
        return self.take(size) if size <= self.left else None

    def take(self, size: int, spoken_for: SpokenFor = lambda: 0) -> Slot:
        if size > self.left:
            raise MemoryLimitError("full")
        self._given += 1
        self.taken[self._given] = Slot(self._given, 0, size)
        return self.taken[self._given]

    def slot(self, number: int) -> Slot:
        return self.taken[number]

    def put_back(self, number: int) -> None:
        del self.taken[number]

    def trim(self, keep: int) -> None:
        pass

    def wrote(self, size: int) -> None:
        assert any(slot.capacity >= size for slot in self.taken.values())
