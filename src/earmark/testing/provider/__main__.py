"""`python -m earmark.testing.provider`: serve the stand-in on a port of this machine, by uvicorn."""

from __future__ import annotations

import argparse

from earmark.testing.provider.process import serve

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve a stand-in for a provider, by uvicorn.")
    parser.add_argument("--port", type=int, default=8001, help="where it listens, on 127.0.0.1")
    parser.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument(
        "default", nargs="?", default="{}", help="an act, as JSON: what a request gets"
    )
    serve(**vars(parser.parse_args()))
