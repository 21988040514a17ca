"""Print the JSON schema of policies files.

For editors: python -m earmark schema > earmark.schema.json
"""

from __future__ import annotations

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take none."""


def run(_: argparse.Namespace) -> int:
    """Print it."""
    from earmark.policies import schema

    print(json.dumps(schema(), indent=2))
    return 0
