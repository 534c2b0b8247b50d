"""What a script sets under its main guard is seen in workers, whatever it imports: torch forks there."""

from __future__ import annotations

BESIDE_JAX = """
import sys, types
import numpy as np

SCALE = 1

class Data:
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return SCALE * index

def more(self, index):
    return SCALE * index + 1

def main(data):
    global SCALE
    jax = sys.modules["jax"] = types.ModuleType("jax")
    found = []
    for backends in (None, {}, {"cpu": jax}):
        bridge = sys.modules["jax._src.xla_bridge"] = types.ModuleType("jax._src.xla_bridge")
        if backends is not None:
            bridge._backends = backends
        SCALE = 100
        found.append([batch.tolist() for batch in data.DataLoader(Data(), num_workers=2)])
        Data.__getitem__ = more
        log = open("log.txt", "w")
        dataset = Data()
        dataset.log = log
        found.append([batch.tolist() for batch in data.DataLoader(dataset, num_workers=1)])
    return found
"""


def test_settings_are_seen_beside_jax(same):
    theirs, ours = same(BESIDE_JAX)
    assert theirs.result[0] == [[0], [100], [200]]
    assert ours.stderr.count("JAX has started a backend") == 2  # unknown, and started; Python shows the line once each
