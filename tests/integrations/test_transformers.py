"""The Trainer of transformers on Stoker's engine: resumed from the loader's state, without a read to skip anything."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stoker

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from stoker.integrations.transformers import FILE, StokerTrainerMixin  # noqa: E402
from tests.integrations.launching import launched  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of others

STEPS = 6  # in an epoch, of which there are two


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # else a thread of it stays
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def sample(index: int, drawn: Any) -> Any:
    tokens = torch.cat([torch.tensor([index]), drawn])
    return {"input_ids": tokens, "labels": tokens}


class Noisy(stoker.Dataset[Any]):
    """Augmented: a sample is its index, and others that are drawn. Counts its reads."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return sample(index, torch.randint(4 * STEPS, (3,)))


class Stream(stoker.IterableDataset[Any]):
    """A stream that says where it stands, and counts what it reads."""

    def __init__(self) -> None:
        self.at = self.reads = 0

    def __iter__(self) -> Iterator[Any]:
        begin, self.at = self.at, 0
        for number in range(begin, 8 * STEPS):
            self.at = number + 1
            self.reads += 1
            yield sample(number % (4 * STEPS), torch.zeros(3, dtype=torch.long))
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Recording:
    """Keeps what the training loop gives to each step."""

    def training_step(self, model: Any, inputs: Any, *others: Any) -> Any:
        loss = super().training_step(model, inputs, *others)  # type: ignore[misc]
        self.seen.append((inputs["input_ids"].tolist(), loss.item()))
        self.epochs.append(self.state.epoch)
        return loss


class Trainer(Recording, StokerTrainerMixin, transformers.Trainer):  # type: ignore[misc, name-defined]
    pass


class Plain(Recording, transformers.Trainer):  # type: ignore[misc, name-defined]
    pass


def trainer_of(folder: Path, dataset: Any, kind: type = Trainer, seed: int = 1, **how: Any) -> Any:
    transformers.set_seed(seed)
    shape = {"vocab_size": 4 * STEPS, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 1}
    off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, **off))
    settings = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "per_device_train_batch_size": 4, **how}
    trainer = kind(model, transformers.TrainingArguments(str(folder), seed=seed, **settings), train_dataset=dataset)
    trainer.seen, trainer.epochs = [], []
    return trainer


SAVES = {"save_strategy": "steps", "save_steps": 1}


@pytest.mark.parametrize("how", [{}, {"gradient_accumulation_steps": 4}, {"dataloader_num_workers": 1}], ids=str)
def test_the_trainer_goes_on_as_if_it_never_stopped(how: dict[str, Any], tmp_path: Path) -> None:
    undisturbed = trainer_of(tmp_path, Noisy(), num_train_epochs=2, **SAVES, **how)
    undisturbed.train()
    assert len(undisturbed.seen) == 2 * STEPS
    group = how.get("gradient_accumulation_steps", 1)
    for update, batches in ((1, group), (-(-STEPS // group), STEPS), (-(-STEPS // group) + 1, STEPS + group)):
        dataset = Noisy()
        again = trainer_of(tmp_path, dataset, num_train_epochs=2, save_strategy="no", **how)
        again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{update}"))
        assert again.seen == undisturbed.seen[batches:], update
        assert again.epochs == undisturbed.epochs[batches:]
        if "dataloader_num_workers" not in how:
            assert dataset.reads == 4 * (2 * STEPS - batches)
    assert sys.modules["transformers.trainer"].skip_first_batches.__module__.startswith("accelerate")


def test_the_latest_checkpoint_is_found(tmp_path: Path) -> None:
    first = trainer_of(tmp_path, Noisy(), max_steps=4, **SAVES)
    first.train()
    assert (tmp_path / "checkpoint-4" / FILE).exists()
    again = trainer_of(tmp_path, Noisy(), max_steps=STEPS, save_strategy="no")
    again.train(resume_from_checkpoint=True)
    indices = [row[0] for batch, _ in first.seen + again.seen for row in batch]
    assert sorted(indices) == list(range(4 * STEPS))


def test_a_stream_is_resumed_without_a_read(tmp_path: Path) -> None:
    undisturbed = trainer_of(tmp_path, Stream(), max_steps=2 * STEPS, **SAVES)
    undisturbed.train()
    stream = Stream()
    again = trainer_of(tmp_path, stream, max_steps=2 * STEPS, save_strategy="no")
    again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{2 * STEPS - 2}"))
    assert again.seen == undisturbed.seen[-2:]
    assert stream.reads == 8  # the last two steps; Accelerate looks one batch ahead, and there is none


class OwnLoader(transformers.Trainer):  # type: ignore[misc, name-defined]
    def get_train_dataloader(self) -> Any:
        return stoker.DataLoader(self.train_dataset, 4, shuffle=True, seed=9)


class OwnLoaderPrepared(Recording, StokerTrainerMixin, OwnLoader):
    pass


def test_a_loader_of_ones_own_keeps_its_order(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, Noisy(), OwnLoaderPrepared, num_train_epochs=2, **SAVES)
    trainer.train()
    alone = stoker.DataLoader(Noisy(), 4, shuffle=True, seed=9)
    batches = [batch["input_ids"].tolist() for _ in range(2) for batch in alone]
    assert [batch for batch, _ in trainer.seen] == batches
    again = trainer_of(tmp_path, Noisy(), OwnLoaderPrepared, seed=2, num_train_epochs=2, save_strategy="no")
    again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{STEPS + 2}"))
    assert [batch for batch, _ in again.seen] == batches[STEPS + 2 :]


def test_a_checkpoint_without_a_state_is_resumed_by_skipping(tmp_path: Path) -> None:
    first = trainer_of(tmp_path, Noisy(), Plain, max_steps=4, **SAVES)
    first.train()
    assert not (tmp_path / "checkpoint-4" / FILE).exists()
    again = trainer_of(tmp_path, Noisy(), max_steps=STEPS, save_strategy="no")
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    indices = [row[0] for batch, _ in first.seen + again.seen for row in batch]
    assert sorted(indices) == list(range(4 * STEPS))


@pytest.mark.timeout(240)
def test_two_ranks_resume_their_parts_of_a_stream(tmp_path: Path) -> None:
    ranks = launched("transformers_ranks.py", 2, str(tmp_path))
    assert [[len(part) for part in rank] for rank in ranks] == [[12, 12], [12, 12]]
    assert sorted(number for rank in ranks for part in rank for number in part) == list(range(48))
