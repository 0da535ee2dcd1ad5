"""Prompts for `outrider distill --prompts`: the tasks people ask of a chat model, made from text files.

    python recipes/draft_prompts.py --prose prose.txt.xz --pairs news.tsv.gz --news news.tsv.gz --count 60000 \
        --out prompts.jsonl

Chat (two parts of seven), translation, summary, question, sums and passage (one part each). Passages and titles come
from --prose (documents separated by blank lines, their title first) and --news (lines of which the first column goes
on in the next line), sentences to translate from --pairs (English TAB German); the rest is made up. No benchmark's
questions are used; --except FILE drops prompts that stand in such a file.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path

from mistakes import guarded

from outrider.training.data import documents, open_text

TOPICS = """climate change|healthy sleep|the French Revolution|photosynthesis|black holes|learning to cook
|job interviews|machine learning|the Roman Empire|vaccines|electric cars|meditation|the water cycle|inflation|jazz
|volcanoes|chess|gardening|the human heart|time management|renewable energy|dogs|travelling alone|the stock market
|recycling|bees
|public speaking|the Silk Road|antibiotics|plate tectonics|democracy|coffee|artificial intelligence|the moon landing
|yoga|friendship|city planning|coral reefs|the printing press|nutrition|DNA|the Cold War|remote work|poetry|gravity
|small businesses|social media|sleep apnoea|solar panels|Shakespeare|earthquakes|teamwork|the immune system|budgeting
|quantum computers|folk music|glaciers|the internet|supply and demand|painting|running a marathon|the brain|castles
|data privacy|bread baking|evolution|hurricanes|leadership|the periodic table|bird migration|museums|stress|robots
|the Industrial Revolution|tea|language learning|satellites|philosophy|bicycles|ocean currents|insurance|film|algebra
|parenting|the nervous system|rivers|fashion|elections|diabetes|mythology|wine|the sun|libraries|farming|rhetoric"""

ROLES = """a pirate|a patient teacher|a doctor|a tour guide|a medieval knight|a chef|a detective|a football coach
|a grandmother|an astronaut|a librarian|a stand-up comedian|a physicist|a time traveller|a farmer|a judge|a robot"""

PROGRAMS = """reverses a string|checks whether a number is prime|computes the nth Fibonacci number
|sorts a list of numbers|finds the largest of three numbers|counts the vowels in a text|merges two sorted lists
|removes duplicates from a list
|checks whether a text is a palindrome|computes the factorial of a number|reads a file and counts its words
|finds the most common word in a text|converts Celsius to Fahrenheit|computes the greatest common divisor
|implements a stack|implements binary search|implements a queue|finds all anagrams in a list of words
|computes the average of a list|flattens a nested list|validates an email address|parses a CSV file
|draws a triangle of stars|solves the Tower of Hanoi|finds the missing number in an array|rotates a matrix
|checks for balanced brackets|computes compound interest|generates a random password|implements a linked list
|finds the longest common prefix|counts the inversions in an array|simulates rolling two dice|prints the leap years
|implements a simple calculator|finds two numbers with a given sum|downloads a web page|renames all files in a folder
|computes the area of a polygon|implements quicksort|implements depth-first search|finds the shortest path in a graph
|converts a number to Roman numerals|encrypts a text with a Caesar cipher|plays tic-tac-toe|keeps a to-do list"""

LANGUAGES = "Python|Python|Python|JavaScript|Java|C++|C|Go|Rust|SQL|HTML"
NAMES = "Anna|Ben|Carla|David|Emma|Farid|Grace|Hugo|Ivy|Jamal|Kate|Liam|Maria|Noah|Olga|Priya|Quinn|Rosa|Sam|Tina"
THINGS = "apples|books|marbles|cards|stamps|cookies|pencils|eggs|shells|tickets|bottles|toys|flowers|chairs|coins"

CHAT = """Explain {topic} in simple terms.|What are the advantages and disadvantages of {topic}?
|Write a short story about {topic}.|Write a poem about {topic}.|Give me five tips about {topic}.
|How does {topic} affect our daily life?|Compare {topic} and {other}.|Write a blog post about {topic}.
|Pretend to be {role} and talk about {topic}.|You are {role}. A friend asks you about {topic}. What do you say?
|Write an email to a colleague about {topic}. Keep it short.|What is the history of {topic}?
|Write a {language} program that {program}.|Implement a function that {program} in {language}.
|Write a {language} function which {program}, and explain how it works.|Why is {topic} important?
|Create an outline for a presentation about {topic}.|What would happen without {topic}?
|Write a persuasive paragraph about {topic}.|What do most people get wrong about {topic}?
|Write a dialogue between {role} and {another} about {topic}.|Describe {topic} to somebody who has never heard of it.
|List ten interesting facts about {topic}.|How can I learn more about {topic}? Make a plan for one month.
|What is the connection between {topic} and {other}?|Give an example of {topic} and discuss its consequences.
|Imagine you are {role}. Introduce yourself and say what you think about {topic}.
|Act as {role} and answer in character: how did you learn about {topic}?|Draft a speech on {topic} for {role}.
|Describe a day in the life of {role} in vivid detail.|Write a review of a book about {topic}.
|Rewrite this sentence in three different styles: "{sentence}"|Is this sentence positive or negative? "{sentence}"
|Correct the grammar and explain your changes: {sentence}|Continue this story: {sentence}
|Which word in this list does not belong, and why? {topic}, {other}, {things}, {role}
|{name} is taller than {friend}, and {friend} is taller than Max. Who is the shortest? Explain your reasoning.
|If all {things} are blue and this is one of them, what colour is it? Think step by step.
|What are the main theories about {topic}, and what evidence supports them?
|How do {topic} and {other} influence the economy and society? Give examples.
|Explain the physics or chemistry behind {topic} to a student.|What is the time complexity of a program that {program}?
|Here is what I want: a {language} program that {program}. Find likely mistakes and write tests for it.
|Give the names, dates and numbers in this text as JSON: {passage}
|Extract from the text below every organisation and what it did. Use one line each.
{passage}|Rate each statement from 1 to 5 and return the numbers as an array: 1. {sentence} 2. {second}
|Make a table of three facts about {topic} with the columns "fact", "source" and "why it matters".
|Write a product description for {things} that {role} would buy.|Write a limerick about {role} and {things}.
|Plan a week in a city known for {topic}.
|Can you tell me about {title}?|Write a short biography of {title}.|Write an introduction to an essay about {title}."""

QUESTIONS = """What is {title}?|Who was {title}?|Where is {title}?|When did {title} become known?|Who wrote {title}?
|What is {title} known for?|Why is {title} important?|What is the origin of {topic}?|Who invented {topic}?
|Where does the word for {topic} come from?|When was {title} founded?|How old is {title}?|What does {topic} mean?
|How many people know about {title}?|Who played {name} in {title}?|When does {title} come out?
|Who is {title} married to?|What was the name of {title} before it was changed?|Who sang the song about {topic}?
|Where was {title} filmed?
|Who has won the most prizes for {topic}?|How many seasons of {title} are there?|What is the capital of {title}?
|When was the last time {title} won?|What type of thing is {title}?|Who is the founder of {title}?
|What is the name of the {things} in {title}?|In which year did {topic} begin?|Which country is {title} from?
|What is the difference between {topic} and {other}?"""

SUMMARIES = """Summarize: {passage}|Summarize: {passage}|Summarize: {passage}|Summarize this text in two sentences.
{passage}|{passage}

