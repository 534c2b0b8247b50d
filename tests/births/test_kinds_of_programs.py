"""Programs that are no plain script with a main guard, and classes and functions that no module has."""

from __future__ import annotations

from typing import Any

import pytest

UNGUARDED = """
import numpy as np
from stoker import DataLoader
class Point:
    def __init__(self, x):
        self.x = x
class Data:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return Point(index * SCALE)
SCALE = 10
loader = DataLoader(Data(), num_workers=2, batch_size=None, multiprocessing_context=BIRTH)
points = list(loader)
assert all(type(point) is Point for point in points)
print([point.x for point in points])
"""


@pytest.mark.parametrize("how", ["file", "-c", "-"])
def test_no_main_guard(run: Any, birth: str, how: str) -> None:
    """A script without a guard, `python -c`, and a program from a pipe: classes arrive as the same classes."""
    assert run(birth, UNGUARDED, how) == "[0, 10, 20, 30]"


def test_repl(run: Any, birth: str) -> None:
    text = UNGUARDED.replace("SCALE = 10", "\nSCALE = 10").replace("class Data", "\nclass Data")
    assert run(birth, text, "typed").split("\n")[-1] == "[0, 10, 20, 30]"


def test_notebook_cells(run: Any, birth: str) -> None:
    """`__main__` without a file, code compiled cell by cell."""
    seen = run(
        birth,
        """
        import sys, types
        cells = [
            "from stoker import DataLoader\\nimport numpy as np",
            "class Data:\\n    def __len__(self): return 3\\n    def __getitem__(self, index): return scaled(index)",
            "def scaled(index): return index * factor",
            "factor = 2",
            "loader = DataLoader(Data(), None, num_workers=1, multiprocessing_context=BIRTH)",
            "print([int(batch) for batch in loader])",
            "factor = 3",
            "print([int(batch) for batch in loader])",
        ]
        main = sys.modules['__main__'] = types.ModuleType('__main__')
        for number, cell in enumerate(cells):
            exec(compile(cell, f'<ipython-input-{number}>', 'exec'), vars(main))
        """,
        "-c",
    )
    assert seen == "[0, 2, 4]\n[0, 3, 6]"


def test_lambdas_and_local_classes(run: Any, birth: str) -> None:
    seen = run(
        birth,
        """
        from stoker import DataLoader
        def main():
            offset = 5
            class Data:
                transform = staticmethod(lambda value: value + offset)
                def __len__(self):
                    return 4
                def __getitem__(self, index):
                    return self.transform(index)
            loader = DataLoader(Data(), num_workers=2, batch_size=2, collate_fn=lambda samples: sum(samples) + offset,
                                worker_init_fn=lambda worker: None, multiprocessing_context=BIRTH)
            print(list(loader))
        if __name__ == '__main__':
            main()
        """,
    )
    assert seen == "[16, 20]"


def test_classes_with_slots(run: Any, birth: str) -> None:
    seen = run(
        birth,
        """
        import dataclasses
        from typing import NamedTuple
        from stoker import DataLoader
        class Hidden:
            __slots__ = '__value', '__weakref__'
            def __init__(self, value):
                self.__value = value
            def value(self):
                return self.__value
        class One(Hidden):
            __slots__ = 'other'
        class Open(One):
            pass
        @dataclasses.dataclass(slots=True, frozen=True)
        class Sample:
            hidden: object
            label: int
        class Pair(NamedTuple):
            label: int
            more: int = 7
        class Data:
            __slots__ = ()
            def __len__(self):
                return 2
            def __getitem__(self, index):
                hidden = (One, Open)[index](index)
                hidden.other = hasattr(hidden, '__dict__')
                return Sample(hidden, Pair(index))
        for sample in DataLoader(Data(), None, num_workers=2, collate_fn=lambda sample: sample,
                                 multiprocessing_context=BIRTH):
            print(type(sample) is Sample, sample.hidden.value(), sample.hidden.other, sample.label)
        """,
    )
    assert seen == "True 0 False Pair(label=0, more=7)\nTrue 1 True Pair(label=1, more=7)"


def test_module_run_with_m(run: Any, birth: str, tmp_path: Any) -> None:
    (tmp_path / "of_mine.py").write_text(UNGUARDED.replace("BIRTH", repr(birth)))
    seen = run(birth, "import runpy; runpy.run_module('of_mine', run_name='__main__', alter_sys=True)", "-c")
    assert seen == "[0, 10, 20, 30]"


HANDLE = """
import os
from stoker import DataLoader
class Data:
    def __init__(self):
        self.file = open(os.environ['PLACE'] + '/data.bin', 'rb')
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return os.pread(self.file.fileno(), 1, index)
if __name__ == '__main__':
    with open(os.environ['PLACE'] + '/data.bin', 'wb') as file:
        file.write(b'abcd')
    data = Data()
    loader = DataLoader(data, num_workers=2, batch_size=4, multiprocessing_context=BIRTH)
    try:
        print(list(loader))
    except TypeError as error:
        print(type(error).__name__, error)
    data.file.close()
"""


