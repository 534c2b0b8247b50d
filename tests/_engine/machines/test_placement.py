"""Ray's errors in the words of the bridge. Needs no Ray."""

from __future__ import annotations

from stoker._engine.machines.placement import _short

IMPORTING = """The actor died because of an error raised in its creation task, \x1b[36mray::Agent.__init__()\x1b[39m \
(pid=540, ip=10.0.0.2, actor_id=52e083adfbaa4bdbe171a01101000000, repr=<agent.TemporaryActor>)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
RuntimeError: The actor with name Agent failed to import on the worker. This may be because needed library \
dependencies are not installed in the worker environment:

\x1b[36mray::Agent.__init__()\x1b[39m (pid=540, ip=10.0.0.2, actor_id=52e083adfbaa4bdbe171a01101000000)
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^
ModuleNotFoundError: No module named 'stoker'"""


class ActorDiedError(Exception):
    """Has what Ray's has."""

    actor_init_failed = True


def test_host_without_stoker_is_named() -> None:
    assert _short(ActorDiedError(IMPORTING)) == (
        "the host at 10.0.0.2 cannot run its actor: ModuleNotFoundError: No module named 'stoker'. Install Stoker "
        "there, as on this machine"
    )


def test_error_without_a_text_says_so() -> None:
    assert _short(ConnectionError()) == "ConnectionError: Ray gives no reason"


def test_other_errors_of_actors_are_short_and_without_colours() -> None:
    text = _short(ActorDiedError("\x1b[31mkilled " + "x" * 900 + " by somebody"))
    assert text.startswith("ActorDiedError: killed x") and text.endswith(" by somebody")
    assert len(text) < 650
