"""Built-in prompts: varied enough to make a model show how it writes, for users who have no traffic to learn from.

Knows topics and the kinds of thing people ask. Does not know any model or benchmark.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

__all__ = ["builtin_prompts"]

_TOPICS = ["photosynthesis", " the water cycle", " volcanoes", " black holes", " vaccines", " the immune system", " plate tectonics", " tides", "\nthe French Revolution", " the Silk Road", " ancient Rome", " the printing press", " the Industrial Revolution", " the Cold War", " jazz", "\nimpressionist painting", " classical music", " the theatre", " poetry", " the novel", " mythology", " architecture", " bridges", " railways", "\nsailing ships", " aeroplanes", " electric cars", " bicycles", " batteries", " solar panels", " wind turbines", " nuclear power", " recycling", "\nclimate change", " rainforests", " coral reefs", " deserts", " glaciers", " rivers", " mountains", " bees", " whales", " wolves", " elephants", " birds", "\ndinosaurs", " bacteria", " viruses", " DNA", " evolution", " the human heart", " sleep", " nutrition", " vitamins", " exercise", " stress", " memory", "\nlanguage learning", " mathematics", " probability", " prime numbers", " geometry", " algebra", " statistics", " gravity", " light", " sound", " magnets", "\nelectricity", " atoms", " chemical reactions", " acids and bases", " the periodic table", " telescopes", " satellites", " the Moon", " Mars", " comets", "\ncomputers", " the internet", " programming", " databases", " encryption", " machine learning", " robots", " video games", " mobile phones", " email", "\nsocial media", " privacy", " democracy", " elections", " the constitution", " human rights", " taxes", " inflation", " supply and demand", " banks", "\nstock markets", " insurance", " small businesses", " marketing", " customer service", " job interviews", " teamwork", " leadership", " negotiation", "\ntime management", " public speaking", " essay writing", " libraries", " museums", " schools", " universities", " teachers", " cooking", " bread", " coffee", "\ntea", " chocolate", " cheese", " vegetables", " gardening", " trees", " flowers", " farming", " fishing", " forests", " camping", " hiking", " swimming", " football", "\ntennis", " chess", " running", " yoga", " cycling", " travel", " hotels", " airports", " maps", " cities", " public transport", " weather", " storms", " earthquakes", "\nfloods", " fire safety", " first aid", " hospitals", " dentists", " pharmacies", " pets", " dogs", " cats", " horses", " clothing", " shoes", " furniture", "\nhouses", " kitchens", " tools", " painting a room", " photography", " film", " television", " newspapers", " radio", " festivals", " weddings", " birthdays", "\nfriendship", " family", " childhood", " old age", " happiness", " fear", " courage", " honesty", " justice", " philosophy", " religion", " history", " archaeology", "\nmoney", " charity", " volunteering", " law", " police", " the navy", " diplomacy", " trade", " shipping", " factories", " steel", " glass", " paper", " plastic", " oil", "\ngold", " water supply", " sewage", " noise", " space travel", " time zones", " calendars", " clocks", " numbers", " writing systems", " translation"]

_FORMS = """What is {t}?|Explain {t} in simple terms.|Explain {t} to a ten-year-old.|Write a short essay about {t}.
Write a blog post about {t} with a title and three sections.|List five interesting facts about {t}.
List ten tips about {t}.|What are the advantages and disadvantages of {t}?|Why is {t} important?|How does {t} work?
Give a brief history of {t}.|Write a poem about {t}.|Write a short story about {t}.|Describe {t} in detail.
What should a beginner know about {t}?|Write an email to a colleague about {t}.|Write a dialogue between two friends about {t}.
What are common misconceptions about {t}?|Summarize what is known about {t} in one paragraph.|Compare {t} and {u}.
What do {t} and {u} have in common?|Write a quiz with five questions about {t}, with answers.
Imagine you are an expert on {t}. What would you tell an audience?|Pretend to be a tour guide and talk about {t}.
Make a table of contents for a book about {t}.|Who made important contributions to {t}?|Where can I learn more about {t}?
Give me a step-by-step plan to learn about {t}.|What questions do people often ask about {t}? Answer them.
How has {t} changed over time?|What is the future of {t}?|Write a persuasive paragraph about {t}.
Write a product description that has to do with {t}.|Write a news report about {t}.|Define the key terms related to {t}.
How would the world be different without {t}?|Give three examples that illustrate {t}.""".replace("\n", "|").split("|")

_NAMES = ["Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Henry", "Ivy", "Jack", "Kate", "Leo", "Mia", "Noah", "Olga", "Paul", "Rosa", "Sam", "Tina", "Victor"]
_THINGS = ["apples", "books", "pencils", "cookies", "marbles", "stamps", "tickets", "bottles", "chairs", "eggs", "oranges", "coins", "cards", "shirts"]

_PROBLEMS = """{n} has {a} {x}. {m} gives {n} {b} more and {n} gives away {c}. How many {x} does {n} have now?
A box holds {a} {x}. How many {x} are in {b} boxes, if {c} {x} are broken?
{n} buys {a} {x} for {b} dollars each and pays with a {d} dollar bill. How much change does {n} get?
{n} reads {a} pages a day. How many days does a book of {d} pages take?
A train travels {a} miles an hour for {b} hours, then {c} miles more. How far does it go in all?
{n} and {m} share {d} {x} equally. {n} then loses {c}. How many are left for {n}?
There are {d} {x} in a shop. It sells {a} on Monday and twice as many on Tuesday. How many remain?
{n} is {a} years old and {m} is {b} years older. What is the sum of their ages in {c} years?
What is {a} percent of {d}?|Solve for x: {b}x + {c} = {d}.|Compute ({a} + {b}) * {c} - {d}.""".replace("\n", "|").split(
    "|"
)

_CODE = """reverses a string;checks whether a number is prime;counts the words in a text;finds the largest item in a list;
sorts a list of dictionaries by a key;computes the factorial of a number;merges two sorted lists;removes duplicates from a list;
reads a CSV file and prints each row;converts Celsius to Fahrenheit;computes the Fibonacci sequence;flattens a nested list;
checks for balanced brackets;finds the longest common prefix;implements binary search;implements a stack;counts the vowels;
computes the average of a list;transposes a matrix;validates an email address;groups words that are anagrams""".replace(
    "\n", ""
).split(";")

_LANGUAGES = ["Python", "Python", "Python", "JavaScript", "Java", "C", "SQL", "HTML"]

_GERMAN = (
    "Der Minister|Die Regierung|Das Unternehmen|Die Polizei|Der Präsident|Die Stadt|Ein Sprecher|Die Mannschaft",
    "hat am Montag|hat gestern|wird nächste Woche|hat im vergangenen Jahr|will in Zukunft|hat nach eigenen Angaben",
    "einen neuen Plan|die Ergebnisse|das Projekt|eine wichtige Entscheidung|den Vertrag|die Kosten|mehr Geld",
    "vorgestellt|veröffentlicht|angekündigt|verteidigt|beschlossen|abgelehnt|in Berlin vorgestellt|bestätigt",
)

_OVER_TEXT = (
    """Summarize: {p}|Summarize the following text in three sentences: {p}
