"""Provider streams for tests: what is sent in every dialect, and what an observer must make of it."""
