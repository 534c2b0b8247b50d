"""The rows of a query as dicts, read part by part over a connection that is opened again where it fails."""

from __future__ import annotations

import copy
import operator
import os
import sys
from collections.abc import Sequence
from typing import Any

from stoker.datasets.fingerprint import added
from stoker.datasets.stream import Stream, StreamIterator
from stoker.errors import QueryError, StateFormatError, StateMismatchError
from stoker.extend import OfWorker, ShardProgress, State, share_of, torchs_part
from stoker.sources.sql.connection import Connection, Selection, connect
from stoker.sources.sql.database import Row
from stoker.sources.sql.row_query import RowQuery, from_json, to_json


class QueryRows(Stream[dict[str, Any]]):
    """The rows of a query, as dicts."""

    def __init__(self, query: RowQuery, parts: int | list[Any]) -> None:
        self._query = query
        self._cuts = query.cuts(parts)
        self._numbers = range(len(self._cuts) + 1)

    @property
    def num_shards(self) -> int:
        return sys.maxsize if self._query.key is None else len(self._numbers)

    @property
    def filled_shards(self) -> int:
        """The number of shards that can have rows."""
        return len(self._numbers)

    def shard(self, num_shards: int, index: int) -> QueryRows:
        part = copy.copy(self)
        if self._query.key is not None:
            part._numbers = share_of(self._numbers, num_shards, index)
            return part
        if not isinstance(index, OfWorker):
            raise ValueError(
                f"{self._query.text!r} cannot be shared out among {num_shards} ranks, since it has no key: name a "
                "column of unique values by key="
            )
        part._numbers = self._numbers[index::num_shards]
        return part

    def _begin(self, state: State | None) -> StreamIterator[dict[str, Any]]:
        cuts = self._cuts if state is None else _cuts_in(state, self._cuts)
        progress = ShardProgress(torchs_part(self._numbers), len(self._cuts) + 1, state)
        return _RowIterator(self._query, cuts, progress)


def _cuts_in(state: State, cuts: list[Any]) -> list[Any]:
    """Returns the cuts that a state was taken with: those of the stream may have moved since, with the table."""
    shares = state.get("shards")
    saved = [share["cuts"] for share in shares.values() if "cuts" in share] if isinstance(shares, dict) else []
    if any(other != saved[0] for other in saved):
        raise StateMismatchError("the shares of the state were cut at different keys: they are of several streams")
    if saved and len(saved[0]) == len(cuts):
        return [from_json(cut) for cut in saved[0]]
    return cuts  # of a number that does not fit: ShardProgress says so


class _Place:
    """How far a part was read.

    Attributes:
        row: the last row that was given, or None. Without a key, of a state.
        rows: the number of rows that were given, without a key.
        mark: the checksum of the last, where a state is the only trace of it.
    """

    def __init__(self) -> None:
        self.row: Row | None = None
        self.key: Any = None
        self.rows = 0
        self.mark = 0

    @classmethod
    def of_state(cls, stored: Any, is_keyed: bool) -> _Place:
        place = cls()
        try:
            if is_keyed:
                (key,) = stored
                place.key = from_json(key)
            else:
                place.rows, place.mark = map(operator.index, stored)
        except (TypeError, ValueError) as error:
            raise StateFormatError(f"a place in a query was expected in a state, found {stored!r:.100}") from error
        return place

    def is_begun(self) -> bool:
        return self.key is not None or self.rows > 0

    def state(self, is_keyed: bool) -> list[Any]:
        return [to_json(self.key)] if is_keyed else [self.rows, self.checksum()]

    def checksum(self) -> int:
        return self.mark if self.row is None else added(self.row, 0)


