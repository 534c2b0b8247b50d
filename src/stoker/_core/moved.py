"""Modules that moved, by the names that they had: pickles that users keep name them.

`first_use.FormerModules` asks this module for names of Stoker that no other finder knows. The module of a former name
is today's module itself, so classes are the same under both names. There is no warning: a name in a pickle is nobody's
to change.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

MODULES = {
    "stoker._accounting": "stoker.loader._accounting",
    "stoker._accounting.error_budget": "stoker.loader._accounting.accounting",
    "stoker._accounting.event_dispatcher": "stoker.loader._accounting.ledger",
    "stoker._autotune": "stoker.loader._autotune",
    "stoker._epoch": "stoker.loader._epoch",
    "stoker._epoch.rank_slice": "stoker.loader._epoch.ranks",
    "stoker._exceptions": "stoker._core.exceptions",
    "stoker._first_use": "stoker._core.first_use",
    "stoker._freeze": "stoker._engine.fork.heap_sharing",
    "stoker._hashing": "stoker._core.hashing",
    "stoker._job": "stoker.loader._job",
    "stoker._machine": "stoker._core.machine",
    "stoker._moved": "stoker._core.moved",
    "stoker._native": "stoker._core.native",
    "stoker._nominal": "stoker._core.nominal",
    "stoker._observer": "stoker.loader._accounting.observer",
    "stoker._options": "stoker.loader._options",
    "stoker._ours": "stoker._core.protocol",
    "stoker._protocol": "stoker._core.protocol",
    "stoker._random": "stoker.loader._random",
    "stoker._random.sample_parts": "stoker.loader._random.find_generators",
    "stoker._state": "stoker.loader._state",
    "stoker._state.snapshots": "stoker.loader._state.resharding",
    "stoker._supervision": "stoker._engine.supervision",
    "stoker._transport": "stoker._engine.transport",
    "stoker._worker_info": "stoker._core.worker_info",
    "stoker.cli": "stoker.diagnostics.cli",
    "stoker.collate._compiled.node": "stoker.collate._compiled.incremental",
    "stoker.collate._leaves": "stoker.collate",
    "stoker.collate._leaves.batch_memory": "stoker.collate.tensors",
    "stoker.collate._leaves.number_lists": "stoker.collate.padded",
    "stoker.collate._leaves.stacking": "stoker.collate.stacking",
    "stoker.collate.convert": "stoker.collate.default",
    "stoker.datasets._cache": "stoker.datasets",
    "stoker.datasets._cache.sample_pickle": "stoker.datasets.sample_record",
    "stoker.datasets._cache.store": "stoker.datasets.cache_store",
    "stoker.datasets._stream": "stoker.datasets",
    "stoker.datasets._stream.fingerprint": "stoker.datasets.fingerprint",
    "stoker.datasets._stream.listening": "stoker.datasets.worker_share",
    "stoker.datasets._stream.positions": "stoker.datasets.read_again",
    "stoker.datasets._stream.rank_share": "stoker.datasets.declared",
    "stoker.datasets._stream.read_again": "stoker.datasets.read_again",
    "stoker.datasets._stream.shards": "stoker.datasets.shards",
    "stoker.datasets._stream.worker_share": "stoker.datasets.worker_share",
    "stoker.datasets.concat": "stoker.datasets.chain",
    "stoker.datasets.document_windows": "stoker.datasets.tokens",
    "stoker.datasets.filter": "stoker.datasets.map",
    "stoker.datasets.proportion": "stoker.datasets.mix",
    "stoker.datasets.split": "stoker.datasets.subset",
    "stoker.datasets.tensor": "stoker.datasets.stack",
    "stoker.images.arguments": "stoker.images.decoding",
    "stoker.images.header": "stoker.images.decoding",
    "stoker.images.lazy": "stoker.images.plugin",
    "stoker.images.pending": "stoker.images.scaling",
    "stoker.images.source": "stoker.images.decoding",
    "stoker.loader._profile": "stoker.diagnostics.profile",
    "stoker.loader._profile.loop_times": "stoker.diagnostics.profile.profiling",
    "stoker.loader._profile.profile_figures": "stoker.diagnostics.profile.profile_verdict",
    "stoker.loader._profile.profile_trace": "stoker.diagnostics.profile.profile_session",
    "stoker.loader._profile.stage_times": "stoker.diagnostics.profile.batch_sums",
    "stoker.samplers.groups": "stoker.samplers.balanced",
    "stoker.sources.arrays.inline_loop": "stoker.sources.arrays.zarr_rows",
    "stoker.sources.arrays.mapped_rows": "stoker.sources.arrays.stored",
    "stoker.sources.arrays.raw_rows": "stoker.sources.arrays.npy_format",
    "stoker.sources.arrays.stored_rows": "stoker.sources.arrays.stored",
    "stoker.sources.block_account": "stoker.sources.block_file",
    "stoker.sources.cache_failures": "stoker.sources.cached_storage",
    "stoker.sources.cached_file": "stoker.sources.cached_storage",
    "stoker.sources.clips.cut": "stoker.sources.clips.clips_of_files",
    "stoker.sources.clips.mp3_frames": "stoker.sources.clips.exact_start",
    "stoker.sources.clips.ogg_pages": "stoker.sources.clips.exact_start",
    "stoker.sources.clips.video_file": "stoker.sources.clips.video_clips",
    "stoker.sources.file_object": "stoker.sources.storage",
    "stoker.sources.hdf5.place": "stoker.sources.hdf5.dataset",
    "stoker.sources.hdf5.raw_chunks": "stoker.sources.hdf5.rows",
    "stoker.sources.hub_place": "stoker.sources.urls",
    "stoker.sources.kafka.listing": "stoker.sources.kafka.client_config",
    "stoker.sources.kafka.shares": "stoker.sources.kafka.cursor",
    "stoker.sources.lines.column_types": "stoker.sources.lines.parsing",
    "stoker.sources.lines.cutting": "stoker.sources.lines.opened_text",
    "stoker.sources.lines.index": "stoker.sources.lines.by_index",
    "stoker.sources.mds.reader": "stoker.sources.mds.folder",
    "stoker.sources.mds.shards": "stoker.sources.mds.folder",
    "stoker.sources.mds.values": "stoker.sources.mds.dataset",
    "stoker.sources.object_errors": "stoker.sources.storage",
    "stoker.sources.once": "stoker.sources.per_process",
    "stoker.sources.parquet.partitions": "stoker.sources.parquet.values",
    "stoker.sources.sample_origin": "stoker.sources.parquet.values",
    "stoker.sources.source_files": "stoker.sources.storage_of",
    "stoker.sources.sql.clean_connection": "stoker.sources.sql.connection",
    "stoker.sources.sql.databases": "stoker.sources.sql",
    "stoker.sources.sql.databases.duckdb_database": "stoker.sources.sql.database",
    "stoker.sources.sql.databases.postgresql_database": "stoker.sources.sql.database",
    "stoker.sources.sql.databases.sqlalchemy_database": "stoker.sources.sql.find_database",
    "stoker.sources.sql.databases.sqlite_database": "stoker.sources.sql.database",
    "stoker.sources.sql.records": "stoker.sources.sql.connection",
    "stoker.sources.tar.headers": "stoker.sources.tar.members",
    "stoker.sources.tfrecord.example": "stoker.sources.tfrecord.records",
}
"""From the former name of a module to today's. An entry of a package holds for all modules below it that have none of
their own. Both names are full: `"stoker._machine": "stoker._core.machine"`. A package that is no more needs an entry as
long as a module below it has one. Of a module that was split, the entry names the part that has or imports every class.
"""


def name_today(former: str) -> str | None:
    """Returns the name that a module of this former name has today; None if the name was never another's."""
    package = former
    while package not in MODULES:
        package = package.rpartition(".")[0]
        if not package:
            return None
    return MODULES[package] + former.removeprefix(package)


def spec_of(name: str) -> ModuleSpec | None:
    """Returns how to import a former name; None if it is none."""
    return None if name_today(name) is None else ModuleSpec(name, _Today())


class _Today(Loader):
    """Loads today's module in place of a former one."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Has Python make an empty module, which `exec_module` replaces: so today's keeps its own `__spec__`."""

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(str(name_today(module.__name__)))
