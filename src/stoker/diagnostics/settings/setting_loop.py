"""The program that `stoker tune module:object` measures: it makes the loader once, and iterates with each setting.

`python -m stoker.diagnostics.settings.setting_loop TARGET ANSWERS [BATCH_SIZE]` reads lines of JSON, `{"setting": ...,
"seconds": ..., "least": ..., "most": ..., "step": ...}`, until its standard input ends. It appends a line to the file
ANSWERS at the start, which describes the loader, and one after each setting. Batches are recorded by the hooks of
`stoker run`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import pickle
import sys
import time
from collections.abc import Iterator
from typing import Any

from stoker.diagnostics import attach
from stoker.diagnostics.settings.setting_trial import LoaderSetting, put_into, setting_of
from stoker.diagnostics.target import find

BATCH_SIZE = 32
"""Of a dataset that is named without a loader."""


def main(arguments: list[str]) -> None:
    """Answers requests until there are no more. Does not raise: errors are answers."""
    name, answers, *size = arguments
    with open(answers, "a", buffering=1) as file:
        try:
            loader = made(name, int(size[0]) if size else BATCH_SIZE)
            answer: dict[str, Any] = described(loader)
        except Exception as error:
            answer = {"failure": in_words(error)}
        file.write(json.dumps(answer) + "\n")
        if "failure" in answer:
            return
        for line in sys.stdin:
            request = json.loads(line)
            try:
                setting = LoaderSetting(**request.pop("setting"))
                put_into(loader, setting)
                first = FirstBatches()
                batches = iterate(loader, first, skip=setting.workers + 1, **request)
                answer = {"same": first.same} if batches else {"failure": "the loader gives no batch"}
            except Exception as error:
                answer = {"failure": in_words(error)}
            attach.flush()
            file.write(json.dumps(answer) + "\n")


def made(name: str, batch_size: int) -> Any:
    """Returns the loader that a name stands for; Stoker's loader for a dataset."""
    target = find(name)
    if target.loader is None:
        from stoker import DataLoader

        return DataLoader(target.dataset, batch_size=batch_size)
    if not hasattr(target.loader, "num_workers") or not hasattr(target.loader, "prefetch_factor"):
        raise TypeError(
            f"{name} is a {type(target.loader).__name__}, which has no num_workers: name a DataLoader of torch's or "
            "of Stoker's"
        )
    return target.loader


def described(loader: Any) -> dict[str, Any]:
    """Returns the facts of a loader that the search needs."""
    record = vars(loader).get("_stoker")
    has_threads = False
    if record is not None and hasattr(loader.dataset, "__getitem__"):
        from dataclasses import replace

        has_threads = replace(record.options(loader), num_workers=1, threads_per_worker=2).threads == 2
    setting = setting_of(loader)
    return {
        "setting": vars(setting),
        "threads": has_threads,
        "stream": record is None and bool(loader._dataset_kind),
        "dataset": type(loader.dataset).__name__,
        "engine": "torch" if record is None else "stoker",
    }


class FirstBatches:
    """Tells whether the first two batches of a stream are equal, because two workers read the same.

    Attributes:
        same: None as long as it is not known, and for batches that cannot be pickled.
    """

    def __init__(self) -> None:
        self._first: bytes | None = None
        self._count = 0
        self.same: bool | None = None

    def heed(self, batch: Any) -> None:
        """Looks at a batch; at all but the first two it returns at once."""
        self._count += 1
        if self._count > 2:
            return
        with contextlib.suppress(Exception):
            hashed = hashlib.sha256()
            for part in content(batch):
                hashed.update(part)
            digest = hashed.digest()
            if self._count == 2 and self._first is not None:
                self.same = digest == self._first
            self._first = digest


def content(batch: Any) -> Iterator[bytes]:
    """Yields the bytes of all values of a batch."""
    if isinstance(batch, dict):
        batch = [*batch.keys(), *batch.values()]
    if isinstance(batch, list | tuple):
        for part in batch:
            yield from content(part)
    elif hasattr(batch, "detach"):  # a tensor, whose pickle names its memory
        yield batch.detach().cpu().numpy().tobytes()
    else:
        yield batch.tobytes() if hasattr(batch, "tobytes") else pickle.dumps(batch)


def iterate(loader: Any, first: FirstBatches, skip: int, seconds: float, least: int, most: float, step: float) -> int:
    """Iterates until enough was measured; returns the batches received. Epochs after the first one are whole.

    Args:
        first: is shown the first batches, if the dataset is a stream.
        skip: batches of the warm start.
        seconds: to measure after it.
        least: batches to measure, at least.
        most: seconds in all, after which it ends with what there is.
        step: seconds that the loop sleeps after each batch, in the place of a training step.
    """
    begun = warm = time.perf_counter()
    count = epochs = 0
    is_stream = bool(getattr(loader, "_dataset_kind", 0))
    while True:
        before = count
        for batch in loader:
            count += 1
            if is_stream and count <= 2:
                first.heed(batch)
            del batch
            now = time.perf_counter()
            if count <= skip:
                warm = now
            is_over = count > least and now - begun > most
            if is_over or (not epochs and count >= skip + least and now - warm >= seconds):
                return count
            if step:
                time.sleep(step)
        epochs += 1
        if count == before or (count >= skip + least and time.perf_counter() - warm >= seconds):
            return count


def in_words(error: Exception) -> str:
    """Returns an error in one line."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


if __name__ == "__main__":
    main(sys.argv[1:])