def test_an_open_file(run: Any, birth: str) -> None:
    seen = run(birth, HANDLE)
    if birth == "fork":
        assert seen == "[[b'a', b'b', b'c', b'd']]"
    else:
        assert seen.startswith("CannotSendError dataset.file: an open file (")


def test_an_open_hdf5_file(run: Any, birth: str) -> None:
    pytest.importorskip("h5py")
    seen = run(
        birth,
        HANDLE.replace("import os", "import os, h5py")
        .replace("open(os.environ['PLACE'] + '/data.bin', 'rb')", "h5py.File(os.environ['PLACE'] + '/data.h5', 'w')")
        .replace("os.pread(self.file.fileno(), 1, index)", "b'x'"),
    )
    if birth == "fork":
        assert seen == "[[b'x', b'x', b'x', b'x']]"
    else:
        assert seen.startswith("CannotSendError dataset.file: an open h5py.File cannot be sent")


def test_unpicklable_part_is_named_by_its_path(run: Any) -> None:
    pytest.importorskip("h5py")
    seen = run(
        "forkserver",
        """
        import os, h5py
        from stoker import DataLoader
        class Step:
            def __init__(self, fn):
                self.fn = fn
        class Compose:
            def __init__(self, *transforms):
                self.transforms = list(transforms)
        class Data:
            def __init__(self, transform):
                self.transform = transform
            def __len__(self):
                return 4
            def __getitem__(self, index):
                return index
        if __name__ == '__main__':
            with h5py.File(os.environ['PLACE'] + '/data.h5', 'w') as file:
                transform = Compose(Step(str), Step(None), Step(file))
                try:
                    iter(DataLoader(Data(transform), num_workers=2, multiprocessing_context=BIRTH))
                except TypeError as error:
                    print(type(error).__name__, error)
        """,
    )
    assert seen.startswith("CannotSendError dataset.transform.transforms[2].fn: an open h5py.File cannot be sent")
    assert "__getitem__" in seen  # where to open it


@pytest.mark.slow
def test_tensors_of_many_batches_fit_in_a_hundred_descriptors(run: Any, birth: str) -> None:
    """Where torch shares by descriptors, each tensor that arrives takes one."""
    seen = run(
        birth,
        """
        import resource
        import torch
        from stoker import DataLoader
        class Data:
            def __len__(self):
                return 600
            def __getitem__(self, index):
                return torch.full((20_000,), index), index
        if __name__ == '__main__':
            resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
            kept = list(DataLoader(Data(), batch_size=2, num_workers=2, multiprocessing_context=BIRTH))
            assert all(rows[1, -1] == labels[1] == 2 * place + 1 for place, (rows, labels) in enumerate(kept))
            print(len(kept))
        """,
        torch=True,
    )
    assert seen == "300"


@pytest.mark.slow
def test_batches_go_on_to_another_process_of_the_users(run: Any, birth: str) -> None:
    """By a queue of torch's, while the loader goes on: whole, a slice, and a small leaf."""
    seen = run(
        birth,
        """
        import torch
        from torch import multiprocessing
        from stoker import DataLoader
        class Data:
            def __len__(self):
                return 160
            def __getitem__(self, index):
                return torch.full((20_000,), index), index
        def consume(batches, sums):
            while (batch := batches.get(timeout=20)) is not None:
                rows, part, labels = batch
                sums.put([rows[:, -1].tolist(), part.tolist(), labels.tolist()])
                del batch, rows, part, labels
            sums.put(None)
        if __name__ == '__main__':
            context = multiprocessing.get_context(BIRTH)
            batches, sums = context.Queue(), context.Queue()
            consumer = context.Process(target=consume, args=(batches, sums))
            consumer.start()
            for rows, labels in DataLoader(Data(), batch_size=4, num_workers=2, multiprocessing_context=BIRTH):
                batches.put((rows, rows[1:3, 7], labels))
            batches.put(None)
            found = list(iter(lambda: sums.get(timeout=20), None))
            consumer.join(20)
            expected = [[[*range(k, k + 4)], [k + 1, k + 2], [*range(k, k + 4)]] for k in range(0, 160, 4)]
            assert found == expected, found
            print(len(found), consumer.exitcode)
        """,
        torch=True,
    )
    assert seen == "40 0"


@pytest.mark.parametrize("matching", [True, False])
def test_lock_and_value_of_multiprocessing(run: Any, birth: str, matching: bool) -> None:
    """Those of the loader's own context arrive, and are shared with the trainer; others are refused by name."""
    other = "forkserver" if birth == "fork" else "fork"
    seen = run(
        birth,
        f"""
        import multiprocessing
        from stoker import DataLoader
        class Data:
            def __init__(self, context):
                self.lock, self.value = context.Lock(), context.Value('i', 0)
            def __len__(self):
                return 50
            def __getitem__(self, index):
                with self.lock:
                    self.value.value += 1
                return index
        if __name__ == '__main__':
            data = Data(multiprocessing.get_context({birth if matching else other!r}))
            try:
                for _ in DataLoader(data, num_workers=2, multiprocessing_context=BIRTH):
                    pass
                print(data.value.value)
            except TypeError as error:
                print(type(error).__name__, str(error)[:12])
        """,
    )
    assert seen == ("50" if matching or birth == "fork" else "CannotSendError dataset.lock")
