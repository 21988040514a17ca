"""earmark's limits and policies in a LiteLLM proxy.

LiteLLM calls a hook at each step of a request, and this one does there what a gateway would do: it reserves before the
request is sent, hands the reservation to the stream or settles it by the answer, and gives back what was never
sent. What LiteLLM forgets (a request that ends without any hook) is abandoned as the request's objects are
collected: a reservation lives as long as the logging object that LiteLLM makes for each request. Where a hook is not
given that object, a mark in the metadata that LiteLLM keeps of a request tells it from others: the id of a call will
not do, since LiteLLM takes it from whoever asks.

    # earmark_hook.py, beside LiteLLM's config.yaml, which says `litellm_settings: {callbacks: earmark_hook.hook}`
    hook = EarmarkHook(Limiter(), Policies.load("policies.yaml"))
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

from fastapi import HTTPException

from earmark.errors import BackendUnavailable, Refused
from earmark.estimates import estimate
from earmark.http import answer_to, rate_limit_headers
from earmark.limiter import Limiter
from earmark.policies import Policies
from earmark.reservation import Reservation
from earmark.streams.counts import mapping_of
from earmark.streams.response import usage_from_response
from earmark.usage import Usage

if TYPE_CHECKING:  # LiteLLM is not there where types are checked: what is used of it

    class CustomLogger:
        """A callback, of whose methods LiteLLM calls those that a subclass has."""

else:
    from litellm.integrations.custom_logger import CustomLogger

__all__ = ["ANONYMOUS", "Dims", "EarmarkHook", "Key", "dims_of", "tenant_of"]

# Calls that put out no tokens.
_WITHOUT_OUTPUT: Final = ("embedding", "moderation", "rerank", "image", "speech", "transcription")

# What a provider answers to a request that it does not bill.
_UNBILLED: Final = frozenset({400, 401, 403, 404, 413, 422, 429})

# What tells a request by its metadata, and the places where LiteLLM keeps them: the first one that is there is its own,
# and nothing of it is sent to a provider.
_MARK: Final = "earmark_request"
_METADATA: Final = ("litellm_metadata", "metadata")

ANONYMOUS: Final = "anonymous"


class Key(Protocol):
    """What LiteLLM knows of whoever asks: the parts of its `UserAPIKeyAuth` that are used here."""

    key_alias: str | None
    api_key: str | None
    """The hash of the key."""
    team_alias: str | None
    team_id: str | None
    user_id: str | None
    org_id: str | None
    end_user_id: str | None


Dims: TypeAlias = Mapping[str, str | None]


def tenant_of(key: Key) -> str:
    """Who a key's tenant is: its alias, or else its hash; a proxy without keys has one, "anonymous"."""
    return key.key_alias or key.api_key or ANONYMOUS


def dims_of(key: Key) -> Dims:
    """What else is known of a request: `team`, `user`, `organization`, `end_user` and `key`."""
    return {
        "team": key.team_alias or key.team_id,
        "user": key.user_id,
        "organization": key.org_id,
        "end_user": key.end_user_id,
        "key": tenant_of(key),
    }


class _Open:
    """A reservation that no hook has resolved yet."""

    __slots__ = ("__weakref__", "may_be_billed", "reservation", "sent", "streams")

    def __init__(self, reservation: Reservation) -> None:
        self.reservation = reservation
        self.sent = False
        self.may_be_billed = False  # an attempt of several, which has failed
        self.streams = False


