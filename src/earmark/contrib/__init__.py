"""Integrations with what a gateway is made of, each by name; none is imported by the library itself."""
