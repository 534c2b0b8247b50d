"""The programs of the three new users of `first_hour.py`, as they would write them."""

PHOTOS = """\
import random, sys, time
from pathlib import Path
import numpy as np
import torch
from PIL import Image
from {package} import DataLoader
from torch.utils.data import Dataset

class Photos(Dataset):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).rglob("*.jpg"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image = Image.open(self.paths[index]).convert("RGB")
        area, ratio = image.width * image.height * random.uniform(0.08, 1), random.uniform(3 / 4, 4 / 3)
        width, height = min(image.width, (area * ratio) ** 0.5), min(image.height, (area / ratio) ** 0.5)
        left, top = random.uniform(0, image.width - width), random.uniform(0, image.height - height)
        box = [int(side) for side in (left, top, left + width, top + height)]
        return torch.from_numpy(np.array(image.crop(box).resize((224, 224), Image.BILINEAR)))

if __name__ == "__main__":
    loader = DataLoader(Photos(sys.argv[1]), batch_size=32, shuffle=True, num_workers=2, persistent_workers=True)
    list(loader)
    begun, seen = time.perf_counter(), 0
    for epoch in range(int(sys.argv[2])):
        for batch in loader:
            seen += len(batch)
    print("RATE", seen / (time.perf_counter() - begun))
"""

TEXT = """\
import json, os, signal, sys
import stoker

def tokens(row):
    return {"id": row["id"], "tokens": [len(word) for word in row["text"].split()]}

if __name__ == "__main__":
    folder, until, kill, resumes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "resume"
    rank = os.environ["RANK"]
    dataset = stoker.JSONLinesDataset(f"{folder}/texts.jsonl", transform=tokens)
    lengths = [len(sample["tokens"]) for sample in dataset]
    loader = stoker.DataLoader(
        dataset, batch_sampler=stoker.BucketBatchSampler(lengths, batch_size=4), num_workers=2, seed=7,
        collate_fn=stoker.PadCollator(), distributed="pad")
    place = f"{folder}/state-{rank}.json"
    step = 0
    if resumes:
        state = json.load(open(place))
        step = state["step"]
        loader.load_state_dict(state["loader"])
    while step < until:
        for batch in loader:
            step += 1
            print(step, sorted(int(number) for number in batch["id"]), flush=True)
            if step % 20 == 0 and not kill < step:
                json.dump({"step": step, "loader": loader.state_dict()}, open(place, "w"))
            if step == kill:
                os.kill(os.getpid(), signal.SIGKILL)
            if step == until:
                break
"""

STORE = """\
import sys
import boto3, stoker

if __name__ == "__main__":
    address, key = sys.argv[1:]
    options = {"endpoint": address, "access_key_id": "an-id", "secret_access_key": key, "region": "us-east-1"}
    client = boto3.client("s3", region_name="us-east-1", endpoint_url=address, aws_access_key_id="an-id",
                          aws_secret_access_key=key)
    client.create_bucket(Bucket="data")
    with stoker.TarWriter("train-%06d.tar", max_count=50) as writer:
        for number in range(100):
            writer.write({"__key__": f"{number:03}", "cls": number})
    for number in range(2):
        client.upload_file(f"train-{number:06}.tar", "data", f"train-{number:06}.tar")
    stream = stoker.TarStream("s3://data/train-*.tar", storage_options=options)
    loader = stoker.DataLoader(stream, batch_size=10, num_workers=2)
    seen = [int(label) for batch in loader for label in batch["cls"]]
    assert sorted(seen) == list(range(100)), seen
    said = [repr(stream), repr(loader), loader.describe(), str(loader.report()), repr(loader.state_dict())]
    print("SECRETS", sum(key in text for text in said))
"""

SMALL = """\
import os
import numpy as np
import stoker

if __name__ == "__main__":
    size = os.statvfs("/dev/shm")
    assert size.f_frsize * size.f_blocks <= 64 << 20, "the small /dev/shm is not there"
    big = stoker.DataLoader([np.zeros((8 << 20,), np.uint8)] * 24, batch_size=4, num_workers=2, output="numpy")
    print("BATCHES", sum(batch.shape == (4, 8 << 20) for batch in big))
"""

MISTAKE = """\
from stoker import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"a": 1}["b" if index == 5 else "a"]

if __name__ == "__main__":
    list(DataLoader(Rows(), 2, num_workers=2))
"""
