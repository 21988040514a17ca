"""Where limits are kept: the protocol of a backend, for whoever writes one, and the one in memory."""

from earmark.backends.protocol import Backend, Desk, Instant, Seen
from earmark.core.hold import Hold, Verb

__all__ = ["Backend", "Desk", "Hold", "Instant", "Seen", "Verb"]