Give a short summary of the text above.|Write a headline and three key points for this article: {passage}
|Shorten: {passage}"""

PASSAGES = """{passage}
Who is {title}?|{passage}
What is {title}?|{passage}
What is the text about?|{passage}
Describe the most important events.|{passage}
When did this happen?|Answer with the help of the passage. Passage: {passage}
Question: What is {title} known for?|List all names of people and places in this text as a JSON array: {passage}
|{passage}
Where did this take place?|Rewrite this text so that a child can understand it: {passage}|{passage}
Why does this matter?|{piece} {other_piece}
Who is {title}?|{piece} {other_piece}
When did it begin?|{piece} {other_piece}
How many are there, and where?|{piece} {other_piece}
What is the name of the person who did this?|{piece} {other_piece}
Who was responsible for {title}?|{piece} {other_piece}
What does it say about {topic}?"""

SUMS = """{name} has {a} {things}. {friend} gives {name} {b} more, and then {name} sells {c}. How many are left?
|{name} buys {b} {things} for ${c} each and pays with a ${a}00 note. How much change does {name} get?
|A shop sells {a} {things} on Monday and twice as many on Tuesday. Each costs ${b}. How much money does it take?
|{name} reads {b} pages a day. How many days does a book of {a}0 pages take, and how many are read on the last day?
|A train travels at {a} miles an hour for {b} hours and then at {c} miles an hour for {d} hours. How far does it go?
|{name} is {b} years older than {friend}. In {c} years their ages will add up to {a}. How old is {friend} now?
|There are {a} {things} in {b} boxes, and each box holds the same number but the last one. How many are in the last box?
|{name} earns ${b} an hour and works {c} hours a day, {d} days a week. How much does {name} earn in four weeks?
|{name} spends half of ${a} on {things} and a quarter of the rest on food. How much money is left?
|The sides of a rectangle are {b} and {c}. What are its area and its perimeter?|What is {a} times {b} plus {c}?
|Solve for x: {b}x + {c} = {a}.|What is {b} per cent of {a}0?|If f(x) = {b}x^2 + {c}x - {d}, what is f({d})?
|{name} bakes {a} {things} and packs them in bags of {d}. Each bag sells for ${c}. How much money does {name} make if
 {b} bags stay unsold?
