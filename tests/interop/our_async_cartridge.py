"""A cartridge on our SDK with async handlers. Run by the launcher as `tests.interop.our_async_cartridge`."""

from __future__ import annotations

from capdag.cartridge import AsyncRequest, CartridgeError
from tests.interop import vocabulary
from tests.interop.declared import declared


async def echo(request: AsyncRequest) -> None:
    await request.output.write(await request.main_input().read())


async def steps(request: AsyncRequest) -> None:
    for step in vocabulary.STEPS:
        request.progress(step, f"at {step}")
    request.log("warn", vocabulary.WARNING, "input")
    await echo(request)


async def fail(request: AsyncRequest) -> None:
    await request.main_input().read()
    code, attribution, message = vocabulary.FAILURE
    raise CartridgeError(code, message, attribution)


async def pour(request: AsyncRequest) -> None:
    for _ in range(vocabulary.POURED):
        await request.output.item(vocabulary.PIECE)


if __name__ == "__main__":
    declared(echo, steps, fail, pour).run()
