"""Provider streams for tests: what is sent in every dialect, and what an observer must make of it.

    STREAMS     those with a clean end
    ENDINGS     those that are cut, fail, or never say what they used
    ALL         both
    stream      one of them, by its name

`strategies.bodies` draws a `Body` of one: a `Stream` on its way, in pieces and with an ending.
"""

from earmark.testing.streams.bodies import ALL, ENDINGS, STREAMS, stream
from earmark.testing.streams.bodies.shape import Stream
from earmark.testing.streams.sending import Body, Ending, Piece

__all__ = ["ALL", "ENDINGS", "STREAMS", "Body", "Ending", "Piece", "Stream", "stream"]
