"""One round trip: the messages of everybody on board, one call of a script for each verb, and everyone's answer."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

from redis import exceptions

from earmark.backends.redis.asked import Again, Asked
from earmark.backends.redis.connection import Dialed, load
from earmark.backends.redis.failures import Outage, StoreError, is_outage, reason_of
from earmark.backends.redis.scripts import Script, Scripts
from earmark.backends.redis.wire import ask, pack

Call = tuple[Script, list[Asked]]
"""A script, and those whose messages it is to answer."""

Way = Literal["EVALSHA", "EVAL"]

# A script that the server does not know is loaded, and where it is forgotten again at once it is sent whole.
_AGAIN: Final[tuple[Way, ...]] = ("EVALSHA", "EVAL")

# Stands in an answer for the id of a message that the script could not read.
_UNREADABLE: Final = "?"

# What a server calls a script in the error at which it ended, and not in one for which it was never run.
_FAILED_SCRIPT: Final = "user_script"


class Landing(NamedTuple):
    """What has become of a round trip.

    Attributes:
        unknown: the calls of scripts that the server does not know: none of them has been run.
        ailing: why the store is of no use now, although it answers.
    """

    unknown: list[Call]
    ailing: Outage | None

    @property
    def left(self) -> list[Asked]:
        """Who is to be called again."""
        return [asked for _, batch in self.unknown for asked in batch]


async def exchange(
    dialed: Dialed,
    header: Callable[[], tuple[str, ...]],
    flight: list[Asked],
    answered: Callable[[float], object],
) -> Outage | None:
    """Send all, what frees before what takes, and hand out the answers.

    Returns why the store is of no use now, although it answers, or None.

    Args:
        dialed: the connection.
        header: the arguments that begin every call, as they are now.
        flight: who is on board; where nobody is, nothing is sent.
        answered: told how many seconds each round trip took that brought answers.

    Raises:
        redis.RedisError: the connection has failed.
    """
    if not flight:
        return None
    calls = calls_of(dialed.scripts, flight)
    landing = await _call(dialed, "EVALSHA", header(), calls, answered)
    return (await call_again(dialed, header, landing, answered)).ailing


async def call_again(
    dialed: Dialed,
    header: Callable[[], tuple[str, ...]],
    landing: Landing,
    answered: Callable[[float], object],
) -> Landing:
    """Where a server does not know the scripts, since it was restarted or they were flushed, load them, and call again.

    Returns what has become of that: whoever is left has not been told anything, since the store is of no use now.
    Takes and raises what `exchange` does.
    """
    for way in _AGAIN:
        if not landing.unknown or landing.ailing is not None:
            break
        await load(dialed.wire, dialed.scripts)
        landing = await _call(dialed, way, header(), landing.unknown, answered)
    return landing


def calls_of(scripts: Scripts, flight: list[Asked]) -> list[Call]:
    """One for each verb, in the order of the scripts, and group: a script reaches one slot of a cluster alone."""
    if len(flight) == 1:
        return [(scripts[flight[0].message.verb], flight)]
    batches: defaultdict[tuple[str, object], list[Asked]] = defaultdict(list)
    for asked in flight:
        batches[asked.message.verb, asked.group].append(asked)
    return [
        (script, batch)
        for verb, script in scripts.items()
        for (asks_for, _), batch in batches.items()
        if asks_for == verb
    ]


def commands_of(calls: list[Call], way: Way, header: tuple[str, ...]) -> list[bytes]:
    """What is written to run scripts in one round trip."""
    commands: list[bytes] = []
    for script, batch in calls:
        keys = [key for asked in batch for key in asked.message.keys]
        arguments = [asked.message.text(again=asked.again) for asked in batch]
        name = script.sha if way == "EVALSHA" else script.text
        if batch[0].asking:
            commands.append(pack("ASKING"))
        commands.append(pack(way, name, str(len(keys)), *keys, *header, *arguments))
    return commands


async def _call(
    dialed: Dialed,
    way: Way,
    header: tuple[str, ...],
    calls: list[Call],
    answered: Callable[[float], object],
) -> Landing:
    """One round trip."""
    sent = time.monotonic()
    replies = await ask(dialed.wire, *commands_of(calls, way, header))
    answered(time.monotonic() - sent)
    return hand_out(calls, replies)


def hand_out(calls: list[Call], replies: Sequence[object]) -> Landing:
    """Give everybody on board their own answer.

    Raises:
        redis.RedisError: the connection is of no use any more; who has no answer by now gets none on it.
    """
    unknown: list[Call] = []
    ailing: Outage | None = None
    coming = iter(replies)
    for script, batch in calls:
        reply = next(coming)
        if batch[0].asking:
            asked_for, reply = reply, next(coming)
            reply = asked_for if isinstance(asked_for, Exception) else reply
        if isinstance(reply, exceptions.NoScriptError):
            unknown.append((script, batch))
        elif isinstance(reply, exceptions.ResponseError):
            # What the script itself fails at may come after messages that were applied.
            ran = _FAILED_SCRIPT in str(reply) and not is_outage(reply)
            for asked in batch:
                if not asked.is_sent_elsewhere(reply):
                    ailing = _refuse(asked, reply, sent=ran or asked.again) or ailing
        elif isinstance(reply, bytes):
            ailing = _hand_out(batch, reply.decode(errors="replace").split("\0")) or ailing
        else:
            raise reply if isinstance(reply, Exception) else _stranger()
    return Landing(unknown, ailing)


def _hand_out(batch: list[Asked], answers: list[str]) -> Outage | None:
    """Give everybody their own answer, which begins with the id that they sent."""
    if len(answers) != len(batch):
        raise _stranger()
    ailing: Outage | None = None
    for asked, answer in zip(batch, answers, strict=True):
        id_, _, text = answer.partition(" ")
        if id_ != asked.message.id:
            _check_unreadable(id_)
        if text.startswith("failed "):
            error = StoreError(text.removeprefix("failed "))
            if not asked.is_sent_elsewhere(error):
                ailing = _refuse(asked, error, sent=asked.again) or ailing
        elif not asked.answer.done():
            asked.answer.set_result(Again(text) if asked.again else text)
    return ailing


def _check_unreadable(id_: str) -> None:
    if id_ != _UNREADABLE:
        raise _stranger()


def _stranger() -> exceptions.ConnectionError:
    """The reply is none to what was sent: nothing that comes on this connection is."""
    return exceptions.ConnectionError("the store has answered another message")


def _refuse(asked: Asked, error: Exception, *, sent: bool) -> Outage | None:
    """The store has answered with an error. Returns it where it is an outage.

    Args:
        asked: whose message it was.
        error: the answer.
        sent: whether the message may have been applied all the same.
    """
    outage = Outage(reason_of(error), sent=sent) if is_outage(error) else None
    if not asked.answer.done():
        asked.answer.set_exception(outage or StoreError(reason_of(error), sent=sent))
    return outage
