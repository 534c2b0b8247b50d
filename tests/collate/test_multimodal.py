from __future__ import annotations

import dataclasses
import os
import pickle
import random
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import collate as collation
from stoker.collate import DetectionCollator, MultimodalCollator, PadCollator, Padded, TensorLeaf
from stoker.errors import BatchError, MissingFieldError

SAMPLES = [
    {"image": np.full((2, 2), n, np.uint8), "text": "ab" * n, "audio": np.arange(n + 1.0), "id": f"s{n}"}
    for n in range(3)
]


@dataclasses.dataclass
class Item:
    image: Any
    audio: Any


def lengths(texts: list[str]) -> dict[str, Any]:
    return {"length": np.array([len(text) for text in texts]), "given": texts}


def drawn(values: list[Any]) -> Any:
    return np.array([random.random() for _ in values])


def collate(fields: Any, **options: Any) -> MultimodalCollator:
    return MultimodalCollator(fields, **options).for_output("numpy")


def test_each_field_is_collated_in_its_way() -> None:
    batch = collate({"image": "stack", "text": lengths, "audio": "pad", "id": "list"})(SAMPLES)
    assert list(batch) == ["image", "text", "audio", "id", "audio_mask"]
    assert batch["image"].shape == (3, 2, 2) and batch["id"] == ["s0", "s1", "s2"]
    assert batch["text"]["length"].tolist() == [0, 2, 4] and batch["text"]["given"] == ["", "abab"[:2], "abab"]
    assert batch["audio"].tolist() == [[0, 0, 0], [0, 1, 0], [0, 1, 2]]
    assert batch["audio_mask"].sum(1).tolist() == [1, 2, 3]


def test_options_of_a_padding_collator_hold() -> None:
    audio = PadCollator(-1, side="left", mask=".real")
    batch = collate({"audio": audio}, others="list")(SAMPLES)
    assert batch["audio"].tolist() == [[-1, -1, 0], [-1, 0, 1], [0, 1, 2]] and "audio.real" in batch
    assert "audio_mask" not in collate({"audio": PadCollator(mask=None)})(SAMPLES)


def test_other_structures_are_numbered_or_named() -> None:
    pairs = [(sample["audio"], sample["id"]) for sample in SAMPLES]
    audio, names = collate({0: "pad", 1: "list"})(pairs)
    assert isinstance(audio, Padded) and names == ["s0", "s1", "s2"]
    items = [Item(sample["image"], sample["audio"]) for sample in SAMPLES]
    assert isinstance(collate({"audio": "pad"})(items).audio, Padded)
    nested = [{"a": {"x": sample["audio"], "y": 1}} for sample in SAMPLES]
    batch = collate({"a": MultimodalCollator({"x": "list"})})(nested)
    assert len(batch["a"]["x"]) == 3 and batch["a"]["y"].tolist() == [1, 1, 1]


def test_nested_detection_targets_stay_lists() -> None:
    samples = [{"seen": (np.ones((3, 2, n)), {"boxes": np.ones((n, 4))}), "n": n} for n in (1, 2)]
    images, targets = collate({"seen": DetectionCollator("pad")})(samples)["seen"]
    assert images.values.shape == (2, 3, 2, 2) and [target["boxes"].shape for target in targets] == [(1, 4), (2, 4)]


def test_errors_name_the_field() -> None:
    with pytest.raises(MissingFieldError, match=r"names \['sound'\], but the samples have only \['image'"):
        collate({"sound": "pad", "audio": "pad"})(SAMPLES)
    with pytest.raises(BatchError, match=r'sample\["audio"\]: stack expects .*\(1,\) in sample 0'):
        collate({"image": "stack"})(SAMPLES)

    def fails(values: list[Any]) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        collate({"audio": "pad", "text": fails})(SAMPLES)
    assert caught.value.__notes__ == ["raised by the function that collates the field 'text'"]
    with pytest.raises(ValueError, match="'text' should be collated by one of"):
        MultimodalCollator({"text": "tokenise"})
    with pytest.raises(BatchError, match="found <class 'int'>"):
        collate({})([1, 2])


def test_outputs_reach_nested_collators_and_results() -> None:
    torch = pytest.importorskip("torch")
    given = MultimodalCollator({"audio": PadCollator(), "text": lengths, "id": "list"})
    for output, kind in (("torch", torch.Tensor), ("numpy", np.ndarray)):
        batch = given.for_output(output)(SAMPLES)
        assert {*map(type, (batch["image"], batch["audio"], batch["audio_mask"], batch["text"]["length"]))} == {kind}
    assert pickle.loads(pickle.dumps(given)) == given


