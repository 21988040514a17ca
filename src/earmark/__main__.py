"""`python -m earmark`."""

from __future__ import annotations

import sys

from earmark.commands import main

if __name__ == "__main__":
    sys.exit(main())
