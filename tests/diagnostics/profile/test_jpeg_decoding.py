"""Time in which Pillow decodes whole JPEGs is measured, and the verdict names the cure."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("PIL")

from PIL import JpegImagePlugin

from stoker.diagnostics.batch_making import BatchMaking
from stoker.diagnostics.measurements import Measurements
from stoker.diagnostics.profile.jpeg_decoding import decoded_by_pillow, measure_decoding
from stoker.diagnostics.recorder import Recorder
from stoker.diagnostics.run_result import as_dict
from stoker.diagnostics.verdict import verdict
from tests.diagnostics.test_real_runs import run
from tests.diagnostics.test_verdict import WAITING, with_workers
from tests.images.pictures import jpeg

DECODING = replace(
    WAITING, about=with_workers(2, engine="torch"), making=BatchMaking(0.16, 0.16, 1.2, 0.01), jpegs=12.0
)


def test_verdict_names_the_cure() -> None:
    said = verdict(DECODING, cpus=2)
    assert said.kind == "data-bound" and said.change is not None
    assert said.change.startswith("Call stoker.install()") and "75% of the time" in said.change
    assert "`stoker compare`" in said.change
    ours = replace(DECODING, about=with_workers(0, engine="stoker"))
    assert str(verdict(ours, cpus=1).change).startswith("Call stoker.images.register()")
    first, _, second = str(verdict(replace(ours, cpu=3.0), cpus=4).change).partition(". ")
    assert first.startswith("Pass num_workers=") and second.startswith("Call stoker.images.register()")


@pytest.mark.parametrize("less", [{"jpegs": 6.0}, {"jpegs": 0.0}, {"making": None}])
def test_other_causes_are_left_to_the_others(less: dict[str, Any]) -> None:
    assert decoded_by_pillow(replace(DECODING, **less)) is None


def test_decoding_is_recorded_for_its_epoch(tmp_path: Path) -> None:
    class Plugin(JpegImagePlugin.JpegImageFile):
        """A class of its own, so that Pillow's stays as it is."""

    recorder = Recorder(str(tmp_path))
    measure_decoding(recorder, SimpleNamespace(JpegImageFile=Plugin))  # type: ignore[arg-type]
    data = jpeg("4:2:0", 200, 150)
    Plugin(io.BytesIO(data)).load()  # of no epoch
    loader = type("Loader", (), {"dataset": [], "num_workers": 0})()
    recorder.mark = mark = recorder.new_mark()
    recorder.begin(loader, "train.py:1", 0.0, 0.0, mark=mark)
    for _ in range(3):
        image = Plugin(io.BytesIO(data))
        image.load()
        image.load()  # which decodes nothing
    recorder.flush()
    Plugin(io.BytesIO(data)).load()
    recorder.flush()
    known = Measurements()
    known.read(str(tmp_path))
    assert [len(seconds) for one in known.loaders for seconds in one.jpegs] == [2]
    assert 0 < known.loaders[0].summary().jpegs < 10


DECODES = """
    import io
    import numpy as np
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset

    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (375, 500, 3), np.uint8)).save(file, "JPEG")

    class Photos(Dataset):
        def __len__(self):
            return 400

        def __getitem__(self, index):
            with Image.open(io.BytesIO(file.getvalue())) as image:
                return np.array(image.convert("RGB").crop((40, 30, 140, 130)))

    if __name__ == "__main__":
        for batch in DataLoader(Photos(), batch_size=8, num_workers=2):
            pass
    """


@pytest.mark.slow
def test_run_of_a_program_names_the_cure(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    known, code = run(tmp_path, DECODES)
    (loader,) = as_dict(known)["loaders"]
    assert code == 0 and str(loader["change"]).startswith("Call stoker.install()"), loader["change"]
    known, code = run(tmp_path, DECODES, engine="stoker")
    (loader,) = as_dict(known)["loaders"]
    assert code == 0 and "Pillow" not in str(loader["change"])
