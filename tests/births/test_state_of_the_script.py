"""What a script has set before `iter()`: a forked worker sees it all, a clean one what importing its modules sets."""

from __future__ import annotations

from typing import Any

import pytest

CASES: dict[str, tuple[str, str]] = {
    "cwd": ("os.mkdir('below'); os.chdir('below')", "os.path.basename(os.getcwd())"),
    "sys.path": ("sys.path.insert(0, '/of/mine')", "sys.path[0]"),
    "environment": ("os.environ['OF_MINE'] = 'set'", "os.environ.get('OF_MINE')"),
    "patch": ("textwrap.shorten = lambda *a: 'patched'", "textwrap.shorten('abc', 10)"),
    "plugin": (
        "codecs.register(lambda name: codecs.lookup('utf-8') if name == 'of_mine' else None)",
        "lookup('of_mine')",
    ),
    "warnings filter": ("warnings.simplefilter('error', BytesWarning)", "warnings.filters[0][0]"),
    "a global of the script": ("TABLE['key'] = 'set'", "TABLE.get('key')"),
    "a context of the main thread": ("decimal.getcontext().prec = 7", "decimal.getcontext().prec"),
}

OUTCOMES = {  # forked, clean
    "cwd": ("below", "below"),
    "sys.path": ("/of/mine", "/of/mine"),
    "environment": ("set", "set"),
    "patch": ("patched", "abc"),
    "plugin": ("utf-8", "none"),
    "warnings filter": ("error", "another"),
    "a global of the script": ("set", "None"),
    "a context of the main thread": ("7", "28"),
}

SCRIPT = """
import codecs, decimal, os, sys, textwrap, warnings
from stoker import DataLoader
TABLE = {}

def lookup(name):
    try:
        return codecs.lookup(name).name
    except LookupError:
        return 'none'

class Data:
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return str([ASKED][0])

if __name__ == '__main__':
    [SET]
    loader = DataLoader(Data(), num_workers=1, multiprocessing_context=BIRTH)
    [batch, _] = loader
    print(batch[0])
"""


def test_state(run: Any, birth: str) -> None:
    """All cases in one script, because a clean birth takes its time."""
    settings = "; ".join(setting for setting, _ in CASES.values())
    asked = ", ".join(f"str({question})" for _, question in CASES.values())
    text = SCRIPT.replace("[SET]", settings).replace("str([ASKED][0])", f"'|'.join([{asked}])")
    seen = dict(zip(CASES, run(birth, text).split("|"), strict=True))
    expected = {case: outcome[birth != "fork"] for case, outcome in OUTCOMES.items()}
    if birth != "fork":
        assert seen.pop("warnings filter") != "error"
        expected.pop("warnings filter")
    assert seen == expected


PILLOW = """
import io
import numpy as np
from PIL import Image, ImageFile
from stoker import DataLoader

def truncated():
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(256, size=(64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, 'JPEG')
    return file.getvalue()[:-2000]

class Data:
    def __init__(self):
        self.data = truncated()
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return np.asarray(Image.open(io.BytesIO(self.data)).convert('RGB'))

[ABOVE]
if __name__ == '__main__':
    [BELOW]
    loader = DataLoader(Data(), batch_size=4, num_workers=2, multiprocessing_context=BIRTH)
    try:
        print([batch.shape for batch in loader])
    except OSError as error:
        print('OSError', 'truncated' in str(error))
"""
FLAG = "ImageFile.LOAD_TRUNCATED_IMAGES = True"


@pytest.mark.parametrize("place", ["above the guard", "under the guard"])
def test_pillows_truncated_images(run: Any, birth: str, place: str) -> None:
    pytest.importorskip("PIL")
    above, below = (FLAG, "pass") if place == "above the guard" else ("pass", FLAG)
    seen = run(birth, PILLOW.replace("[ABOVE]", above).replace("[BELOW]", below))
    reaches = birth == "fork" or place == "above the guard"
    assert seen == ("[(4, 64, 64, 3)]" if reaches else "OSError True")


@pytest.mark.parametrize("persistent", [False, True])
def test_a_dataset_that_changes_between_epochs(run: Any, birth: str, persistent: bool) -> None:
    """Seen by the workers of the next `iter()`; persistent workers keep the dataset of their start."""
    seen = run(
        birth,
        f"""
        from stoker import DataLoader
        class Data:
            value = 1
            def __len__(self):
                return 2
            def __getitem__(self, index):
                return self.value
        if __name__ == '__main__':
            data = Data()
            loader = DataLoader(data, num_workers=1, batch_size=2, multiprocessing_context=BIRTH,
                                persistent_workers={persistent})
            for _ in range(2):
                print([batch.tolist() for batch in loader])
                data.value = 2
        """,
    )
    assert seen.split("\n") == ["[[1, 1]]", "[[1, 1]]" if persistent else "[[2, 2]]"]


def test_output_of_a_worker_is_printed_once(run: Any, birth: str) -> None:
    """Standard output is a pipe here, so what is printed waits in memory that a fork copies."""
    seen = run(
        birth,
        """
        import sys
        from stoker import DataLoader
        print('import of', __name__)
        class Data:
            def __len__(self):
                return 4
            def __getitem__(self, index):
                print(f'sample {index}')
                return index
        if __name__ == '__main__':
            print('before')
            assert len(list(DataLoader(Data(), num_workers=2, multiprocessing_context=BIRTH))) == 4
            print('after')
        """,
    )
    lines = seen.split("\n")
    imports = ["import of __main__"] + ["import of __mp_main__"] * (2 if birth != "fork" else 0)
    assert sorted(lines) == sorted([*imports, "before", "after", *(f"sample {index}" for index in range(4))])


def test_the_workers_are_children_of_multiprocessing(run: Any, birth: str) -> None:
    """Libraries ask who they are; and a worker has no standard input to take away from the trainer."""
    seen = run(
        birth,
        """
        import multiprocessing, os, sys
        from stoker import DataLoader
        class Data:
            def __len__(self):
                return 1
            def __getitem__(self, index):
                me = multiprocessing.current_process()
                print(me.name, me._identity, me.daemon, multiprocessing.active_children(), repr(sys.stdin.read()))
                trainer = multiprocessing.parent_process()
                trainer.join(timeout=0)
                print(trainer.name, trainer.is_alive())
                return trainer.pid
        if __name__ == '__main__':
            [batch] = DataLoader(Data(), num_workers=1, multiprocessing_context=BIRTH)
            print(batch[0] == os.getpid(), multiprocessing.parent_process())
        """,
    )
    assert seen.split("\n") == ["stoker-worker-0 (1,) True [] ''", "MainProcess True", "True None"]


@pytest.mark.slow  # each worker imports torch
def test_torch_worker_info_works_if_a_sample_imports_torch(run: Any, birth: str) -> None:
    pytest.importorskip("torch")
    seen = run(
        birth,
        """
        import sys
        from stoker import DataLoader
        class Data:
            def __len__(self):
                return 2
            def __getitem__(self, index):
                from torch.utils.data import get_worker_info
                info = get_worker_info()
                return info.id, info.num_workers
        if __name__ == '__main__':
            loader = DataLoader(Data(), num_workers=2, collate_fn=list, multiprocessing_context=BIRTH)
            print([batch for [batch] in loader])
        """,
    )
    assert seen == "[(0, 2), (1, 2)]"
