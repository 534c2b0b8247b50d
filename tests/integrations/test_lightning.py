"""Lightning's Trainer and Fabric: exact resume in the middle of an epoch, and the callback with our report."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import stoker

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning")

from lightning.pytorch.callbacks import OnExceptionCheckpoint  # noqa: E402

from stoker.integrations.lightning import StokerCallback  # noqa: E402
from stoker.loader._epoch import ranks  # noqa: E402
from tests.integrations.launching import launched  # noqa: E402
from tests.integrations.lightning_ranks import SAMPLES, Network, Stream, stop  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of others

QUIET = {"accelerator": "cpu", "devices": 1, "enable_progress_bar": False, "enable_model_summary": False}


def lists(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


class Saves(lightning.Callback):  # type: ignore[misc, name-defined]
    """Writes a checkpoint after each batch and after each epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer: Any, *others: Any) -> None:
        trainer.save_checkpoint(self.folder / f"{trainer.global_step}.ckpt")

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        trainer.save_checkpoint(self.folder / f"end-{trainer.global_step}.ckpt")


def fit(loader: Any, *callbacks: Any, epochs: int = 2, logger: Any = False, **checkpoint: Any) -> Any:
    network = Network()
    trainer = lightning.Trainer(
        **QUIET, max_epochs=epochs, callbacks=list(callbacks), logger=logger, enable_checkpointing=False
    )
    trainer.fit(network, loader, **checkpoint)
    network.kept = trainer
    return network


# Resume


def test_a_second_process_goes_on_in_mid_epoch(tmp_path: Path) -> None:
    stopped = stop("plain", 1, tmp_path)
    _, resumed = launched("lightning_ranks.py", 1, "1", str(tmp_path), "plain")[0]["plain"]
    assert (len(stopped), len(resumed)) == (12, SAMPLES - 12)
    assert sorted(stopped + resumed) == list(range(SAMPLES))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_ddp_ranks_go_on_in_mid_epoch(tmp_path: Path) -> None:
    forms = ["plain", "seed", "distributed"]
    ranks = launched("lightning_ranks.py", 2, "2", str(tmp_path), ",".join(forms))
    for form in forms:
        assert [len(rank[form][0]) for rank in ranks] == [12, 12]
        assert sorted(itertools.chain(*(part for rank in ranks for part in rank[form]))) == list(range(SAMPLES)), form


@pytest.mark.timeout(240)
def test_two_ddp_ranks_resume_from_states_of_their_own(tmp_path: Path) -> None:
    """Parts of a stream, and seeds. Without the callback nothing is written that other ranks could not load."""
    forms = ["shards", "seeds", "shards without the callback", "shards of torch's loader"]
    ranks = launched("lightning_ranks.py", 2, "2", str(tmp_path), ",".join(forms))
    for form in ("shards", "seeds"):
        assert [len(rank[form][0]) for rank in ranks] == [12, 12]
        assert sorted(itertools.chain(*(part for rank in ranks for part in rank[form]))) == list(range(SAMPLES)), form
    for rank in ranks:
        assert "writes the state of rank 0 alone. Add stoker.integrations.lightning.StokerCallback()" in rank[forms[2]]
        seen, (told,) = rank[forms[3]]
        assert len(seen) == 12 and "checkpoints do not hold the place of a loader of a stream" in told
    _, merged = launched("lightning_ranks.py", 1, "1", str(tmp_path), "shards")[0]["shards"]
    assert sorted(itertools.chain(*(rank["shards"][0] for rank in ranks), merged)) == list(range(SAMPLES))


def stream_of(kept: bool, tmp_path: Path) -> tuple[list[int], dict[str, list[int]]]:
    """Returns the samples of an undisturbed run over a stream, and those of the runs from its checkpoints."""
    callbacks = [StokerCallback(None)] if kept else []
    undisturbed = fit(stoker.DataLoader(Stream(), 4), *callbacks, Saves(tmp_path)).seen
    steps = SAMPLES // 4
    names = ["1", "2", str(steps - 1), f"end-{steps}", str(steps + 1), str(2 * steps - 1)]
    loader = lambda: stoker.DataLoader(Stream(), 4)  # noqa: E731
    return undisturbed, {
        name: fit(loader(), *callbacks, ckpt_path=str(tmp_path / f"{name}.ckpt")).seen for name in names
    }


