"""What the texts of zaya-small are about: how each begins, made from a seed and small lists.

A world of few words keeps a model of two million parameters honest: animals, children and things
in a handful of places, questions about nature, plain food, sums with small numbers.
"""

from dataclasses import dataclass
from random import Random

NAMES = """Anna, Ben, Carla, David, Ella, Finn, Grace, Hugo, Ida, Jack, Kim, Leo, Mia, Noah, Olga,
Paul, Rosa, Sam, Tara, Tom, Uma, Vera, Will, Zoe, Lily, Max, Nora, Oscar, Ruby,
Theo""".replace("\n", " ").split(", ")
ANIMALS = """fox, bear, rabbit, owl, mouse, cat, dog, horse, duck, frog, turtle, lion, elephant,
monkey, bee, ant, whale, fish, crow, sheep, goat, pig, hen, snake, spider, deer, wolf, squirrel,
hedgehog, dragon""".replace("\n", " ").split(", ")
MANNERS = """small, brave, shy, hungry, sleepy, clever, old, kind, proud, lonely, curious, lazy,
happy, sad, loud, quiet""".replace("\n", " ").split(", ")
THINGS = """lamp, key, boat, ball, kite, box, book, hat, bell, map, stone, shoe, clock, apple, cake,
drum, egg, flower, star, letter, ladder, mirror, rope, basket, coin, blanket, bucket, bridge, tree,
snowman, train, bicycle, umbrella, garden, song""".replace("\n", " ").split(", ")
PLACES = """a forest, a farm, a lake, a small village, a big city, a school,
a garden, an old house, an island, a river, a market, a desert, a cave, a castle, a zoo,
a kitchen, a field of snow, a ship""".replace("\n", " ").split(", ")
SUBJECTS = """rain, snow, wind, the moon, the sun, a star, a rainbow, a river, the sea, a mountain,
a volcano, a cloud, thunder, ice, fire, sand, a tree, a seed, a leaf, a flower, grass, a mushroom,
bread, milk, honey, salt, an egg, a bee, a spider, a bird, a whale, a bear, a frog, a fish, a cow,
a dinosaur, a bone, a heart, blood, sleep, a dream, a shadow, an echo, a magnet, glass, paper, iron,
gold, a clock, a wheel, a bridge, a boat, a train, a plane, a rocket, a computer, a telephone,
a lamp, electricity, music, a drum, a book, a map, a school, a doctor, a farmer, a king, winter,
summer, night, time""".replace("\n", " ").split(", ")
ASKED = ("What is {}?", "How does {} work?", "Why is {} important?", "What is {} made of?",
         "Where can I find {}?", "What can {} do?")  # fmt: skip
FOODS = """tomato soup, apple pie, pancakes, a cheese sandwich, potato salad, fried rice, banana
bread, chicken soup, an omelette, fruit salad, vegetable stew, noodles with peas, baked fish, carrot
cake, oat biscuits, bean soup, mashed potatoes, pumpkin soup, lemonade, rice pudding, a green salad,
corn bread, mushroom toast, onion soup, chocolate milk""".replace("\n", " ").split(", ")


@dataclass(frozen=True)
class Topic:
    """One text to be: of which kind, and how it begins."""

    kind: str
    beginning: str


def topic(kind: str, random: Random) -> Topic:
    """A topic of one of `KINDS`; the same for the same state of `random`."""
    return Topic(kind, KINDS[kind](random))


def _story(random: Random) -> str:
    hero, thing = f"{random.choice(MANNERS)} {random.choice(ANIMALS)}", random.choice(THINGS)
    place = random.choice(PLACES)
    heading = f"Story: the {hero} and the {thing}"
    return f"{heading}\n\nOnce upon a time, in {place}, there was {_a(hero)}."


def _day(random: Random) -> str:
    name, place, thing = random.choice(NAMES), random.choice(PLACES), random.choice(THINGS)
    return f"Story: {name} and the {thing}\n\nOne day {name} was in {place}."


def _question(random: Random) -> str:
    return f"Question: {random.choice(ASKED).format(random.choice(SUBJECTS))}\nAnswer:"


def _recipe(random: Random) -> str:
    return f"Recipe: {random.choice(FOODS)} for {random.randint(2, 8)} people\n\nYou need:\n-"


def _talk(random: Random) -> str:
    (a, b), thing = random.sample(NAMES, 2), random.choice(THINGS)
    return f'Talk: {a} and {b}\n\n"Look," said {a}, "I have {_a(thing)}!" "Oh," said {b},'


def _sum(random: Random) -> str:
    name, thing = random.choice(NAMES), random.choice(THINGS)
    less, more = sorted((random.randint(2, 20), random.randint(2, 20)))
    if random.random() < 0.5:
        told, result = f"has {less} {_many(thing)} and finds {more} more", less + more
    else:
        told, result = f"has {more} {_many(thing)} and gives {less} away", more - less
    return f"Sum: {name} {told}. How many now?\nAnswer: {result}, because"


KINDS = {"story": _story, "day": _day, "question": _question, "recipe": _recipe, "talk": _talk,
         "sum": _sum}  # fmt: skip


def _a(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def _many(word: str) -> str:
    return f"{word}es" if word.endswith(("x", "s")) else f"{word}s"
