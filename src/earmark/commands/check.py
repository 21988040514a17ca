"""Check a policies file, and show what applies to a request.

Mistakes go to standard error, one a line, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from earmark.commands.words import said

if TYPE_CHECKING:
    from earmark.policies import Policies


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the file and a request."""
    parser.add_argument("file", metavar="FILE", help="YAML, TOML or JSON, as its name ends")
    parser.add_argument("--tenant", help="show what applies to this tenant")
    parser.add_argument("--model", help="… when it asks for this model")
    parser.add_argument(
        "--dim",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        type=_dim,
        help="… and this is known of the request, such as team=research; may be repeated",
    )
    parser.add_argument(
        "--dims",
        metavar="NAME,…",
        type=_dims,
        help="all that the gateway tells of a request beside tenant and model, as in Policies.load(…, dims=…):"
        " a scope by anything else is then a mistake; '' is nothing",
    )
    parser.set_defaults(wrong=parser.error)


def _dim(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign or name in {"tenant", "model"}:
        own = f"; --{name} tells that" if name in {"tenant", "model"} else ""
        msg = f"expected NAME=VALUE, such as team=research, not {text!r}{own}"
        raise argparse.ArgumentTypeError(msg)
    return name, value


def _dims(text: str) -> frozenset[str]:
    return frozenset(name for part in text.split(",") if (name := part.strip()))


def run(arguments: argparse.Namespace) -> int:
    """Check, and show."""
    from earmark.policies import Policies

    if arguments.tenant is None and (arguments.model is not None or arguments.dim):
        arguments.wrong("--model and --dim are of a tenant's request: name it by --tenant as well")
    try:
        policies = Policies.load(arguments.file, dims=arguments.dims)
        applying = [] if arguments.tenant is None else _applying(policies, arguments)
    except ValueError as error:  # a PolicyError, or a tenant or a model that is no key
        print(error, file=sys.stderr)
        return 1
    lines = [repr(policies).strip("<>"), *applying]
    print("\n".join(lines))
    return 0


def _applying(policies: Policies, arguments: argparse.Namespace) -> list[str]:
    """What applies to the request, a scope or a limit a line."""
    lines: list[str] = []
    if arguments.model and policies.resolve(arguments.model) != arguments.model:
        lines.append(f"{arguments.model} stands for {policies.resolve(arguments.model)}")
    request = {**dict(arguments.dim), "tenant": arguments.tenant, "model": arguments.model}
    scopes = policies.scopes(**request)
    for scope in scopes:
        lines.append(scope.key if scope.enforce else f"{scope.key} (counts, and never refuses)")
        lines += [f"    {said(limit)}" for limit in scope.limits]
    if not scopes:
        lines.append("no limit applies")
    lines += [
        f"{own} does not apply: {why}" for own, why in policies.passed_over(**request).items()
    ]
    return lines