class EarmarkHook(CustomLogger):
    """Enforces policies in a LiteLLM proxy: one of LiteLLM's `callbacks`.

    Args:
        limiter: keeps the limits; with a `RedisBackend` all workers share them.
        policies: who may use how much.
        tenant: who a key's tenant is in the policies; by default the key's alias, or else its hash.
        dims: what the policies' scopes may be by; by default `team`, `user`, `organization`, `end_user` and `key`.
        output: tokens of one answer where a request gives no cap.
        ceiling: the most tokens that one answer can have.
    """

    def __init__(
        self,
        limiter: Limiter,
        policies: Policies,
        *,
        tenant: Callable[[Key], str] = tenant_of,
        dims: Callable[[Key], Dims] = dims_of,
        output: int = 1_024,
        ceiling: int = 32_768,
    ) -> None:
        super().__init__()
        self._limiter = limiter
        self._policies = policies
        self._tenant = tenant
        self._dims = dims
        self._output = output
        self._ceiling = ceiling
        self._open: WeakKeyDictionary[object, _Open] = WeakKeyDictionary()
        self._marked: WeakValueDictionary[str, _Open] = WeakValueDictionary()

    async def async_pre_call_hook(
        self, user_api_key_dict: Key, cache: object, data: dict[str, Any], call_type: str
    ) -> None:
        """Reserve, or refuse: before anything is sent."""
        without_output = any(word in call_type for word in _WITHOUT_OUTPUT)
        try:
            scopes = self._policies.scopes(
                tenant=self._tenant(user_api_key_dict),
                model=data.get("model"),
                **self._dims(user_api_key_dict),
            )
            if not scopes:
                return
            asked = estimate(
                data,
                scopes=scopes,
                output=0 if without_output else self._output,
                ceiling=self._ceiling,
            )
            reservation = await self._limiter.pre_commit(*scopes, tokens=asked)
        except (Refused, BackendUnavailable) as error:
            raise _answered(error) from error
        except ValueError as error:
            raise HTTPException(400, f"this request cannot be limited: {error}") from error
        anchor = data.get("litellm_logging_obj")
        if anchor is None:  # nothing that would tell how it ends
            await reservation.close_reserved_only()
            return
        await reservation.__aenter__()  # renews itself from here on
        self._open[anchor] = opened = _Open(reservation)
        metadata = next(
            (data[name] for name in _METADATA if isinstance(data.get(name), dict)), None
        )
        if metadata is not None:
            metadata[_MARK] = mark = secrets.token_hex(8)
            self._marked[mark] = opened

    async def async_pre_call_deployment_hook(
        self, kwargs: Mapping[str, Any], call_type: object
    ) -> None:
        """Note that a provider has been chosen, and will be asked."""
        opened = self._find(kwargs)
        if opened is not None:
            opened.sent = True

    async def async_post_call_success_hook(
        self, data: Mapping[str, Any], user_api_key_dict: Key, response: object
    ) -> None:
        """Settle a whole answer, before the client gets it."""
        opened = self._find(data)
        if opened is not None:
            await _settle(opened.reservation, response)

    def async_post_call_streaming_iterator_hook(
        self, user_api_key_dict: Key, response: AsyncIterator[Any], request_data: Mapping[str, Any]
    ) -> AsyncIterator[Any]:
        """Hand the reservation over to the stream, which settles before the client sees its end."""
        opened = self._find(request_data)
        if opened is None or opened.reservation.state != "open":
            return response
        opened.streams = True
        choices = request_data.get("n")
        expected = choices if type(choices) is int and choices > 0 else 1
        return opened.reservation.stream(response, expected_choices=expected)

    async def async_post_call_failure_hook(
        self,
        request_data: Mapping[str, Any],
        original_exception: Exception,
        user_api_key_dict: Key,
        traceback_str: str | None = None,
    ) -> None:
        """Resolve what failed: give back what was never sent, keep what may have been billed."""
        opened = self._find(request_data)
        if opened is None:  # it was refused here, among others
            return
        if not opened.sent and isinstance(original_exception, HTTPException):
            await opened.reservation.cancel()
        elif _is_unbilled(original_exception) and not opened.may_be_billed:
            await opened.reservation.settle_success(Usage(0, 0))
        else:
            await opened.reservation.close_reserved_only()

    async def async_post_call_response_headers_hook(
        self,
        data: Mapping[str, Any],
        user_api_key_dict: Key,
        response: object,
        request_headers: object = None,
        litellm_call_info: object = None,
    ) -> Mapping[str, str] | None:
        """The limits as this request left them, in OpenAI's headers."""
        opened = self._find(data)
        return None if opened is None else rate_limit_headers(opened.reservation)

    async def async_log_failure_event(
        self, kwargs: Mapping[str, Any], response_obj: object, start_time: object, end_time: object
    ) -> None:
        """Note an attempt that may be billed: LiteLLM may ask once more, and that be refused unbilled."""
        opened = self._find(kwargs)
        if opened is not None and not _is_unbilled(kwargs.get("exception")):
            opened.may_be_billed = True

    async def async_log_success_event(
        self, kwargs: Mapping[str, Any], response_obj: object, start_time: object, end_time: object
    ) -> None:
        """Settle what went by all other hooks: some of LiteLLM's routes call only this one, after the answer."""
        opened = self._find(kwargs)
        if opened is not None and not opened.streams:
            await _settle(opened.reservation, response_obj)

    def _find(self, data: Mapping[str, Any]) -> _Open | None:
        """The reservation of a request, by the object that LiteLLM made for it, or by its mark."""
        anchor = data.get("litellm_logging_obj")
        opened = None if anchor is None else self._open.get(anchor)
        if opened is not None:
            return opened
        return next(filter(None, map(self._marked.get, _marks(data))), None)


def _marks(data: Mapping[str, Any]) -> Iterator[str]:
    """The marks in what LiteLLM knows of a request: an event of its log has the metadata one floor down."""
    for place in (data, mapping_of(data.get("litellm_params"))):
        for name in _METADATA:
            mark = mapping_of(place.get(name)).get(_MARK)
            if isinstance(mark, str):
                yield mark


def _is_unbilled(error: object) -> bool:
    """Whether a provider has refused a request and bills nothing for it."""
    return getattr(error, "status_code", None) in _UNBILLED


async def _settle(reservation: Reservation, response: object) -> None:
    """Settle by what an answer says that it used; where it says nothing, the hold stays."""
    try:
        usage = usage_from_response(response)
    except TypeError:
        usage = None  # a file, a sound: whatever says no usage
    if usage is None:
        await reservation.close_reserved_only()
    else:
        await reservation.settle_success(usage)


def _answered(error: Refused | BackendUnavailable) -> HTTPException:
    """The answer to a refusal, of which LiteLLM makes a body in the client's words."""
    answer = answer_to(error)
    headers = {name: value for name, value in answer.headers.items() if name != "content-type"}
    return HTTPException(answer.status, answer.body["error"]["message"], headers)
