"""Runs a function with a Kafka client in a clean interpreter of its own, which ends at once.

A Kafka client runs native threads, which do not survive a fork: the trainer, whose workers may be forked from it, makes
none.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle

from stoker.errors import KafkaError
from stoker.sources.kafka.client_config import KafkaConfig

_PROGRAM = (
    "import pickle, sys\n"
    "sys.path[:], request = pickle.load(sys.stdin.buffer)\n"
    "from stoker.sources.kafka.clean_client import answer\n"
    "answer(request)"
)
_TO_START = 30.0
"""Seconds that the interpreter may take beside those of the brokers."""


def asked(config: KafkaConfig, function: Callable[..., Any], argument: Any, timeout: float) -> Any:
    """Returns `function(consumer, argument, timeout)`, called in a clean interpreter.

    Args:
        config: how to reach the brokers.
        function: of a module of Stoker. Its result is a value of JSON. A LookupError that it raises is a text for the
            user, to which the brokers are added.
        argument: picklable.
        timeout: seconds to wait for each answer of a broker.

    Raises:
        KafkaError: the brokers do not answer, refuse, or the function raised LookupError.
    """
    request = cloudpickle.dumps((config, function, argument, timeout))  # a setting may be a function
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            input=pickle.dumps((sys.path, request)),  # not an argument, which all users of the machine could see
            capture_output=True,
            timeout=_TO_START + 2 * timeout,
        )
    except subprocess.TimeoutExpired:
        raise KafkaError(_unanswered(config, timeout, "the interpreter that asked them did not end")) from None
    try:
        found = json.loads(done.stdout)
    except ValueError:
        said = config.scrubbed(done.stderr.decode(errors="replace")[-2000:])
        raise KafkaError(f"the interpreter that asks the brokers {config.servers} failed:\n{said}") from None
    if "refused" in found:
        raise KafkaError(found["refused"])
    return found["result"]


def answer(request: bytes) -> None:
    """Writes the result, or the reason why there is none, to standard output. Runs in the clean interpreter."""
    import confluent_kafka

    config, function, argument, timeout = pickle.loads(request)
    heard: list[Any] = []
    found: dict[str, Any]
    try:
        consumer = config.consumer(heard.append)
    except confluent_kafka.KafkaException as error:
        told = f"the Kafka client refuses its settings: {error.args[0].str()}. Correct config=."
        found = {"refused": config.scrubbed(told)}
    else:
        try:
            found = {"result": function(consumer, argument, timeout)}
        except confluent_kafka.KafkaException as error:
            said = "; ".join(dict.fromkeys(each.str() for each in (error.args[0], *heard[:3])))
            told = f"the Kafka brokers {config.servers} refuse: {said}. May this user do it, by config=?"
            found = {"refused": config.scrubbed(told if _is_answer(error) else _unanswered(config, timeout, said))}
        except LookupError as error:
            found = {"refused": f"{error.args[0]} at {config.servers}"}
        consumer.close()
    print(json.dumps(found))


def _is_answer(error: Any) -> bool:
    """Returns whether a broker has answered with the error; those of the client itself have negative codes."""
    return bool(error.args[0].code() > 0)


def _unanswered(config: KafkaConfig, timeout: float, said: str) -> str:
    return (
        f"no Kafka broker of {config.servers} answered within {timeout:g} s: {said}. Is the address right, are the "
        "brokers up, and does config= have their security settings?"
    )