|{name} wants to save ${a}0. {name} earns ${b} a day by walking dogs and spends ${d} a day on lunch. After {c} days,
 {friend} gives {name} ${a}. How much is still missing?|A farm has {a} cows and {b} times as many hens. {c} hens are
 sold and half of the cows are moved to another farm. How many animals stay?|{name} has {d} boxes with {b} {things}
 each. {friend} has twice as many boxes but {c} fewer {things} in each. How many {things} do they have together?
|A class of {a} children goes on a trip. Each bus seats {b}, and a pending costs ${c}. How many buses are needed, and
 what do the tickets cost in total?|On Monday {name} ran {c} miles, on Tuesday {d} miles more, and on Wednesday twice
 as much as on Tuesday. How many miles did {name} run in these three days?|A recipe for {d} people needs {b} eggs and
 {c} cups of flour. How much of each is needed for {a} people?|The price of a coat was ${a}0. It was reduced by {b}
 per cent and then by another ${c}. What does it cost now?|{name} can paint {c} rooms in {d} days. How long does it
 take {name} and {friend} together to paint {a} rooms, if {friend} works half as fast?
|The vertices of a triangle are (0, 0), ({a}, 0) and (0, {b}). What is its area?"""


def choices(text: str) -> list[str]:
    """Parts of a list written on several lines: a bar at the start of a line ends the one before, a space goes on."""
    return [part for part in text.replace("\n|", "|").replace("\n ", " ").split("|") if part]


class Maker:
    """Fills the sentences above with whatever they ask for."""

    def __init__(self, prose: list[str], news: list[str], sentences: list[str], chance: random.Random) -> None:
        self.prose, self.news, self.sentences, self.chance = prose, news, sentences, chance
        self.kinds: dict[str, Callable[[], str]] = {
            "chat": lambda: self.filled(CHAT),
            "translation": lambda: f"Translate German to English: {self.chance.choice(self.sentences)}",
            "summary": lambda: self.filled(SUMMARIES),
            "question": lambda: self.filled(QUESTIONS),
            "sums": lambda: self.filled(SUMS),
            "passage": lambda: self.filled(PASSAGES),
        }

    def filled(self, templates: str) -> str:
        title, passage = self.document()
        if self.news and self.chance.random() < 0.4:
            passage = self.article()
        pick, number = (lambda text: self.chance.choice(choices(text))), self.chance.randint
        topic = title if self.chance.random() < 0.4 else pick(TOPICS)
        return pick(templates).format(
            title=title, passage=passage, topic=topic, other=pick(TOPICS), role=pick(ROLES), another=pick(ROLES),
            program=pick(PROGRAMS), language=pick(LANGUAGES), name=pick(NAMES), friend=pick(NAMES), things=pick(THINGS),
            piece=self.piece(), other_piece=self.piece(), sentence=self.sentence(), second=self.sentence(),
            a=number(20, 99), b=number(3, 19), c=number(2, 12), d=number(2, 6),
        )  # fmt: skip

    def document(self) -> tuple[str, str]:
        """A title, and a stretch of its text that ends with a sentence."""
        title, _, text = self.chance.choice(self.prose).partition("\n")
        cut = safe(text[: int(self.chance.triangular(300, 3400, 1200))])
        return title, cut[: cut.rfind(".") + 1] or cut

    def article(self) -> str:
        """Some sentences of the news that stand one after another."""
        first = self.chance.randrange(len(self.news))
        return safe(" ".join(self.news[first : first + self.chance.randint(4, 28)])[:3200])

    def piece(self) -> str:
        """A stretch of text as a search finds it, cut anywhere."""
        title, _, text = self.chance.choice(self.prose).partition("\n")
        first = self.chance.choice([0, self.chance.randrange(max(1, len(text) - 400))])
        return safe(" ".join(f"{title} {text[first : first + self.chance.randint(400, 1500)]}".split()))

    def sentence(self) -> str:
        """One of the news, or of a document's beginning."""
        text = self.chance.choice(self.news) if self.news else self.chance.choice(self.prose).partition("\n")[2][:300]
        return safe(text.split(". ")[0][:300])


