"""The libraries that are measured side by side, by name."""

from __future__ import annotations

from typing import Final

from tests.benchmarks.libraries.base import Library
from tests.benchmarks.libraries.floor import Floor
from tests.benchmarks.libraries.limits import LimitsLibrary
from tests.benchmarks.libraries.litellm import LiteLLMLibrary
from tests.benchmarks.libraries.own import Own
from tests.benchmarks.libraries.pyrate import PyrateLibrary
from tests.benchmarks.libraries.throttled import ThrottledLibrary
from tests.benchmarks.libraries.token_throttle import TokenThrottleLibrary

LIBRARIES: Final[dict[str, type[Library]]] = {
    library.name: library
    for library in (
        Own,
        Floor,
        LimitsLibrary,
        ThrottledLibrary,
        TokenThrottleLibrary,
        PyrateLibrary,
        LiteLLMLibrary,
    )
}
