from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import MissingExtraError, RecordError
from stoker.sources.tar import decode as decode_module
from stoker.sources.tar.decode import SampleDecoder


def decoded(members: dict[str, Any], **options: Any) -> dict[str, Any]:
    sample = {"__key__": "k", "__url__": "u.tar", **members}
    found = SampleDecoder(**{"decode": True, "transform": None, **options})(sample)
    return {name: value for name, value in found.items() if not name.startswith("__")}


def saved(save: Any, *args: Any, **options: Any) -> bytes:
    data = io.BytesIO()
    save(data, *args, **options)
    return data.getvalue()


def test_texts_numbers_and_json() -> None:
    members = {
        "txt": "é".encode(),
        "cls": b" 12\n",
        "json": b'{"a": [1]}',
        "a.json": b"[]",
        "mp4": b"m",
        "pickle": b"p",
    }
    assert decoded(members) == {
        "txt": "é",
        "cls": 12,
        "json": {"a": [1]},
        "a.json": [],
        "mp4": b"m",
        "pickle": b"p",
    }
    assert decoded({"txt": b"a", "cls": b"1"}, decode=False) == {"txt": b"a", "cls": b"1"}


def test_arrays() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = decoded({"npy": saved(np.save, array), "x.npz": saved(np.savez, a=array, b=array[0])})
    assert np.array_equal(found["npy"], array) and found["npy"].dtype == np.float32
    assert sorted(found["x.npz"]) == ["a", "b"] and np.array_equal(found["x.npz"]["b"], array[0])


def test_pickles_in_arrays_are_refused() -> None:
    objects = np.array([{}, 1], dtype=object)
    for extension, data in (("npy", saved(np.save, objects)), ("npz", saved(np.savez, a=objects))):
        with pytest.raises(RecordError, match="allow_pickle"):
            decoded({extension: data})


def test_tensors_are_loaded_as_weights_only(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    found = decoded({"pth": saved(lambda data, value: torch.save(value, data), {"w": torch.arange(3)})})
    assert found["pth"]["w"].tolist() == [0, 1, 2]
    harmful = saved(lambda data, value: torch.save(value, data), Path)
    with pytest.raises(RecordError, match=r"'pth' .* of the sample 'k' cannot be decoded: UnpicklingError"):
        decoded({"pth": harmful})


@pytest.mark.parametrize(
    ("extension", "form", "mode"), [("jpg", "JPEG", "L"), ("png", "PNG", "P"), ("webp", "WEBP", "RGB")]
)
def test_images_keep_their_mode(extension: str, form: str, mode: str) -> None:
    image_module = pytest.importorskip("PIL.Image")
    image = image_module.new(mode, (5, 4))
    found = decoded({f"seg.{extension}": saved(lambda data: image.save(data, form))})[f"seg.{extension}"]
    assert (found.size, found.mode) == ((5, 4), mode)
    assert np.array_equal(np.asarray(found), np.asarray(image))


def test_damaged_member_is_an_error_that_names_it() -> None:
    pytest.importorskip("PIL.Image")
    for extension, data in (("jpg", b"x"), ("json", b"{"), ("cls", b""), ("txt", b"\xff"), ("npy", b"")):
        with pytest.raises(RecordError, match=rf"^u\.tar: the member '{extension}' \({len(data)} bytes\) .*'k'"):
            decoded({extension: data})


def test_own_decoders_come_first() -> None:
    found = decoded({"json": b"[1]", "seg.bin": b"ab", "seg.txt": b"x"}, decode={"bin": len, ".SEG.TXT": bytes.upper})
    assert found == {"json": [1], "seg.bin": 2, "seg.txt": b"X"}
    assert decoded({"json": b"[1]"}, decode={"json": json.loads}) == {"json": [1]}


@pytest.mark.parametrize(("extension", "package"), [("jpg", "PIL.Image"), ("pth", "torch")])
def test_missing_package_names_its_extra(extension: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(decode_module.importlib, "import_module", missing)
    with pytest.raises(MissingExtraError, match=r"stoker\[(images|torch)\]"):
        decoded({extension: b""})
