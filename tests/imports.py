"""Import every module of the library without a warning, on any Python: what few tests import breaks there first.

    python -P -W error tests/imports.py [PACKAGE …]

The packages named need not be there: whatever imports them is passed over, and told. By -P no folder of the tests is
taken for a package.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import walk_packages

import earmark


def import_all(absent: set[str]) -> None:
    """Look at each; the first that fails ends it."""
    done, passed_over = 1, list[str]()
    for module in walk_packages(earmark.__path__, "earmark."):
        if module.name.endswith("__main__"):  # it runs
            continue
        try:
            import_module(module.name)
            done += 1
        except ModuleNotFoundError as error:
            if error.name not in absent:
                raise
            passed_over.append(module.name)
    left = f", all but {', '.join(passed_over)}" if passed_over else ""
    print(f"{done} modules imported{left}")


if __name__ == "__main__":
    import_all(set(sys.argv[1:]))