def safe(text: str) -> str:
    """Without braces, which stand for something in a template."""
    return text.replace("{", "(").replace("}", ")")


def titled(document: str) -> bool:
    """Has a title, and text enough to ask about."""
    title, _, text = document.partition("\n")
    return 3 < len(title) < 50 and "." not in title and title != "Introduction" and len(text) > 300


def column(path: Path, number: int) -> list[str]:
    with open_text(path) as file:
        return [line.rstrip("\n").split("\t")[number] for line in file if line.count("\t") == 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prose", type=Path, required=True)
    parser.add_argument("--pairs", type=Path, nargs="+", required=True)
    parser.add_argument("--news", type=Path, nargs="*", default=[])
    parser.add_argument("--except", dest="excluded", type=Path, nargs="*", default=[])
    parser.add_argument("--count", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    prose = [document for document in documents([options.prose]) if titled(document)]
    sentences = [sentence for path in options.pairs for sentence in column(path, 1) if 20 < len(sentence) < 400]
    excluded = "\n".join(path.read_text(encoding="utf-8") for path in options.excluded)
    news = [line for path in options.news for line in column(path, 0)]
    maker, made = Maker(prose, news, sentences, random.Random(options.seed)), dict[str, str]()
    kinds = [*maker.kinds, "chat"]
    for turn in range(options.count * 4):  # short ones repeat, so more are made than kept
        if len(made) == options.count:
            break
        kind = kinds[turn % len(kinds)]
        prompt = maker.kinds[kind]()
        if not any(json.dumps(prompt, ensure_ascii=way)[1:-1] in excluded for way in (True, False)):
            made.setdefault(prompt, kind)
    with options.out.open("w", encoding="utf-8") as file:
        for prompt, kind in made.items():
            file.write(json.dumps({"prompt": prompt, "task": kind}, ensure_ascii=False) + "\n")
    parser.exit(message=f"{len(made)} prompts in {options.out}\n")


if __name__ == "__main__":
    guarded(main)