class _RowIterator(StreamIterator[dict[str, Any]]):
    """Iterator of rows, at `_at` of the fetched rows `_fetched` of part `_number`, behind `_place`."""

    def __init__(self, query: RowQuery, cuts: list[Any], progress: ShardProgress) -> None:
        self._query = query
        self._cuts = cuts
        self._stored = [to_json(cut) for cut in cuts]
        self._progress = progress
        self._is_keyed = query.key is not None
        self._begun = {number: _Place.of_state(stored, self._is_keyed) for number, stored in progress.begun.items()}
        self._process = os.getpid()
        self._connection: Connection | None = None
        self._number: int | None = None
        self._place = _Place()
        self._failed = False  # whether the last request for rows did, at this place
        self._selection: Selection | None = None
        self._columns: list[str] = []
        self._fetched: Sequence[Row] = ()
        self._at = 0

    def __next__(self) -> dict[str, Any]:
        while self._number is not None or self._next_part():
            if self._at == len(self._fetched) and not self._fetch():
                self._end_part()
                continue
            row = self._fetched[self._at]
            self._at += 1
            return self._given(row)
        self._leave()
        raise StopIteration

    def state_dict(self) -> State:
        begun = dict(self._begun)
        if self._number is not None and self._place.is_begun():
            begun = {self._number: self._place} | begun
        stored = [(number, place.state(self._is_keyed)) for number, place in begun.items()]
        return self._progress.state(stored, **({"cuts": self._stored} if self._is_keyed else {}))

    def _given(self, row: Row) -> dict[str, Any]:
        place = self._place
        if self._is_keyed:
            key = row[self._key_column]
            if key is None or key == place.key:
                raise QueryError(
                    f"{self._query.text!r} selects a row with {self._query.key!r} = {key!r}, "
                    + ("which is no key" if key is None else "as in the row before: a key must be unique")
                )
            place.key = key
        else:
            place.row = row
            place.rows += 1
        self._failed = False
        return dict(zip(self._columns, row, strict=True))

    def _next_part(self) -> bool:
        while self._begun or self._progress.waiting:
            if self._begun:  # by this share, or by others before a change of the number of workers
                self._number = next(iter(self._begun))
                self._place = self._begun.pop(self._number)
            else:
                self._number = self._progress.waiting.popleft()
                self._place = _Place()
            self._failed = False
            if not self._is_empty(self._number):
                return True
            self._progress.finish(self._number)
        self._number = None
        return False

    def _is_empty(self, number: int) -> bool:
        return 0 < number < len(self._cuts) and bool(self._cuts[number - 1] == self._cuts[number])

    def _end_part(self) -> None:
        assert self._number is not None
        self._progress.finish(self._number)
        self._number = self._selection = None
        if not self._is_keyed and not self._place.rows:
            raise QueryError(f"{self._query.text!r} selects no rows of {self._query.database.shown}")

    def _fetch(self) -> bool:
        """Fetches the next rows of the part; returns whether there are any."""
        if self._process != os.getpid():  # a forked child has a connection that is its parent's
            self._leave()
            self._process = os.getpid()
        try:
            if self._selection is None:
                self._selection = self._opened()
            while self._at == len(self._fetched):
                self._fetched, self._at = self._selection.fetch(), 0
                if not self._fetched:
                    return False
                self._at = self._given_before()
        except Exception as error:
            self._leave()
            if self._failed and self._number is not None:
                error.add_note(f"The rest of part {self._number} of the rows is left out: it has failed twice.")
                self._progress.finish(self._number)
                self._number = None
            self._failed = True
            raise
        return True

    def _opened(self) -> Selection:
        """Runs the query of the part, from the last row on."""
        query, number = self._query, self._number
        assert number is not None
        if self._connection is None:
            self._connection = connect(query.database, query.text)
        low, high = self._place.key, None
        if self._is_keyed:
            low = self._cuts[number - 1] if low is None and number else low
            high = self._cuts[number] if number < len(self._cuts) else None
        text, parameters = query.statement(low, high)
        selection = self._connection.select(text, parameters, query.text)
        self._columns = selection.columns
        if query.key is not None:
            self._key_column = self._columns.index(query.key)
        self._behind = 1 if self._is_keyed else self._place.rows
        self._is_known = not self._place.is_begun()
        return selection

    def _given_before(self) -> int:
        """Returns how many of the fetched rows were given before the query was run again."""
        if self._is_keyed:
            to_json(self._fetched[0][self._key_column])
        if self._is_known:
            return 0
        if self._is_keyed:  # that row may be gone
            self._is_known = True
            return int(self._fetched[0][self._key_column] == self._place.key)
        count = min(self._behind, len(self._fetched))
        self._behind -= count
        if not self._behind:
            self._is_known = True
            if added(self._fetched[count - 1], 0) != self._place.checksum():
                raise StateMismatchError(
                    f"row {self._place.rows:,} of {self._query.text!r} is another than it was, so the rows behind it "
                    "cannot be told from those before. Add ORDER BY with unique values to the query, or name them by "
                    "key=; or was the table changed?"
                )
        return count

    def _leave(self) -> None:
        """Ends the query and the connection."""
        self._selection = None
        self._fetched, self._at = (), 0
        connection, self._connection = self._connection, None
        if connection is not None and self._process == os.getpid():
            connection.close()
