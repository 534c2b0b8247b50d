"""The settings of a Kafka client: checked, pickled with a stream, and never shown."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stoker.errors import MissingExtraError

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
        MissingExtraError: confluent-kafka is not installed.

    Attributes:
        servers: the brokers.
        group: the consumer group, or None.
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
