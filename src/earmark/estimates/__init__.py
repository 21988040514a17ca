"""What a request may use, told from its body before it is sent: the asks of `pre_commit`.

body ── prompts ── texts ── a counter ── input
     └─ caps ──── the largest × choices ─ output
"""

from __future__ import annotations

from earmark.estimates.counting import Counter, approximate, tiktoken_counter
from earmark.estimates.estimating import estimate

__all__ = ["Counter", "approximate", "estimate", "tiktoken_counter"]
