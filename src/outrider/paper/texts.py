"""Small test sets of the package's own: sentences with translations, articles with summaries, programs with tests.

They show that speculation leaves quality as it is; they are far too small to rank models.
"""

from __future__ import annotations

from dataclasses import dataclass

TRANSLATIONS = (
    ("Where is the nearest station?", "Wo ist der nächste Bahnhof?"),
    ("My sister forgot her umbrella on the bus.", "Meine Schwester hat ihren Regenschirm im Bus vergessen."),
    ("We will meet in front of the museum at half past seven.", "Wir treffen uns um halb acht vor dem Museum."),
    ("Could you please close the window?", "Könnten Sie bitte das Fenster schließen?"),
    ("It is getting cold.", "Es wird kalt."),
    (
        "The government announced on Tuesday that the new bridge will be opened next year.",
        "Die Regierung hat am Dienstag angekündigt, dass die neue Brücke im nächsten Jahr eröffnet wird.",
    ),
    (
        "According to the police, nobody was injured in the accident.",
        "Nach Angaben der Polizei wurde bei dem Unfall niemand verletzt.",
    ),
    ("I have never been to Berlin.", "Ich war noch nie in Berlin."),
    ("She is reading a book about the history of music.", "Sie liest ein Buch über die Geschichte der Musik."),
    ("The children are playing in the garden.", "Die Kinder spielen im Garten."),
    ("How much does this jacket cost?", "Wie viel kostet diese Jacke?"),
    ("He did not know what to say.", "Er wusste nicht, was er sagen sollte."),
    ("The weather will be better tomorrow.", "Morgen wird das Wetter besser."),
    ("This package contains the documentation.", "Dieses Paket enthält die Dokumentation."),
    ("I would like a cup of coffee, please.", "Ich hätte gern eine Tasse Kaffee, bitte."),
    ("They have lived in this house for ten years.", "Sie wohnen seit zehn Jahren in diesem Haus."),
)

BEGINNINGS = (
    "The river rises in the hills and",
    "In the spring of that year the town",
    "She was born in a small village near",
    "The film was directed by",
    "The first railway in the region was opened",
    "During the war the company",
    "The species is found in",
    "He studied law at the university and",
    "The church was built in the twelfth century",
    "In mathematics, a number is",
    "The island has a population of",
    "After the fire the house was rebuilt and",
    "The song was first performed in",
    "A bridge over the valley was planned",
    "The team won the cup in",
    "Most of the forest was cut down when",
)
"""For a model that continues text."""

