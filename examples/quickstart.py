"""A limiter in two minutes: hold an estimate, call the model, settle what it used, refuse what does not fit."""

import asyncio

from earmark import Limiter, Limits, RateLimited, Scope, Usage

limiter = Limiter()
alice = Scope("api_key:alice", Limits(rpm=60, tpm=2_000, concurrency=4))


async def call_model(prompt: str) -> tuple[str, Usage]:
    """Stands in for your provider's client."""
    return f"{prompt}, indeed", Usage(input_tokens=900, output_tokens=150)


async def answer(prompt: str) -> str:
    try:
        reservation = await limiter.pre_commit(alice, tokens=1_200)  # an estimate
    except RateLimited as refusal:
        return f"refused, retry after {refusal.retry_after} s: {refusal}"
    async with reservation:
        text, usage = await call_model(prompt)
        await reservation.settle_success(usage)  # 1,050 of the 1,200 that were held
    return text


async def main() -> None:
    print(await answer("It works"))
    print(await answer("It works again"))  # 1,050 + 1,200 are more than 2,000
    (status,) = await limiter.peek(alice)
    print(f"{status['tokens'].used} tokens used, {status['tokens'].remaining} left")


asyncio.run(main())
