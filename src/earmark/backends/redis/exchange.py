"""One round trip: the messages of everybody on board, one call of a script for each verb, and everyone's answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from redis import exceptions

from earmark.backends.redis.asked import Again, Asked
from earmark.backends.redis.connection import Connection, Dialed, load, pack
from earmark.backends.redis.failures import Outage, StoreError, is_outage, reason_of
from earmark.backends.redis.scripts import Script, Scripts

Call = tuple[Script, list[Asked]]
"""A script, and those whose messages it is to answer."""

# A script that the server does not know is loaded, and where it is forgotten again at once it is sent whole.
_WAYS: Final = ("EVALSHA", "EVALSHA", "EVAL")

# Stands in an answer for the id of a message that the script could not read.
_UNREADABLE: Final = "?"

# What a server calls a script in the error at which it ended, and not in one for which it was never run.
_FAILED_SCRIPT: Final = "user_script"


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
    """
    connection, scripts = dialed
    calls = _calls(scripts, flight)
    ailing: Outage | None = None
    for way in _WAYS if calls else ():
        sent = time.monotonic()
        calls, ails = await _call(connection, way, header(), calls)
        answered(time.monotonic() - sent)
        ailing = ailing or ails
        if not calls:
            break
        # The server was restarted, or its scripts were flushed: none of these calls has been run.
        await load(connection, scripts)
    return ailing


def _calls(scripts: Scripts, flight: list[Asked]) -> list[Call]:
    """One for each verb, in the order of the scripts, and group: a script reaches one slot of a cluster alone."""
    if len(flight) == 1:
        return [(scripts[flight[0].message.verb], flight)]
    batches: dict[str, dict[object, list[Asked]]] = {}
    for asked in flight:
        groups = batches.setdefault(asked.message.verb, {})
        groups.setdefault(asked.group, []).append(asked)
    return [
        (script, batch)
        for verb, script in scripts.items()
        if verb in batches
        for batch in batches[verb].values()
    ]


async def _call(
    connection: Connection, way: str, header: tuple[str, ...], calls: list[Call]
) -> tuple[list[Call], Outage | None]:
    """Run scripts in one round trip; return those that the server does not know, and what ails it."""
    packed: list[bytes] = []
    for script, batch in calls:
        keys = [key for asked in batch for key in asked.message.keys]
        arguments = [asked.message.text(again=asked.again) for asked in batch]
        name = script.sha if way == "EVALSHA" else script.text
        if batch[0].asking:
            packed.append(pack("ASKING"))
        packed.append(pack(way, name, str(len(keys)), *keys, *header, *arguments))
    await connection.send_packed_command(packed, check_health=False)
    unknown: list[Call] = []
    ailing: Outage | None = None
    for script, batch in calls:
        try:
            if batch[0].asking:
                await connection.read_response()
            answers: bytes = await connection.read_response()
        except exceptions.NoScriptError:
            unknown.append((script, batch))
        except exceptions.ResponseError as error:
            # What the script itself fails at may come after messages that were applied.
            ran = _FAILED_SCRIPT in str(error) and not is_outage(error)
            for asked in batch:
                if not asked.is_sent_elsewhere(error):
                    ailing = _refuse(asked, error, sent=ran or asked.again) or ailing
        else:
            ailing = _hand_out(batch, answers.decode().split("\0")) or ailing
    return unknown, ailing


def _hand_out(batch: list[Asked], answers: list[str]) -> Outage | None:
    """Give everybody their own answer, which begins with the id that they sent."""
    if len(answers) != len(batch):
        msg = "the store has answered another call"
        raise exceptions.ConnectionError(msg)
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
        msg = "the store has answered another message"
        raise exceptions.ConnectionError(msg)


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
