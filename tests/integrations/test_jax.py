"""The recipe of the guide for JAX: batches on the device one ahead, sharded arrays; JAX in workers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("jax") is None:  # not imported here: later tests would be warned of it
    pytest.skip("could not find jax", allow_module_level=True)

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "integrations.md"
RECIPE = "\n".join(re.findall(r"```python\n(.*?)```", GUIDE.read_text().partition("## JAX")[2], re.DOTALL)[:1])

PROGRAM = """
import json, os, sys
import numpy as np
import stoker
{recipe}

class Samples(stoker.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        loaded = [name in sys.modules for name in ("jax", "torch")]
        return {{"x": np.full(3, index, np.float32), "parent": os.getppid(), "loaded": np.array(loaded)}}

if __name__ == "__main__":
    told = {{"devices": jax.device_count()}}
    loader = stoker.DataLoader(
        Samples(), 8, num_workers=2, output="numpy", shuffle=True, seed=1, multiprocessing_context="fork"
    )
    expected = [batch["x"] for batch in loader]
    loader.set_epoch(0)
    received, made = [], []

    def counted():
        for batch in loader:
            made.append(1)
            yield batch

    told["ahead"], told["equal"], told["loaded"] = [], [], []
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    for sharding in (None, sharding):
        loader.set_epoch(0)
        made.clear()
        for number, batch in enumerate(on_device(counted(), sharding)):
            told["ahead"].append(len(made) - number - 1)
            array = batch["x"]
            assert isinstance(array, jax.Array), type(array)
            told["equal"].append(bool((np.asarray(array) == expected[number]).all()))
            told["loaded"].append(np.asarray(batch["loaded"]).any(axis=0).tolist())
            told["shards"] = sorted(shard.data.shape[0] for shard in array.addressable_shards)
            received.append(array)  # all are kept, and stay what they were
    told["kept"] = [bool((np.asarray(array) == expected[number % 4]).all()) for number, array in enumerate(received)]
    told["why"] = loader.describe()
    told["torch"] = "torch" in sys.modules
    print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a program with the recipe says of itself, on four devices that XLA makes of this CPU."""
    script = tmp_path_factory.mktemp("jax") / "recipe.py"
    script.write_text(PROGRAM.format(recipe=RECIPE))
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu", "STOKER_TORCH": "0"}
    run = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", script],
        env={**os.environ, **flags},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode == 0, run.stderr
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return result


def test_the_recipe_has_about_ten_lines() -> None:
    assert 10 <= len(RECIPE.split("\n\n\n")[-1].strip().splitlines()) <= 14


def test_batches_are_on_the_device_one_ahead(told: dict[str, Any]) -> None:
    assert told["ahead"] == [1, 1, 1, 0] * 2
    assert told["equal"] == [True] * 8


def test_arrays_that_are_kept_do_not_change(told: dict[str, Any]) -> None:
    assert told["kept"] == [True] * 8


def test_a_sharding_puts_a_part_on_each_device(told: dict[str, Any]) -> None:
    assert told["devices"] == 4
    assert told["shards"] == [2, 2, 2, 2]


def test_workers_that_do_not_use_jax_are_forked(told: dict[str, Any]) -> None:
    """Though JAX has started here; the program names multiprocessing_context="fork", and so is not warned."""
    assert "2 processes, forked" in told["why"]
    assert told["loaded"] == [[True, False]] * 8  # none of these processes imports torch
    assert told["torch"] is False


USES = """
import multiprocessing, sys, threading
import jax
import numpy as np
import stoker
scale = 1

class Plain(stoker.Dataset):
    def __init__(self):
        self.lock = threading.Lock()

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return scale * index

class Uses(Plain):
    def __init__(self):
        pass

    def __getitem__(self, index):
        return np.asarray(jax.numpy.full(3, index)).sum()

if __name__ == "__main__":
    scale = 100
    read = lambda kind: [int(n) for batch in stoker.DataLoader(kind(), 4, num_workers=1, output="numpy") for n in batch]
    print(read(Plain), read(Uses), jax._src.xla_bridge._backends)
    jax.devices()
    print(read(Uses), read(Plain))
"""


def test_jax_is_used_in_workers_before_and_after_its_start(tmp_path: Path) -> None:
    script = tmp_path / "uses.py"
    script.write_text(USES)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "STOKER_TORCH": "0"}
    run = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=110)
    assert run.stdout.splitlines() == ["[0, 100, 200, 300] [0, 3, 6, 9] {}", "[0, 3, 6, 9] [0, 100, 200, 300]"], run
    assert run.stderr.count("Warning: ") == 1 and "StokerWarning: JAX has started a backend" in run.stderr
