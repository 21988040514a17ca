"""The tests are a package, so that they find their helpers by the name `tests.…` whatever else is installed."""