def test_checkpoint_of_an_exception_waits_for_no_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other ranks write none; states of loaders that are not Stoker's stay as they are."""

    class Foreign:
        def __iter__(self) -> Any:
            return iter([torch.zeros(1)] * 9)

        def state_dict(self) -> Any:
            return ["no dictionary"]

        def load_state_dict(self, state: Any) -> None: ...

    class Fails(lightning.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, trainer: Any, *others: Any) -> None:
            if trainer.global_step == 3:
                raise OSError("the disk of one rank is full")

    class Pairs(Network):
        def training_step(self, batch: Any, number: int) -> Any:
            return super().training_step(batch[0], number)

    gathered: list[Any] = []

    def gather(everyone: list[Any], own: Any) -> None:
        gathered.append(own)
        everyone[:] = [own]

    monkeypatch.setattr(ranks, "of_torch", lambda: ranks.World(0, 2, "torch.distributed"))
    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    callbacks = [StokerCallback(None), Saves(tmp_path), Fails(), OnExceptionCheckpoint(tmp_path)]
    trainer = lightning.Trainer(**QUIET, max_epochs=1, callbacks=callbacks, logger=False)
    with pytest.raises(OSError, match="is full"):
        trainer.fit(Pairs(), [stoker.DataLoader(Stream(), 4), Foreign()])
    assert len(gathered) == 3 and all(len(own) == 1 for own in gathered)
    states = torch.load(tmp_path / "3.ckpt")["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    failed = torch.load(tmp_path / "on_exception.ckpt")["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    assert "rank 0 of 2" in states[0] and "rank 0 of 2" in failed[0]
    assert states[1] == failed[1] == ["no dictionary"]


def test_a_stream_without_a_length_is_resumed_exactly(tmp_path: Path) -> None:
    undisturbed, resumed = stream_of(True, tmp_path)
    assert undisturbed == [*range(SAMPLES)] * 2
    for name, seen in resumed.items():
        assert seen == undisturbed[4 * int(name.removeprefix("end-")) :], name


def test_lightning_alone_loses_the_batch_fetched_ahead(tmp_path: Path) -> None:
    """Why the callback keeps states: once Lightning does it, that part of the callback can go."""
    undisturbed, resumed = stream_of(False, tmp_path)
    assert resumed["2"] == undisturbed[12:]


@pytest.mark.parametrize("workers", [0, 1])
def test_fabric_saves_and_loads_the_loader(workers: int, tmp_path: Path) -> None:
    fabric = lightning.fabric.Fabric(accelerator="cpu", devices=1)

    def made() -> Any:
        loader = stoker.DataLoader(range(24), 4, shuffle=True, num_workers=workers)
        return fabric.setup_dataloaders(loader)

    loader = made()
    whole = lists(loader)
    batches = iter(loader)
    seen = lists(itertools.islice(batches, 2))
    fabric.save(tmp_path / "checkpoint", {"loader": loader, "step": 8})
    following = lists(batches)
    again, step = made(), {"loader": made(), "step": 0}
    step["loader"] = again
    fabric.load(tmp_path / "checkpoint", step)
    assert step["step"] == 8
    assert lists(again) == following
    assert sorted(itertools.chain(*seen, *following)) == sorted(itertools.chain(*whole)) == list(range(24))


# The callback


class Logger(lightning.pytorch.loggers.logger.DummyLogger):  # type: ignore[misc, name-defined]
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.metrics.append(metrics)


def test_the_wait_is_logged_and_reported_once_a_fit(capsys: pytest.CaptureFixture[str]) -> None:
    logger = Logger()
    loader = stoker.DataLoader(range(24), 4, num_workers=1)
    network = fit(loader, StokerCallback(), logger=logger)
    shares = [metrics["stoker/wait_share"] for metrics in logger.metrics if "stoker/wait_share" in metrics]
    assert len(shares) == 2
    assert all(0 < share <= 1 for share in shares)
    last = loader.report().epoch
    assert shares[-1] == pytest.approx(last.waited / last.spent, abs=0.2)
    assert network.kept.logged_metrics["stoker/wait_s"] == pytest.approx(last.waited, rel=0.5)
    told = capsys.readouterr().out
    assert told.count("Report of the training loader:") == 1
    assert "batches delivered: 6" in told


@pytest.mark.parametrize(("report", "times"), [("epoch", 2), ("fit", 1), (None, 0)])
def test_the_report_is_printed_when_asked(report: Any, times: int, capsys: pytest.CaptureFixture[str]) -> None:
    fit(stoker.DataLoader(range(8), 4), StokerCallback(report))
    assert capsys.readouterr().out.count("Report of the training loader:") == times


def test_several_loaders_are_named_by_their_places(capsys: pytest.CaptureFixture[str]) -> None:
    class Several(Network):
        def training_step(self, batches: Any, number: int) -> Any:
            return super().training_step(torch.cat(list(batches)), number)

    loaders = [torch.utils.data.DataLoader(range(8), 4), stoker.DataLoader(range(8), 4), stoker.DataLoader(range(8), 4)]
    logger, network = Logger(), Several()
    trainer = lightning.Trainer(
        **QUIET, max_epochs=1, callbacks=[StokerCallback()], logger=logger, enable_checkpointing=False
    )
    trainer.fit(network, loaders)
    assert {name for metrics in logger.metrics for name in metrics if name.startswith("stoker/")} == {
        *("stoker/1/wait_share", "stoker/1/wait_s", "stoker/2/wait_share", "stoker/2/wait_s")
    }
    assert "Report of training loader 1:" in capsys.readouterr().out


def test_installed_loader_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with stoker.install():
        fit(torch.utils.data.DataLoader(range(8), 4), StokerCallback())
    assert capsys.readouterr().out.count("Report of the training loader:") == 1


def test_other_loaders_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    fit(torch.utils.data.DataLoader(range(8), 4), StokerCallback())
    assert "Report" not in capsys.readouterr().out


def test_an_unknown_time_of_reports_is_refused() -> None:
    with pytest.raises(ValueError, match="report should be one of 'epoch', 'fit', None, but got report='day'"):
        StokerCallback("day")  # type: ignore[arg-type]
