"""The settings of a Kafka client, never shown; and what a client is asked: partitions, and commits of offsets.

It is asked in a clean interpreter, which imports this file and little else and ends at once: a client runs native
threads, which do not survive a fork, so the trainer, whose workers may be forked from it, makes none.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import cloudpickle

from stoker.errors import KafkaError, MissingExtraError

_OURS = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}
_DEFAULTS = {
    "group.id": "stoker",  # the client asks for one; no group is ever joined
    "log_level": 2,  # what fails is raised
    "queued.max.messages.kbytes": 16_384,  # for each partition, librdkafka's is 65,536
}
_SECRET = ("password", "username", "secret", "token", "jaas", "pem", "oauthbearer.config")


class KafkaConfig:
    """How to reach brokers: settings of librdkafka, which may hold credentials. Its repr names the brokers alone.

    Args:
        servers: brokers as `host:port`, with commas or as a sequence; None if `config` names them.
        config: further settings of librdkafka by their names.
        group: the consumer group whose offsets are read and committed; None for none.

    Raises:
        ValueError: no brokers are named, `group` is empty or another one than in `config`, or a setting is one that the
            stream makes itself.
    """

    def __init__(
        self, servers: str | Sequence[str] | None, config: Mapping[str, Any] | None, group: str | None = None
    ) -> None:
        settings = dict(config or {})
        if servers is None:
            servers = settings.get("bootstrap.servers", "")
        elif "bootstrap.servers" in settings:
            raise ValueError("both servers= and config['bootstrap.servers'] name brokers: leave one out")
        self.servers = servers if isinstance(servers, str) else ",".join(servers)
        if not self.servers:
            raise ValueError("no brokers are named: pass servers='host:port'")
        if taken := sorted(_OURS.keys() & settings.keys()):
            raise ValueError(f"config= names {taken}, which the stream sets itself: its state keeps the offsets")
        if importlib.util.find_spec("confluent_kafka") is None:
            raise MissingExtraError(
                "KafkaStream needs confluent-kafka, which is not installed: pip install 'stoker[kafka]'"
            )
        if group is not None and (not group or settings.get("group.id", group) != group):
            named = settings.get("group.id")
            raise ValueError(f"group= is {group!r} and config['group.id'] is {named!r}: name one group")
        self.group = group
        self._settings = settings if group is None else {**settings, "group.id": group}

    def __repr__(self) -> str:
        return f"KafkaConfig({self.servers!r})"

    def consumer(self, hears: Callable[[Any], object]) -> Any:
        """Returns a new consumer of confluent-kafka, which runs threads of its own until it is closed.

        Args:
            hears: called with errors of the connection.

        Raises:
            confluent_kafka.KafkaException: a setting is unknown or wrong.
        """
        import confluent_kafka

        theirs = self._settings.get("error_cb")
        callback = hears if theirs is None else functools.partial(_both, hears, theirs)
        settings = {**_DEFAULTS, **self._settings, "bootstrap.servers": self.servers, **_OURS, "error_cb": callback}
        return confluent_kafka.Consumer(settings)

    def scrubbed(self, text: str) -> str:
        """Returns a text without the values of settings that may be secret."""
        for name, value in self._settings.items():
            if isinstance(value, str) and len(value) > 2 and any(part in name for part in _SECRET):
                text = text.replace(value, "***")
        return text


def _both(hears: Callable[[Any], object], theirs: Callable[[Any], object], error: Any) -> None:
    hears(error)
    theirs(error)


_PROGRAM = (
    "import pickle, sys\n"
    "sys.path[:], request = pickle.load(sys.stdin.buffer)\n"
    "from stoker.sources.kafka.client_config import answer\n"
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


class PartitionRange(NamedTuple):
    """The offsets of a partition when it was listed.

    Attributes:
        low: the offset of its first record.
        high: the offset behind its last record.
        committed: the offset at which the group continues; None without a group, or if it has none.
    """

    topic: str
    partition: int
    low: int
    high: int
    committed: int | None = None


def partitions_of(
    config: KafkaConfig, topics: Mapping[str, Sequence[int] | None], timeout: float
) -> list[PartitionRange]:
    """Returns the partitions of topics, in the order of the topics, ascending.

    Args:
        config: how to reach the brokers, and the group, if any, whose offsets are asked for.
        topics: from each topic to the partitions wanted; None for all.
        timeout: seconds to wait for each answer of a broker.

    Raises:
        KafkaError: the brokers do not answer, refuse, or have no such topic or partition.
    """
    wanted = (dict(topics), config.group is not None)
    return [PartitionRange(*each) for each in asked(config, _listed, wanted, timeout)]


def _listed(
    consumer: Any, wanted: tuple[Mapping[str, Sequence[int] | None], bool], timeout: float
) -> list[PartitionRange]:
    import confluent_kafka

    found, (topics, has_group) = [], wanted
    for topic, chosen in topics.items():
        described = consumer.list_topics(topic, timeout=timeout).topics[topic]
        if described.error is not None:
            raise LookupError(f"the topic {topic!r} cannot be read: {described.error.str()},")
        numbers = sorted(described.partitions) if chosen is None else chosen
        if absent := sorted(set(numbers) - set(described.partitions)):
            raise LookupError(f"the topic {topic!r} has {len(described.partitions)} partitions, and not {absent},")
        places = [confluent_kafka.TopicPartition(topic, number) for number in numbers]
        stands: dict[int, int | None] = dict.fromkeys(numbers)
        if has_group and places:
            for place in consumer.committed(places, timeout=timeout):
                if place.error is not None:
                    raise confluent_kafka.KafkaException(place.error)
                stands[place.partition] = place.offset if place.offset >= 0 else None
        for place in places:
            low, high = consumer.get_watermark_offsets(place, timeout=timeout, cached=False)
            found.append(PartitionRange(topic, place.partition, low, high, stands[place.partition]))
    return found


def commit_offsets(config: KafkaConfig, offsets: Mapping[tuple[str, int], int], timeout: float) -> None:
    """Makes these the offsets of the group, in a clean interpreter, which ends at once.

    Raises:
        KafkaError: the brokers do not answer, or refuse.
    """
    asked(config, _commit, [(*where, offset) for where, offset in offsets.items()], timeout)


def _commit(consumer: Any, offsets: Sequence[tuple[str, int, int]], timeout: float) -> None:
    import confluent_kafka

    places = [confluent_kafka.TopicPartition(*each) for each in offsets]
    consumer.committed(places, timeout=timeout)  # a commit has no timeout: raises if nobody answers
    try:
        errors = [place.error for place in consumer.commit(offsets=places, asynchronous=False)]
    except confluent_kafka.KafkaException as error:
        errors = [error.args[0]]
    for refused in errors:
        if refused is not None and refused.code() < 0:  # of the client itself: nothing was answered
            raise confluent_kafka.KafkaException(refused)
        if refused is not None:
            raise LookupError(
                f"the offsets {[list(each) for each in offsets]} are not committed: {refused.str()}. Programs that "
                "subscribe to topics as members of a group keep it from taking offsets of others. Asked"
            )
