"""What a LiteLLM proxy is configured with in the test: the hook, and keys that need no database."""

from __future__ import annotations

import os
from typing import Any

from litellm.proxy._types import UserAPIKeyAuth  # pyright: ignore[reportMissingImports]

from earmark import Limiter, RedisBackend
from earmark.contrib.litellm import EarmarkHook
from earmark.policies import Policies

backend = RedisBackend.from_url(
    os.environ["EARMARK_URL"], namespace=os.environ["EARMARK_NAMESPACE"]
)
hook = EarmarkHook(Limiter(backend), Policies.load(os.environ["EARMARK_POLICIES"]), output=100)


async def authenticate(request: Any, api_key: str) -> UserAPIKeyAuth:
    """A key "alice/red" is that of alice in team red; LiteLLM's own keys are made in its database."""
    alias, _, team = api_key.partition("/")
    return UserAPIKeyAuth(api_key=api_key, key_alias=alias, team_id=team or None)