SUMMARIES = (
    (
        "The town council voted on Monday to turn the old railway line into a path for walkers and cyclists. Trains "
        "stopped running there in 1987, and the land has been overgrown since. The path will be eleven kilometres long "
        "and link four villages. Work begins in April and is expected to take two years. Some farmers had objected "
        "because the path crosses their fields; they will be given gates.",
        "The council will turn a disused railway line into an eleven kilometre path for walkers and cyclists.",
    ),
    (
        "Researchers have found that bees in cities live on a wider range of plants than bees in the country. They "
        "looked at the pollen in two hundred hives over three summers. Gardens, parks and balconies offered flowers "
        "from March to October, while fields offered many flowers for a few weeks only. The researchers suggest that "
        "farmers leave strips of wild flowers between their fields.",
        "Bees in cities feed on more kinds of plants than bees in the country, a study of hives found.",
    ),
    (
        "A fire broke out in a bakery in the old harbour early on Saturday. A neighbour smelled smoke and called the "
        "fire brigade, which put the fire out within an hour. Nobody was hurt, but the ovens and the roof were "
        "destroyed. The owner said that she would sell bread from a van until the shop is repaired. The cause is "
        "thought to be a faulty cable.",
        "A fire destroyed the ovens and roof of a harbour bakery on Saturday; nobody was hurt.",
    ),
    (
        "The museum has bought back a painting that was stolen from it forty years ago. It was found in an attic by a "
        "family that had inherited the house and did not know its worth. Experts compared the back of the canvas with "
        "old photographs and were certain within a day. The family asked for no reward. The painting of two ships in a "
        "storm will be shown again from the first of June.",
        "A painting stolen from the museum forty years ago was found in an attic and will be shown again in June.",
    ),
    (
        "From next year the ferry to the islands will run on batteries. The new ship was built in a yard on the west "
        "coast and carries sixty cars. It is charged for ten minutes at each landing, with power from a wind farm. "
        "The crossing takes as long as before, but the crew say that passengers will notice the quiet. The old ferry, "
        "which burned two tonnes of oil a day, is to be sold.",
        "A battery ferry that charges at each landing will replace the oil-burning one to the islands next year.",
    ),
    (
        "A school in the hills has begun to teach two hours of each day outside. Teachers take classes to the wood "
        "behind the playground, whatever the weather. They report that children concentrate better afterwards and are "
        "ill less often. Parents were asked to buy rain clothes, and the council paid for those who could not. Three "
        "other schools want to follow in the autumn.",
        "A school teaches two hours a day outdoors, and teachers say that children concentrate better.",
    ),
    (
        "The harvest of apples will be small this year. Frost in the last week of April killed blossoms in most "
        "orchards along the river, and a dry June did the rest. Growers expect a third of what they picked last year. "
        "Juice will be dearer from October, one of them said, and some varieties will not reach the shops at all. "
        "Pears, which flower earlier, were hardly touched.",
        "Frost in April and a dry June have cut the apple harvest to about a third of last year's.",
    ),
    (
        "Two students have written a program that reads handwriting from old church books. They trained it on nine "
        "hundred pages that volunteers had copied by hand. It makes a mistake in one word of twenty, which is about "
        "what a practised reader does. The archive plans to have forty thousand pages read by the end of the year and "
        "to let everyone search them for names.",
        "A program by two students reads old church books about as well as a practised reader.",
    ),
)


@dataclass(frozen=True)
class Program:
    """A function to be completed, and what must hold of it."""

    prompt: str
    test: str  # what is run behind the function


PROGRAMS = (
    Program(
        'def add(a, b):\n    """Return the sum of a and b."""\n',
        "assert add(2, 3) == 5 and add(-1, 1) == 0",
    ),
    Program(
        'def is_even(n):\n    """Return True if n is even, else False."""\n',
        "assert is_even(4) is True and is_even(7) is False",
    ),
    Program(
        'def largest(numbers):\n    """Return the largest number of a list."""\n',
        "assert largest([3, 9, 2]) == 9 and largest([-5, -2]) == -2",
    ),
    Program(
        'def reverse(text):\n    """Return the text backwards."""\n',
        "assert reverse('abc') == 'cba' and reverse('') == ''",
    ),
    Program(
        'def count_vowels(text):\n    """Return how many letters of the text are vowels."""\n',
        "assert count_vowels('hello') == 2 and count_vowels('xyz') == 0",
    ),
    Program(
        'def factorial(n):\n    """Return n factorial, for n of at least 0."""\n',
        "assert factorial(0) == 1 and factorial(5) == 120",
    ),
    Program(
        'def last_word(text):\n    """Return the last word of the text."""\n',
        "assert last_word('one two three') == 'three' and last_word('alone') == 'alone'",
    ),
    Program(
        'def squares(numbers):\n    """Return a list of the squares of the numbers."""\n',
        "assert squares([1, 2, 3]) == [1, 4, 9] and squares([]) == []",
    ),
    Program(
        'def is_palindrome(text):\n    """Return True if the text reads the same backwards."""\n',
        "assert is_palindrome('level') is True and is_palindrome('ab') is False",
    ),
    Program(
        'def mean(numbers):\n    """Return the arithmetic mean of a list of numbers."""\n',
        "assert mean([1, 2, 3]) == 2 and mean([5]) == 5",
    ),
)
