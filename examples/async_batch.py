"""Several questions in one batch, from asyncio; each answer equals its solo run: `python examples/async_batch.py`."""

import asyncio

import sooner

QUESTIONS = ["Name a colour.", "Name an animal.", "What is 2 + 2?", "안녕하세요?"]


async def main() -> None:
    """Ask all at once, then one alone, and compare."""
    engine = sooner.load()
    answers = await engine.agenerate_many(QUESTIONS, temperature=0.8, seed=7, max_tokens=16)
    for question, answer in zip(QUESTIONS, answers, strict=True):
        print(f"{question}\n    {answer.text!r}")
    alone = await engine.agenerate(QUESTIONS[1], temperature=0.8, seed=7, max_tokens=16)
    assert alone.token_ids == answers[1].token_ids


if __name__ == "__main__":
    asyncio.run(main())