def test_workers_without_torch_defer_what_functions_return(torch_not_loaded: None) -> None:
    batch = MultimodalCollator({"audio": "pad", "text": lengths}).for_output("deferred")(SAMPLES)
    assert type(batch["text"]["length"]) is type(batch["audio"]) is type(batch["image"]) is TensorLeaf


def test_leaves_are_written_into_the_memory_of_the_batch(slot: Any) -> None:
    batch = collate({"audio": "pad", "id": "list", "text": "list"})(SAMPLES)
    assert all(slot.holds(batch[name]) for name in ("image", "audio", "audio_mask"))


def test_only_collators_with_functions_run_users_code() -> None:
    assert collation.is_ours(MultimodalCollator({"audio": PadCollator(), "id": "list"}))
    assert not collation.is_ours(MultimodalCollator({"text": lengths}))
    assert not collation.is_ours(MultimodalCollator({"a": MultimodalCollator({"text": lengths})}))


def test_random_numbers_of_functions_repeat_with_the_seed() -> None:
    def numbers(workers: int) -> list[float]:
        collate_fn = MultimodalCollator({"audio": "list", "text": drawn, "id": "list"})
        with stoker.DataLoader(
            SAMPLES * 4, batch_size=3, num_workers=workers, seed=5, output="numpy", collate_fn=collate_fn
        ) as loader:
            return [number for batch in loader for number in batch["text"].tolist()]

    assert len({*(once := numbers(0))}) == 12 and once == numbers(2)


class Words:
    """Tokenises in batches, with a tokenizer that is built here."""

    def __init__(self) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers

        self.tokenizer = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2, "dog": 3, "cat": 4}, "[UNK]"))
        self.tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        self.tokenizer.enable_padding(pad_id=0)

    def __call__(self, texts: list[str]) -> dict[str, Any]:
        encoded = self.tokenizer.encode_batch(texts)
        return {
            "input_ids": np.array([each.ids for each in encoded]),
            "attention_mask": np.array([each.attention_mask for each in encoded]),
        }


TEXTS = [{"text": "a dog " * (1 + n % 3), "n": n} for n in range(24)]


def check_tokens(loader: Any) -> None:
    seen = []
    for batch in loader:
        ids, mask = batch["text"]["input_ids"], batch["text"]["attention_mask"]
        assert type(ids) is np.ndarray and mask.sum(1).tolist() == [2 * (1 + n % 3) for n in batch["n"].tolist()]
        assert set(ids[mask == 1].tolist()) == {2, 3}
        seen += batch["n"].tolist()
    assert sorted(seen) == list(range(24))


@pytest.mark.parametrize("birth", ["fork", "spawn"])
def test_a_tokenizer_runs_in_the_workers(birth: str) -> None:
    pytest.importorskip("tokenizers")
    with stoker.DataLoader(
        TEXTS,
        batch_size=5,
        shuffle=True,
        num_workers=2,
        multiprocessing_context=birth,
        output="numpy",
        collate_fn=MultimodalCollator({"text": Words()}),
    ) as loader:
        check_tokens(loader)


PROGRAM = """
import os
import stoker
from tests.collate.test_multimodal import TEXTS, Words, check_tokens

words = Words()
words(["a dog"] * 1000)  # starts the tokenizer's threads in this process
with stoker.DataLoader(
    TEXTS, batch_size=5, num_workers=2, output="numpy", collate_fn=stoker.MultimodalCollator({"text": words})
) as loader:
    check_tokens(loader)
assert "TOKENIZERS_PARALLELISM" not in os.environ
words(["a dog"] * 1000)
"""


def told(index: int) -> str:
    return os.environ.get("TOKENIZERS_PARALLELISM", "nothing")


@pytest.mark.parametrize(("user", "expected"), [(None, "false"), ("true", "true")])
def test_forked_workers_tokenize_without_threads(user: Any, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", types.ModuleType("tokenizers"))
    if user is None:
        monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    else:
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", user)
    with stoker.DataLoader(
        stoker.MapDataset(range(4), told), batch_size=2, num_workers=2, multiprocessing_context="fork"
    ) as loader:
        assert list(loader) == [[expected] * 2] * 2
    assert os.environ.get("TOKENIZERS_PARALLELISM") == user


def test_a_fork_after_tokenizing_warns_of_nothing() -> None:
    pytest.importorskip("tokenizers")
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
