"""Under spawn every worker unpickles the dataset itself: what it opens there belongs to that worker alone."""

from __future__ import annotations

import pytest

FILE_THAT_IS_REOPENED = """
    import os

    class Records(data.Dataset):
        def __init__(self):
            self.path = os.path.abspath("records")
            with open(self.path, "wb") as file:
                file.write(b"".join(number.to_bytes(4, "little") for number in range(4000)))
            self.file = os.open(self.path, os.O_RDONLY)

        def __len__(self):
            return 4000

        def __getitem__(self, index):
            os.lseek(self.file, 4 * index, os.SEEK_SET)
            return int.from_bytes(os.read(self.file, 4), "little")

        def __getstate__(self):
            return {"path": self.path}

        def __setstate__(self, state):
            self.path = state["path"]
            self.file = os.open(self.path, os.O_RDONLY)

    def main(data, context):
        loader = data.DataLoader(Records(), batch_size=100, num_workers=2, multiprocessing_context=context)
        return [batch.tolist() for batch in loader]
"""


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_file_reopened_while_unpickling_is_each_workers_own(same, context):
    same(FILE_THAT_IS_REOPENED, context=context, fresh=True, timeout=60)
