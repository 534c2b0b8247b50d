"""Warnings of a program are shown as often as under torch's loader: Python shows one once for each line."""

from __future__ import annotations

WARNS = """
import warnings

class Warns:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        warnings.warn("dataset")
        return index

def main(data):
    shown = open("shown", "ab", buffering=0)  # by workers too
    warnings.showwarning = lambda message, *_: shown.write(f"{message}\\n".encode())
    found = []
    for seen_before in (False, True):
        dataset = Warns()
        if seen_before:
            dataset[0]
        for _ in range(3):
            for batch in data.DataLoader(dataset, num_workers=1, batch_size=2):
                warnings.warn("loop")
        found.append(sorted(open("shown").read().split()))
    return found
"""


def test_warnings_are_shown_as_often(same):
    theirs, _ = same(WARNS)
    assert theirs.result == [3 * ["dataset"] + ["loop"], 4 * ["dataset"] + ["loop"]]
