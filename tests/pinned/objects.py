"""An object of each public class, as a program would make it and pickle it, over the files of a folder."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import stoker
from stoker import errors, events

SEEDED = partial(np.random.default_rng, 3)
LABELS = [0, 1, 2] * 4
VALUE = operator.itemgetter("value")
NONE_KEPT = {
    "stoker.BatchDraws": "the random numbers of a batch under way",
    "stoker.Profiling": "a measurement under way, with a finalizer; its result is a LoaderProfile",
    "stoker.extend.Observer": "a base of a tool's observer, which belongs to its process",
    "stoker.extend.ShardProgress": "part of an iterator, which belongs to its process; its state is kept",
    "stoker.integrations.transformers.StokerTrainerMixin": "a base of the user's Trainer, which is not pickled",
    "stoker.integrations.titan.TitanDataLoader": "needs torchtitan, which is installed nowhere that tests run",
    "stoker.integrations.trackers.mlflow.MLflowMetrics": "holds the module mlflow",
    "stoker.integrations.trackers.opentelemetry.OpenTelemetryMetrics": "holds a meter, with locks",
    "stoker.integrations.trackers.prometheus.PrometheusMetrics": "holds the module prometheus_client",
    "stoker.integrations.trackers.tensorboard.TensorBoardMetrics": "holds a writer, with a thread",
    "stoker.integrations.trackers.wandb.WandbMetrics": "holds a run, which is of its process",
}
"""Public classes of which no object is kept, and why. Their names are kept, as a pickle would have them."""

Makers = dict[str, Callable[[], Any]]


def makers(folder: Path) -> Makers:
    """All of them: by the public name without `stoker.`, of several objects with more words behind a comma."""
    by_data = {**of_files(folder), **of_stores(folder), **out_of_reach(folder), **of_memory()}
    return {**by_data, **loaders(), **orders_and_collators(), **records()}


def of_files(folder: Path) -> Makers:
    """Datasets and streams that read files."""

    def at(name: str) -> str:
        return str(folder / name)

    pictures = [at("photos/cat/0.png"), at("photos/dog/1.png")]
    shards = [at("rows-0.tar"), at("rows-1.tar")]
    parquet = [at("rows-0.parquet"), at("rows-1.parquet")]
    database = f"sqlite:///{at('rows.sqlite')}"
    table = "select id, value from rows order by id"
    return {
        "ArrayDataset": lambda: stoker.ArrayDataset(at("rows.npy"), transform=np.square),
        "AudioClips": lambda: stoker.AudioClips([at("sound.wav")], labels=[3], seconds=0.01),
        "VideoClips": lambda: stoker.VideoClips([at("film.mp4")], frames=2, size=(12, 16)),
        "CSVDataset": lambda: stoker.CSVDataset(at("rows.csv"), types={"value": int}),
        "CSVStream": lambda: stoker.CSVStream(at("rows.csv"), types={"value": int}),
        "JSONLinesDataset": lambda: stoker.JSONLinesDataset(at("rows.jsonl"), transform=VALUE),
        "JSONLinesStream": lambda: stoker.JSONLinesStream(at("rows.jsonl"), transform=VALUE),
        "TextLineDataset": lambda: stoker.TextLineDataset(at("rows.txt"), transform=str.upper),
        "TextLineStream": lambda: stoker.TextLineStream(at("rows.txt"), transform=str.upper),
        "TFRecordDataset": lambda: stoker.TFRecordDataset(at("rows.tfrecord")),
        "TFRecordStream": lambda: stoker.TFRecordStream(at("rows.tfrecord")),
        "HDF5Dataset": lambda: stoker.HDF5Dataset(at("rows.h5"), transform=operator.itemgetter("values")),
        "LMDBDataset": lambda: stoker.LMDBDataset(at("rows.lmdb"), transform=bytes.decode),
        "MDSDataset": lambda: stoker.MDSDataset(at("mds")),
        "MegatronTokens": lambda: stoker.MegatronTokens(at("text"), 4, boundaries="positions"),
        "ParquetDataset": lambda: stoker.ParquetDataset(parquet, transform=VALUE),
        "ParquetStream": lambda: stoker.ParquetStream(parquet, transform=VALUE),
        "SQLDataset": lambda: stoker.SQLDataset(table, database),
        "SQLStream": lambda: stoker.SQLStream(table, database),
        "TarDataset": lambda: stoker.TarDataset(shards),
        "TarStream": lambda: stoker.TarStream(
            shards, shuffle=True, buffer_size=3, transform=operator.itemgetter("cls")
        ),
        "TarWriter": lambda: stoker.TarWriter(at("more-%06d.tar"), max_count=3),
        "ImageFiles": lambda: stoker.ImageFiles(pictures, labels=["cat", "dog"]),
        "ImageFolder": lambda: stoker.ImageFolder(at("photos"), stoker.images.Resize(4), cache=False),
        "Quarantine": lambda: stoker.quarantine(at("quarantine.jsonl")),
        "quarantine": lambda: stoker.quarantine(at("quarantine.jsonl")),
        "images.open": lambda: stoker.images.open(at("photo.jpg")),
        "images.info": lambda: stoker.images.info(at("photo.jpg")),
        "images.ImageInfo": lambda: stoker.images.info(at("photo.jpg")),
        "Ray": lambda: stoker.Ray(60, num_cpus=0.5, resources={"loader": 1}),
        "RetryDataset": lambda: stoker.RetryDataset(stoker.TextLineDataset(at("rows.txt")), attempts=2),
        "InterleaveDataset": lambda: stoker.InterleaveDataset(
            [stoker.TextLineStream(at("rows.txt")), partial(stoker.CSVStream, at("rows.csv"))], open_at_once=2
        ),
    }


def of_stores(folder: Path) -> Makers:
    """Stores, and what reads databases and brokers."""
    storage = importlib.import_module("stoker.sources.storage").LocalStorage
    cached = importlib.import_module("stoker.sources.cached_storage").cached
    return {
        "sources.storage.LocalStorage": storage,
        "sources.cached_storage.cached": lambda: cached(storage(), folder / "cache", 1 << 24),
        "SQLDataset, of SQLAlchemy": lambda: stoker.SQLDataset(
            "select id from rows order by id", f"sqlite+pysqlite:///{folder / 'rows.sqlite'}"
        ),
        "KafkaStream": kafka_stream,
    }


def out_of_reach(folder: Path) -> Makers:
    """Datasets of places that are asked for nothing before the first sample, and hold none."""
    cache: Any = {"cache": folder / "cache", "cache_size": 1 << 24}
    hub = f"hf://datasets/somebody/texts@{'0123456789' * 4}/rows.txt"
    return {
        "TarStream, of a bucket": lambda: stoker.TarStream("s3://bucket/rows.tar", storage_options={"region": "r"}),
        "TarStream, with a cache": lambda: stoker.TarStream("s3://bucket/rows.tar", **cache),
        "TextLineStream, of the hub": lambda: stoker.TextLineStream(hub),
        "ImageFiles, of a bucket": lambda: stoker.ImageFiles(["s3://bucket/0.jpg"]),
    }


def kafka_stream() -> Any:
    from tests.sources.kafka.conftest import Broker

    broker = Broker()
    try:
        broker.fill("rows", [3, 2])
        return stoker.KafkaStream("rows", servers=broker.address)
    finally:
        broker.close()


def of_memory() -> Makers:
    """Datasets that combine others, and those in memory."""
    numbers = stoker.from_iterable(range, 9)
    items = stoker.TensorDataset(np.arange(12), np.arange(24).reshape(12, 2))
    texts = [[1, 2, 3], [4, 5], [6], [7, 8, 9, 10]]
    return {
        "Dataset": stoker.Dataset,
        "IterableDataset": lambda: testing("streams").Plain(5),
        "Stream": lambda: testing("streams").Numbers(5),
        "StreamIterator": lambda: iter(stoker.from_iterable(range, 9)),
        "from_iterable": lambda: stoker.from_iterable(range, 9),
        "columns": lambda: stoker.columns([{"path": f"{n}.jpg", "label": n} for n in range(6)]),
        "CacheDataset": lambda: stoker.CacheDataset(items, memory=1 << 20),
        "ChainDataset": lambda: stoker.ChainDataset([numbers, stoker.from_iterable(range, 3)]),
        "ConcatDataset": lambda: stoker.ConcatDataset([items, items]),
        "FilterDataset": lambda: stoker.FilterDataset(numbers, partial(operator.gt, 5)),
        "MapDataset": lambda: stoker.MapDataset(stoker.ZipDataset(numbers, numbers), sum),
        "MixDataset": lambda: stoker.MixDataset([numbers, stoker.from_iterable(range, 3)], [0.7, 0.3], stop="drop"),
        "PackDataset": lambda: stoker.PackDataset(texts, 5, lengths=[3, 2, 1, 4]),
        "RateLimitDataset": lambda: stoker.RateLimitDataset(items, per_second=1e6),
        "ShuffleDataset": lambda: stoker.ShuffleDataset(numbers, buffer_size=4, seed=5),
        "StackDataset": lambda: stoker.StackDataset(item=items, number=stoker.TensorDataset(np.arange(12))),
        "Subset": lambda: stoker.Subset(items, [3, 1, 7]),
        "random_split": lambda: stoker.random_split(items, [0.75, 0.25], generator=SEEDED()),
        "TensorDataset": lambda: stoker.TensorDataset(np.arange(12), np.arange(24).reshape(12, 2)),
        "TokenWindows": lambda: stoker.TokenWindows(np.arange(40, dtype=np.uint16), 8, stride=4),
        "ViewsDataset": lambda: stoker.ViewsDataset(items, 2),
        "WindowDataset": lambda: stoker.WindowDataset(numbers, 3, stride=2),
        "ZipDataset": lambda: stoker.ZipDataset(items, items),
        "WorkerInfo": lambda: stoker.WorkerInfo(1, 2, 7, items),
    }


def loaders() -> Makers:
    items = stoker.TensorDataset(np.arange(12), np.arange(24).reshape(12, 2))
    numbers = stoker.from_iterable(range, 9)
    loader = partial(stoker.DataLoader, seed=7, output="numpy")
    return {
        "DataLoader": lambda: loader(items, batch_size=4, shuffle=True, on_error="skip"),
        "DataLoader, of a stream": lambda: loader(numbers, batch_size=4, drop_last=True),
        "DataLoader, of a rank": lambda: loader(items, batch_size=2, distributed="exact", num_replicas=3, rank=1),
        "DataLoader, of samples": lambda: loader(items, batch_size=None, sampler=stoker.SequentialSampler(items)),
        "DataLoader, automatic": lambda: loader(items, batch_size=4, num_workers="auto"),
        "StatefulDataLoader": lambda: resumed_loader(
            stoker.StatefulDataLoader(items, batch_size=3, seed=7, output="numpy")
        ),
        "merge_states": lambda: stoker.merge_states([loader(items, batch_size=3).state_dict()]),
        "install": torchs_loader,
    }


def torchs_loader() -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(range(12), batch_size=5)  # type: ignore[arg-type]


def resumed_loader(loader: Any) -> Any:
    """A loader that has given one batch of three, as a program that stopped there makes it anew."""
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    loader.close()
    loader.load_state_dict(state)
    return loader


def orders_and_collators() -> Makers:
    items = range(12)
    in_order = stoker.SequentialSampler(items)
    pad = stoker.PadCollator(padding_value=-1, side="left", output="numpy")
    return {
        "Sampler": stoker.Sampler,
        "SequentialSampler": lambda: in_order,
        "RandomSampler": lambda: stoker.RandomSampler(items, generator=SEEDED()),
        "SubsetRandomSampler": lambda: stoker.SubsetRandomSampler([3, 1, 7], generator=SEEDED()),
        "WeightedRandomSampler": lambda: stoker.WeightedRandomSampler([1.0, 2.0, 0.5], 6, generator=SEEDED()),
        "weights_from_labels": lambda: stoker.weights_from_labels(LABELS),
        "DistributedSampler": lambda: stoker.DistributedSampler(items, num_replicas=3, rank=1, seed=5),
        "BatchSampler": lambda: stoker.BatchSampler(in_order, 5, False),
        "BucketBatchSampler": lambda: stoker.BucketBatchSampler(range(1, 13), batch_size=4, generator=SEEDED()),
        "StratifiedBatchSampler": lambda: stoker.StratifiedBatchSampler(LABELS, 6, generator=SEEDED()),
        "BalancedBatchSampler": lambda: stoker.BalancedBatchSampler(LABELS, 2, 3, generator=SEEDED()),
        "RowGroupSampler": lambda: stoker.RowGroupSampler([4, 4, 4], groups_at_once=2, generator=SEEDED()),
        "PadCollator": lambda: pad,
        "DetectionCollator": lambda: stoker.DetectionCollator("pad", output="numpy"),
        "GraphCollator": lambda: stoker.GraphCollator(nodes=["x"], output="numpy"),
        "MultimodalCollator": lambda: stoker.MultimodalCollator({"text": pad, "name": "list"}, output="numpy"),
        "PadCollator, a batch of it": lambda: pad([np.arange(3), np.arange(2)]),
    }


def records() -> Makers:
    """Results, reports, errors and events."""
    fault = events.FaultRecord(
        kind="exception",
        outcome="skipped",
        position=3,
        exception="ValueError: no picture",
        traceback="Traceback (most recent call last): ...",
        worker=1,
        index=3,
        time=0.0,
    )
    own: dict[type[events.Event], dict[str, Any]] = {
        events.SampleEvent: {"fault": fault},
        events.SampleFailed: {"fault": fault},
        events.SampleSkipped: {"fault": fault},
        events.WorkerDied: {"unit": 3, "mark": 1, "code": -9, "index": 13},
        events.WorkerStalled: {"unit": 3, "mark": 1, "seconds": 61.5, "index": 13},
        events.MemoryThrottled: {"working": 2, "growth": 1 << 20, "available": 1 << 21, "limit": 1 << 22},
        events.WorkersChosen: {"number": 2, "most": 4, "seconds": {"1": 0.5, "2": 0.3}},
    }
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.Event)]
    failures = {
        name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)
    }
    return {
        "events.FaultRecord": lambda: fault,
        **{
            f"events.{kind.__name__}": partial(
                kind, message="worker 1 was killed", time=0.0, worker=1, **own.get(kind, {})
            )
            for kind in kinds
        },
        **{f"errors.{name}": partial(error_of, kind) for name, kind in failures.items()},
        "errors.BatchError": lambda: errors.BatchError("shapes differ: (3,) and (4,)", "['image']", (0, 2)),
        "ErrorRecord": lambda: stoker.ErrorRecord("exception", 3, 3, 0, 1, 1, "3.jpg", ValueError("no picture"), "..."),
        "SampleOrigin": lambda: stoker.SampleOrigin("rows.parquet", 3),
        "integrations.lightning.StokerCallback": callback,
        "PackResult": lambda: stoker.PackResult(6, 0, ["rows-000000.tar"], 7168, 0.5, True),
        "Report": lambda: loader_with_faults().report(),
        "LoaderProfile": profile_of_loader,
        "Installation": installation,
        "images.Registration": registration,
        **{f"images.{name}": maker for name, maker in transforms().items()},
        **{f"testing.{name}": maker for name, maker in suites().items()},
    }


def error_of(kind: type[Exception]) -> Exception:
    """An error as a program catches it: with notes, and without its traceback, which pickle leaves out."""
    error = kind("sample 3 of shard-000001.tar: the cause, and what to change")
    error.add_note("read by worker 1")
    return error


def loader_with_faults() -> Any:
    """A loader, behind an epoch in which one sample was left out."""
    loader: Any = stoker.DataLoader(testing("backends").Failing(), batch_size=4, on_error="skip", max_error_rate=None)
    assert len(list(loader)) == 6
    return loader


def profile_of_loader() -> Any:
    loader = stoker.DataLoader(stoker.TensorDataset(np.arange(40)), batch_size=4, output="numpy")
    with loader.profile() as profiling:
        for _ in profiling:
            pass
    return profiling.result


def callback() -> Any:
    return importlib.import_module("stoker.integrations.lightning").StokerCallback("epoch")


def installation() -> Any:
    with stoker.install(images=False) as inner:
        return inner


def registration() -> Any:
    with stoker.images.register() as inner:
        return inner


def transforms() -> Makers:
    images = stoker.images
    return {
        "CenterCrop": lambda: images.CenterCrop(4),
        "ColorJitter": lambda: images.ColorJitter(0.4, hue=0.1),
        "Compose": lambda: images.Compose([images.Resize(4), images.ToTensor()]),
        "Grayscale": lambda: images.Grayscale(3),
        "Normalize": lambda: images.Normalize([0.5, 0.4, 0.3], [0.2, 0.2, 0.1]),
        "PILToTensor": lambda: images.PILToTensor(),
        "RandAugment": lambda: images.RandAugment(1),
        "RandomCrop": lambda: images.RandomCrop(4),
        "RandomErasing": lambda: images.RandomErasing(1.0),
        "RandomHorizontalFlip": lambda: images.RandomHorizontalFlip(0.3),
        "RandomResizedCrop": lambda: images.RandomResizedCrop(4),
        "RandomRotation": lambda: images.RandomRotation(9),
        "Resize": lambda: images.Resize((4, 5), "bicubic"),
        "ToTensor": lambda: images.ToTensor(),
        "TrivialAugmentWide": lambda: images.TrivialAugmentWide(),
    }


def testing(name: str) -> Any:
    return importlib.import_module(f"stoker.testing.{name}")


def suites() -> Makers:
    backends, streams = testing("backends"), testing("streams")
    return {
        "backends.Augmented": lambda: backends.Augmented("own"),
        "backends.Failing": backends.Failing,
        "backends.Choosy": backends.Choosy,
        "backends.Nested": backends.Nested,
        "backends.Batches": backends.Batches,
        "backends.ShardedStream": backends.ShardedStream,
        "backends.BackendSuite": backends.BackendSuite,
        "datasets.DatasetSuite": testing("datasets").DatasetSuite,
        "gather.GatherSuite": testing("gather").GatherSuite,
        "streams.Numbers": lambda: streams.Numbers(5),
        "streams.Plain": lambda: streams.Plain(5),
        "streams.KeepsState": lambda: streams.KeepsState(5),
        "streams.IteratorKeepsState": lambda: streams.IteratorKeepsState(5),
        "streams.StreamSuite": streams.StreamSuite,
    }
