"""Where limits are kept: the protocol of a backend, and the one in memory."""
