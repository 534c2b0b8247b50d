"""`stoker batch` names the samples that the loader delivers at a step."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from stoker.diagnostics.cli import main

MODULE = """
from stoker import DataLoader, Dataset, from_iterable

class Files(Dataset):
    stoker_protocol = True
    def __len__(self): return 50
    def __getitem__(self, index): return index
    def describe(self, index): return f"photo-{index}.jpg"

def make(): return DataLoader(Files(), batch_size=8, shuffle=True, seed=7, output="numpy")
def job(): return DataLoader(Files(), batch_size=8, distributed="pad", num_replicas=2, rank=0, output="numpy")
def drawn(): return DataLoader(Files(), batch_size=8, shuffle=True)
def stream(): return DataLoader(from_iterable(lambda: iter([1])))
rows = [1, 2]
class Foreign:
    dataset, batch_size = rows, 1
    def __iter__(self): return iter(self.dataset)
foreign = Foreign()
"""


@pytest.fixture(autouse=True)
def looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "looked_up_of_a_test.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "looked_up_of_a_test", raising=False)


@pytest.mark.parametrize(("step", "epoch", "k"), [(0, 0, 0), (6, 0, 6), (15, 2, 1)])
def test_step_over_all_epochs(step: int, epoch: int, k: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", "looked_up_of_a_test:make", "--step", str(step), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    loader = sys.modules["looked_up_of_a_test"].make()
    delivered = [[batch.tolist() for batch in loader] for _ in range(3)]
    assert (result["epoch"], result["batch"]) == (epoch, k)
    assert [sample["index"] for sample in result["samples"]] == delivered[epoch][k]
    assert all(sample["description"] == f"photo-{sample['index']}.jpg" for sample in result["samples"])


def test_text_names_each_sample(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", "looked_up_of_a_test:make", "--epoch", "1", "--step", "6"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == "epoch 1, batch 6, 2 samples"
    assert all(line == f"{line.split()[0]}  photo-{line.split()[0]}.jpg" for line in lines) and len(lines) == 2


def test_rank_of_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1):
        assert main(["batch", "looked_up_of_a_test:job", "--step", "0", "--rank", str(rank), "--json"]) == 0
        samples = json.loads(capsys.readouterr().out)["samples"]
        assert [sample["index"] for sample in samples] == list(range(rank, 16, 2))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["make", "--epoch", "0", "--step", "99"], "epoch 0 has no batch 99"),
        (["make", "--step", "-1"], "--step"),
        (["make"], "--step"),
        (["drawn", "--step", "1"], "Pass seed=0"),
        (["stream", "--step", "1"], "--epoch 0 --step 12"),
        (["stream", "--epoch", "0", "--step", "1"], "the batches of a stream"),
        (["rows", "--step", "1"], "is a dataset: name the loader"),
        (["foreign", "--step", "1"], "from stoker import DataLoader"),
        (["job", "--step", "0", "--rank", "2"], "there are 2 ranks"),
    ],
)
def test_refusal_is_one_sentence(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", f"looked_up_of_a_test:{arguments[0]}", *arguments[1:]]) in (1, 2)
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
