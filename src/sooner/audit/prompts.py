"""Built-in prompts: short and long answers, prose, lists, code, arithmetic, copying and other scripts, for users who
name none. Knows nothing else."""

from __future__ import annotations

__all__ = ["PROMPTS"]

PROMPTS: tuple[str, ...] = (
    "Why is the sky blue? Explain it to a child.",
    "Write the numbers from one to thirty as words.",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "Repeat exactly: The ferry leaves at seven, the train at nine, and the last bus at half past eleven.",
    "Tell me a story about a lighthouse keeper who finds a letter in a bottle.",
    "Translate into French: The library is closed on Mondays, but the reading room stays open until six.",
    "A baker sells 12 rolls at 3 coins each and 5 loaves at 8 coins each. How much does she earn? Think step by step.",
    "List ten fruits, one a line, each with its colour.",
    "Summarise in one sentence: Bees visit flowers for nectar. While they drink, pollen sticks to their legs, and at "
    "the next flower some of it falls off. That is how many plants come to bear fruit.",
    "What is the capital of Australia?",
    "Write an e-mail that politely declines an invitation to a conference.",
    "Correct the spelling: Teh quik brown fox jumsp ovr the lasy dog, adn tehn it slepes.",
    "Explain what a hash table is and when it is slow.",
    "Write a JSON object that describes a book, with title, author, year and three tags.",
    "Give me five names for a small coffee shop by the sea.",
    "오늘 날씨에 대해 짧은 문장 세 개를 써 주세요.",
    "Write a haiku about rain on a tin roof.",
    "Compare electric and petrol cars in a table with three rows.",
    "Rewrite this in the past tense: She opens the door, sees the empty room and calls his name twice.",
    "What happens if I mix baking soda with vinegar?",
    "Write a shell script that renames every .txt file in a folder to .md.",
    "Complete: one two three one two three one two three",
    "Explain supply and demand with an example from a farmers' market.",
    "Describe your favourite season without naming it.",
    "Write a limerick about a cat who learned to sail.",
    "What are the steps to change a bicycle tyre? Number them.",
    "Convert to JSON: name: Ada; born: 1815; field: mathematics. name: Alan; born: 1912; field: logic.",
    "Wie kocht man Kartoffelsuppe? Antworte in vier Sätzen.",
    "Write a regular expression for dates such as 2024-05-17 and explain each part.",
    "Who wrote Pride and Prejudice, and what is it about?",
    "Write a short dialogue between a customer and a watchmaker.",
    "Count down from twenty to zero, separated by commas.",
)
