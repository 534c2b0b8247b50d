"""The recipe of the guide for JAX: batches on the device one ahead, sharded arrays, and workers that are not forked."""

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

if find_spec("jax") is None:  # not imported here: workers of later tests would be clean ones
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
    loader = stoker.DataLoader(Samples(), 8, num_workers=1, output="numpy", shuffle=True, seed=1)
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


def test_workers_are_born_clean_where_jax_is_loaded(told: dict[str, Any]) -> None:
    assert "clean interpreters" in told["why"]
    assert "jax is loaded, and does not survive a fork" in told["why"]
    # The program imports JAX at its top, and so do its workers; none of these processes imports torch
    assert told["loaded"] == [[True, False]] * 8
    assert told["torch"] is False
