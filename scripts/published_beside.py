"""Makes what published scripts find beside them: a small BERT, MRPC's table and metrics under the names of the hub.

`from_pretrained`, `load_dataset` and `evaluate.load` take a folder of the working directory before they ask the hub.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAIRS = {"train": 320, "validation": 96, "test": 96}

ACCURACY = '''\
"""Accuracy, in the form that evaluate.load("accuracy") finds in the working directory."""

import datasets
import evaluate


class Accuracy(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int32"), "references": datasets.Value("int32")})
        return evaluate.MetricInfo(description="accuracy", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        right = sum(int(one == other) for one, other in zip(predictions, references))
        return {"accuracy": right / len(references)}
'''

GLUE = '''\
"""Accuracy and F1, in the form that evaluate.load("glue", "mrpc") finds in the working directory."""

import datasets
import evaluate


class Glue(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="glue", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        pairs = list(zip(predictions, references))
        both = sum(1 for one, other in pairs if one and other)
        either = sum(predictions) + sum(references)
        right = sum(int(one == other) for one, other in pairs)
        return {"accuracy": right / len(pairs), "f1": 2 * both / either if either else 0.0}
'''

CARD = """\
---
configs:
- config_name: mrpc
  data_files:
  - split: train
    path: mrpc/train.jsonl
  - split: validation
    path: mrpc/validation.jsonl
  - split: test
    path: mrpc/test.jsonl
---
"""


def metrics(folder: Path) -> None:
    """Makes `accuracy/accuracy.py` and `glue/glue.py`."""
    for name, text in (("accuracy", ACCURACY), ("glue", GLUE)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / f"{name}.py").write_text(text)


def pairs(folder: Path) -> None:
    """Makes `nyu-mll/glue`: two sentences, of which the second has the words of the first where the label is 1."""
    draws = random.Random(0)
    words = _words()
    place = folder / "nyu-mll" / "glue"
    (place / "mrpc").mkdir(parents=True, exist_ok=True)
    (place / "README.md").write_text(CARD)
    for split, number in PAIRS.items():
        rows = []
        for index in range(number):
            first = draws.sample(words, draws.randint(6, 14))
            label = draws.randint(0, 1)
            second = draws.sample(first if label else words, len(first))
            row = {"sentence1": " ".join(first), "sentence2": " ".join(second), "label": label, "idx": index}
            rows.append(json.dumps(row))
        (place / "mrpc" / f"{split}.jsonl").write_text("\n".join(rows) + "\n")


def bert(folder: Path) -> None:
    """Makes `bert-base-cased`: a tokenizer of whole words, and a small model with random weights."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    place = folder / "bert-base-cased"
    place.mkdir(parents=True, exist_ok=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_words()]
    (folder / "vocabulary.txt").write_text("\n".join(vocabulary) + "\n")
    BertTokenizer(str(folder / "vocabulary.txt"), do_lower_case=False, model_max_length=64).save_pretrained(place)
    (folder / "vocabulary.txt").unlink()
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.5,  # predictions that differ, and change within few steps
    )
    BertForSequenceClassification(config).save_pretrained(place)


def _words() -> list[str]:
    """Returns the plain words of this repository's pages, sorted."""
    text = " ".join(page.read_text() for page in sorted((ROOT / "docs" / "guides").glob("*.md")))
    return sorted({word for word in text.split() if word.isascii() and word.isalpha()})[:2000]