Read the passage and answer: what is the main idea?\n\n{p}|Extract the key facts from this text as a list:\n\n{p}
Passage: {p}\n\nQuestion: What does the passage say about {t}?\nAnswer:
Rewrite the following text in simpler words:\n\n{p}|Correct any errors in this text and return it:\n\n{p}
Give the following text a title and list its topics:\n\n{p}""".replace("\n\n", "\0")
    .replace("\n", "|")
    .replace("\0", "\n\n")
    .split("|")
)


def builtin_prompts(seed: int = 0) -> Iterator[str]:
    """An endless, reproducible stream of prompts. ``{p}`` in a prompt stands for a passage: the caller fills it with
    a text the model wrote before, or skips the prompt."""
    rng = random.Random(seed)
    topics = [topic.strip() for topic in _TOPICS]
    while True:
        kind = rng.random()
        topic, other = rng.sample(topics, 2)
        if kind < 0.45:
            yield rng.choice(_FORMS).format(t=topic, u=other)
        elif kind < 0.60:
            yield _problem(rng)
        elif kind < 0.70:
            task, language = rng.choice(_CODE), rng.choice(_LANGUAGES)
            yield f"Write a {language} program that {task}."
        elif kind < 0.78:
            sentence = " ".join(rng.choice(part.split("|")) for part in _GERMAN)
            yield f"Translate German to English: {sentence}."
        else:
            yield rng.choice(_OVER_TEXT).replace("{t}", topic)


def _problem(rng: random.Random) -> str:
    name, other = rng.sample(_NAMES, 2)
    numbers = {"a": rng.randint(2, 60), "b": rng.randint(2, 12), "c": rng.randint(1, 20), "d": rng.randint(60, 900)}
    return rng.choice(_PROBLEMS).format(n=name, m=other, x=rng.choice(_THINGS), **numbers)
