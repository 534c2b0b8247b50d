"""torch.distributed.checkpoint with DDP and FSDP2: the loader's state, resumed by another number of ranks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

from tests.integrations.distributed_ranks import GLOBAL, SAMPLES  # noqa: E402
from tests.integrations.launching import launched  # noqa: E402

pytestmark = pytest.mark.slow  # imports torch in five processes


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], list[Any]]:
    """What two ranks have trained on before they stopped, and three that went on from their checkpoint."""
    folder = str(tmp_path_factory.mktemp("checkpoint"))
    return launched("distributed_ranks.py", 2, folder, "stop"), launched("distributed_ranks.py", 3, folder, "resume")


def steps(ranks: list[Any], kind: str) -> list[list[int]]:
    return [sorted(itertools.chain(*parts)) for parts in zip(*(rank[kind]["seen"] for rank in ranks), strict=True)]


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_another_number_of_ranks_goes_on_exactly(kind: str, runs: tuple[list[Any], list[Any]]) -> None:
    stopped, resumed = runs
    before, after = steps(stopped, kind), steps(resumed, kind)
    assert [len(step) for step in before + after] == [GLOBAL] * (SAMPLES // GLOBAL)
    assert sorted(itertools.chain(*before, *after)) == list(range(SAMPLES))


def test_the_steps_do_not_depend_on_the_ranks(runs: tuple[list[Any], list[Any]]) -> None:
    import stoker

    alone = stoker.DataLoader(range(SAMPLES), GLOBAL, shuffle=True, seed=3)
    expected = [sorted(batch.tolist()) for batch in alone]
    stopped, resumed = runs
    for kind in ("ddp", "fsdp2"):
        assert steps(stopped, kind) + steps(resumed, kind) == expected
    losses = {round(rank[kind]["loss"], 5) for rank in resumed for kind in ("ddp", "fsdp2")}
    assert len(losses) == 1


def test_ranks_of_one_mesh_dimension_see_equal_data(runs: tuple[list[Any], list[Any]]) -> None:
    stopped, _ = runs
    assert stopped[0]["mesh"] == stopped[1]["mesh"]
    assert sorted(stopped[0]["mesh"]) == list(range(SAMPLES))
