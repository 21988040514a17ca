"""Random histories of a limiter, and how one is played beside the plain model that says what must come of it.

    @given(strategies.histories())
    def test_my_backend(history):
        play(history, lambda clock: Gateway(MyBackend(clock=clock)))

A `History` is a value: its repr is the program to paste, made of the names that are here and of `Usage`. Steps name
scopes and reservations by small numbers, modulo what there is, so that every list of steps is a legal program.
"""

# `values` and `model` are the model, `steps` what a history is made of, `drawing` what hypothesis draws: it alone
# imports that. `driver` plays one through a gateway and through the model, step by step.
from earmark.testing.histories.gateway import Gateway
from earmark.testing.histories.playing import play
from earmark.testing.histories.steps import (
    Add,
    Again,
    Amend,
    Bad,
    Enforce,
    Finish,
    History,
    Offer,
    Peek,
    PreCommit,
    Replay,
    Reset,
    Settle,
    Step,
    Wait,
    WaitFor,
)
from earmark.testing.histories.values import Line

__all__ = [
    "Add",
    "Again",
    "Amend",
    "Bad",
    "Enforce",
    "Finish",
    "Gateway",
    "History",
    "Line",
    "Offer",
    "Peek",
    "PreCommit",
    "Replay",
    "Reset",
    "Settle",
    "Step",
    "Wait",
    "WaitFor",
    "play",
]
