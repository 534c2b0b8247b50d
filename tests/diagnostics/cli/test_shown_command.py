"""Reports show the command line without what looks secret in it."""

from __future__ import annotations

import pytest

from stoker.diagnostics.cli.output import shown_command


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["train.py", "--lr", "0.1", "-v"], "train.py --lr 0.1 -v"),
        (["--token", "hf_abc", "--epochs", "3"], "--token '***' --epochs 3"),
        (["--api-key=abc"], "'--api-key=***'"),
        (
            ["--hf_token", "a", "--apiKey", "b", "--wandb-api-key", "c"],
            "--hf_token '***' --apiKey '***' --wandb-api-key '***'",
        ),
        (
            ["--password", "a b", "--db.passwd=x", "--client-secret=y"],
            "--password '***' '--db.passwd=***' '--client-secret=***'",
        ),
        (["--credentials", "file.json"], "--credentials '***'"),
        (
            ["logger.api_key=abc", "+db.password=x", "AWS_SECRET_ACCESS_KEY=y"],
            "'logger.api_key=***' '+db.password=***' 'AWS_SECRET_ACCESS_KEY=***'",
        ),
        (
            ["--env=WANDB_API_KEY=abc", "--header", "Authorization: Bearer x"],
            "'--env=WANDB_API_KEY=***' --header 'Authorization: ***'",
        ),
        (
            ["--tokenizer", "gpt2", "--max-tokens", "512", "--max_tokens=9"],
            "--tokenizer gpt2 --max-tokens 512 --max_tokens=9",
        ),
        (["--use-token", "--epochs", "3"], "--use-token --epochs 3"),
        (["--data", "https://me:pw@host/x?sig=1"], "--data https://host/x"),
        (["--data=s3://key:pw@bucket/x"], "--data=s3://bucket/x"),
        (["me:pw@host:5432/db"], "'***@host:5432/db'"),
        (["https://[broken/me:pw@host"], "'***'"),
        (["tcp://127.0.0.1:29500", "a@b", "C:\\data\\x"], "tcp://127.0.0.1:29500 a@b 'C:\\data\\x'"),
        (["--token"], "--token"),
        (["\udcff"], "'\udcff'"),
    ],
)
def test_values_that_look_secret_are_masked(words: list[str], shown: str) -> None:
    assert shown_command(words) == shown
