"""Policies that a LiteLLM proxy enforces: the module that its configuration, config.yaml, names.

    cd examples/litellm && litellm --config config.yaml

EARMARK_REDIS is where several workers keep their limits, by default each has its own; EARMARK_POLICIES says who may use
how much, by default the policies.yaml of the gateway in examples/.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from earmark import Limiter, RedisBackend
from earmark.contrib.litellm import EarmarkHook
from earmark.policies import Policies

REDIS: Final = os.environ.get("EARMARK_REDIS")
POLICIES: Final = Path(__file__).parent.with_name("policies.yaml")

hook = EarmarkHook(
    Limiter(RedisBackend.from_url(REDIS) if REDIS else None),
    Policies.load(os.environ.get("EARMARK_POLICIES", POLICIES), dims=["team"]),
)
