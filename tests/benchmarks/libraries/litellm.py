"""The limiter of LiteLLM's proxy, as its hooks call it; its windows are of a minute from a key's first request."""

from __future__ import annotations

import logging
import os
import uuid
from contextlib import nullcontext, suppress
from functools import cache
from importlib import import_module
from typing import Any, Final
from urllib.parse import urlsplit

from tests.benchmarks.libraries.base import Library

PROMPT_TOKENS: Final = 1


class LiteLLMLibrary(Library):
    """A life cycle is the hook before the call and that after it, with the request's batch of Redis messages."""

    name = "LiteLLM"
    package = "litellm"
    environment = "litellm"
    calls = "async_pre_call_hook, async_log_success_event"
    keys = 2_000
    bounded = True

    async def open(self) -> None:
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        os.environ.setdefault("LITELLM_TELEMETRY", "False")
        import_module("litellm.proxy.proxy_server")  # the hook reads its settings
        logging.getLogger("LiteLLM Proxy").setLevel(logging.CRITICAL)
        hooks = import_module("litellm.proxy.hooks.parallel_request_limiter_v3")
        batches = import_module("litellm.caching.redis_batch")
        types = import_module("litellm.types.utils")
        key = import_module("litellm.proxy._types").UserAPIKeyAuth
        self._refused = import_module("fastapi").HTTPException
        self._cache = import_module("litellm.caching.caching").DualCache(redis_cache=self._redis())
        internal = import_module("litellm.proxy.utils").InternalUsageCache(self._cache)
        self._hook = hooks._PROXY_MaxParallelRequestsHandler_v3(internal)
        self._stash = hooks._request_stash
        self._scope = nullcontext if self.url is None else batches.request_redis_batch_scope
        self._flush = batches.flush_post_call_redis_batches

        @cache
        def user(name: str) -> Any:
            return key(api_key=f"sk-{name}", rpm_limit=self.requests, tpm_limit=self.tokens)

        @cache
        def response(tokens: int) -> Any:
            usage = types.Usage(
                prompt_tokens=PROMPT_TOKENS,
                completion_tokens=tokens - PROMPT_TOKENS,
                total_tokens=tokens,
            )
            return types.ModelResponse(usage=usage)

        self._user, self._response = user, response

    def _redis(self) -> Any:
        if self.url is None:
            return None
        parts = urlsplit(self.url)
        cache = import_module("litellm.caching.redis_cache").RedisCache
        return cache(host=parts.hostname, port=parts.port)

    async def reserve(self, key: str, tokens: int) -> Any:
        self._stash.set(None)
        call = uuid.uuid4().hex
        # Four letters of a prompt are a token to it, and what may be said is reserved as well.
        data = {
            "model": "gpt-4o",
            "messages": [{"role": "user", "content": "x" * 4 * PROMPT_TOKENS}],
            "max_tokens": max(tokens - PROMPT_TOKENS, 1),
            "litellm_call_id": call,
        }
        scope = self._scope()
        scope.__enter__()
        try:
            await self._hook.async_pre_call_hook(self._user(key), self._cache, data, "acompletion")
        except self._refused as refusal:
            scope.__exit__(None, None, None)
            if refusal.status_code != 429:
                raise
            return None
        return key, call, scope, self._stash.get()

    async def settle(self, hold: Any, tokens: int) -> None:
        key, call, scope, stash = hold
        self._stash.set(stash)
        metadata = {"user_api_key_hash": self._user(key).api_key}
        told = {
            "litellm_call_id": call,
            "litellm_params": {"metadata": {}},
            "standard_logging_object": {"metadata": metadata},
        }
        await self._hook.async_log_success_event(told, self._response(tokens), None, None)
        if self.url is not None:
            await self._flush()
        with suppress(ValueError, RuntimeError):  # entered in another task, or left before
            scope.__exit__(None, None, None)
