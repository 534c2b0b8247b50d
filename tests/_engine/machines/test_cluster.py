"""The settings of workers on other machines, before a cluster is asked."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker._engine.machines.start_bridge import used_here
from stoker.errors import CannotSendError, MissingExtraError, WorkerStartError
from stoker.loader.record import options_of
from tests._engine.machines.local_cluster import LocalCluster


@pytest.mark.parametrize("folder", [False, True], ids=["nothing", "folder of that name"])
def test_missing_ray_is_named(folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if folder:
        (tmp_path / "ray").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # Ray itself is not on it
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'stoker\[ray\]'"):
        stoker.Ray(num_workers=1).check_installed()


@pytest.mark.parametrize("version", ["2.9.3", "1.13.0"])
def test_ray_that_is_too_old_is_named(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").touch()
    (tmp_path / "ray-1.dist-info").mkdir()
    (tmp_path / "ray-1.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ray\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    with pytest.raises(MissingExtraError, match=rf"needs Ray 2.40 or later, and {version} is installed: pip install"):
        stoker.Ray(num_workers=1).check_installed()


def test_loader_without_other_machines_imports_no_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = tmp_path / "imported"
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text(f"open({str(imported)!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    for workers in (0, 1):
        with stoker.DataLoader(range(8), num_workers=workers, output="numpy") as loader:
            assert [batch.tolist() for batch in loader] == [[index] for index in range(8)]
            str(loader.describe()), str(loader.report())
    assert "ray" not in sys.modules and not imported.exists()


@pytest.mark.parametrize("address", ["head", "head:abc", ":6379", "http://head:8265", "ray://head:10001"])
def test_address_that_is_none_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=f"address='{address}'"):
        stoker.Ray(1, address=address)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with (
        stoker.DataLoader(range(8), remote=LocalCluster(1), output="numpy") as loader,
        pytest.raises(ValueError, match=f"address='{address}'"),
    ):
        next(iter(loader))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"num_workers": 0}, "num_workers should be at least 1"),
        ({"num_cpus": -1}, "num_cpus should be 0 or more"),
        ({"num_cpus": 1.5}, "num_cpus should be a whole number, or a fraction of 1"),
        ({"num_cpus": 1e-5}, "num_cpus should be a whole number, or a fraction of 1"),
        ({"port": 70000}, "port should be at most 65535"),
        ({"resources": {"GPU": 1}}, "'GPU': workers on other machines get no GPU"),
        ({"resources": {"CPU": 1}}, "'CPU': pass num_cpus="),
        ({"resources": {"loader": -1}}, "loader should be a whole number"),
        ({"resources": {"loader": "1"}}, r"names to numbers, but got \{'loader': '1'\}"),
        ({"resources": {1: 1}}, r"names to numbers, but got \{1: 1\}"),
        ({"runtime_env": "."}, "runtime_env should be a mapping"),
    ],
)
def test_arguments_that_ray_would_refuse_are_refused_at_once(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        stoker.Ray(**{"num_workers": 1, **arguments})
    stoker.Ray(True, num_cpus=0.5, resources={"loader": 2, "other": 0.25}, port=80)


def test_port_that_is_in_use_is_named() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            stoker.DataLoader(range(8), remote=LocalCluster(1, port=port), output="numpy", timeout=60) as loader,
            pytest.raises(WorkerStartError, match=f"cannot listen at port={port} .* needs a port of its own"),
        ):
            next(iter(loader))


def test_auto_is_all_cpus_here_and_other_machines_on_demand() -> None:
    loader = stoker.DataLoader(range(8), num_workers="auto", output="numpy", remote=LocalCluster(5))
    assert loader.num_workers >= 1 and options_of(loader).on_demand
    assert options_of(stoker.DataLoader.from_torch(loader, batch_size=2)).on_demand
    assert "up to 5, as they are needed, on other machines" in str(loader.describe())


VARIABLE = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
PROGRAMS: dict[str, Any] = {"working_dir": "gcs://package.zip", "env_vars": {"COLOUR": "red", "SIZE": "1"}}


@pytest.mark.parametrize(
    ("address", "own", "expected"),
    [
        ("auto", None, PROGRAMS),
        ("head:1", {"env_vars": {"SIZE": "2"}}, {**PROGRAMS, "env_vars": {"COLOUR": "red", "SIZE": "2"}}),
        ("head:1", {"working_dir": "here"}, {**PROGRAMS, "working_dir": "here"}),
        ("other:1", {"pip": ["one"]}, {"pip": ["one"]}),
    ],
)
def test_programs_runtime_env_is_inherited(address: str, own: Any, expected: Any) -> None:
    cluster = used_here(stoker.Ray(1, address=address, runtime_env=own), "head:1", PROGRAMS)
    assert cluster.runtime_env == expected
    assert cluster.address == ("head:1" if address == "auto" else address)


@pytest.mark.parametrize("own", [{}, {"worker_process_setup_hook": "module.other"}], ids=["inherited", "own"])
def test_setup_hook_is_named_once_as_ray_demands(own: dict[str, Any]) -> None:
    """A function is sent by a variable, beside which its name is refused."""
    programs = {"worker_process_setup_hook": "setup", "env_vars": {VARIABLE: "function:1"}}
    cluster = used_here(stoker.Ray(1, runtime_env=own), "head:1", programs)
    assert cluster.runtime_env == (own or {"env_vars": {VARIABLE: "function:1"}})


def test_program_without_a_runtime_env_sets_none() -> None:
    assert used_here(stoker.Ray(1), "head:1", {}).runtime_env is None


class Locked(stoker.Dataset[int]):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return index


def test_dataset_that_cannot_be_sent_gets_no_advice_to_fork() -> None:
    with (
        stoker.DataLoader(Locked(), remote=LocalCluster(1), output="numpy") as loader,
        pytest.raises(
            CannotSendError, match=r"dataset.lock.* make it anew in __setstate__\. Workers on other machines"
        ),
    ):
        next(iter(loader))


class Endless(stoker.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(8)


def test_stream_has_a_fixed_number_of_workers() -> None:
    loader = stoker.DataLoader(Endless(), num_workers="auto", output="numpy", remote=LocalCluster(5))
    assert not options_of(loader).on_demand
