"""The vocabulary of the dialogues, and the rule that splits it between training and evaluation.

`is_held_out(word)` assigns each word, made-up or real, to one side by a hash, except the few that are always trained.
Training draws only words that are not held out, evaluation only words that are. No other rule decides it, so the two
sides cannot overlap. Dialogues, tools and the tokenizer are unknown here.
"""

from __future__ import annotations

import random
import string
from zlib import crc32

from training.fixed_texts import FIXED_WORDS, RUNNERS

NOUNS = """weather time forecast price stock temperature population capital news traffic distance height score recipe
balance status address phone calendar schedule invoice order ticket flight hotel train route map photo image song album
movie book author quote joke fact word meaning rhyme translation currency rate tax salary budget cost discount coupon
file folder page link server host port log metric alert user account group role key token secret branch commit diff
issue review build test deploy version package module table row column query record index cache queue topic message
mail contact note task reminder alarm event meeting room seat menu dish wine coffee garden tree flower bird fish horse
river lake mountain island bridge tower castle museum garage engine wheel battery sensor camera lamp window door roof
moon planet comet tide wind rain snow humidity pressure altitude speed weight volume color shape pattern texture sound
letter number symbol chart graph report summary draft chapter verse poem story legend rumor riddle puzzle game level
prize medal team player coach match league season goal record payment refund shipment parcel truck ferry harbor pilot
doctor nurse clinic dose symptom allergy diet calorie vitamin lesson course exam grade school pupil teacher tutor essay
""".split()
VERBS = """get fetch find look read load query show list check search ask obtain retrieve give tell lookup pull compute
describe inspect resolve view collect grab request locate track measure report scan discover count acquire derive
estimate detect browse monitor verify download extract evaluate enumerate examine gather identify load open peek poll
probe rank receive recall select sample sort survey trace watch""".split()
PARAMS = """city location place name path query text url id symbol input target file title topic value key country
address unit date item subject term word user code region station label zone field source object code_point city_name
file_path user_id place_name search_term item_id ticker word_list order_id area district street keyword phrase tag
string number_of_days limit count amount page_size depth width size radius offset""".split()
NAMES = """Oslo Paris Berlin Tokyo Madrid London Rome Vienna Lisbon Dublin Cairo Lima Quito Delhi Seoul Boston Denver
Austin Chicago Toronto Sydney Bergen Hamburg Munich Zurich Geneva Milan Naples Athens Sofia Prague Warsaw Riga Tallinn
Helsinki Stockholm Malmo Aarhus Antwerp Ghent Lyon Nice Porto Seville Havana Bogota Santiago Nairobi Lagos Accra Tunis
Hanoi Manila Jakarta Perth Auckland Anna Ben Clara David Emma Felix Greta Hugo Ida Jonas Kira Leo Maria Nils Olga
Peter Rosa Simon Tara Ulrich Vera Walter Yara Zoe Alice Bob Carol Dave Eve Frank Grace Heidi Ivan Judy Mallory Nina
Oscar
""".split()
COMMON = """antiphon the a an of and to in is it that for on with as at by from or but not this one all we you they
she he his her some any more most small big old new red blue green black white quick brown lazy happy sad warm cold
bright dark sky sea sun star night day cat dog fox hill house street road city wood stone water fire bread milk apple
sing jump run walk sleep eat drink open close write paint build carry under over between before after every never
always very little silver golden quiet loud gentle sharp broken hidden early late seven three twelve hundred morning
evening winter summer about above across act add again age ago air almost alone along already also among angry animal
another answer apart appear area arm army around arrive art aside attack aunt away baby back bad bag ball band bank
bar base basic bath beach bear beat beautiful because become bed begin behind believe bell belong below bend best
better beyond bicycle bill birth bit bite blood blow board boat body bone born borrow both bottle bottom bowl box boy
brain branch brave break breath brick bring broad brother brush burn bus business busy butter button buy cake call
calm can cap captain car card care careful carrot case catch cause center century certain chair chance change cheap
cheese chest chicken chief child choice choose circle class clean clear clever climb clock cloth cloud coast coat
collect color comb come common company compare complete condition connect consider contain continue control cook cool
copper copy corner correct cotton could count country couple courage cousin cover cow crash create cross crowd cry cup
cut daily damage dance danger daughter deal dear death decide deep degree delay deliver depend desert design desk
detail develop different difficult direct dirty discover discuss distant divide double doubt dream dress drive drop
dry dust duty each earth east easy edge education effect egg eight electric elephant eleven empty end enemy enjoy
enough enter equal error even exact example except excite exercise exist expect expensive explain express extra eye
face fact fail fair faith fall false family famous far farm fast father fault fear feed feel fellow female fever few
fight figure fill film final fine finger finish firm fit five fix flag flat float floor flow fly follow food foot
force foreign forest forget forgive form forward four free freedom freeze fresh friend front fruit full fun funny
furniture future garden general gift girl give glad glass goat gold good goodbye grass gray great ground group grow
guess guide gun hair half hall hammer hand happen hard hat hate have head healthy hear heart heat heaven heavy help
hobby hold hole holiday home hope hospital hot hour human hunger hurry hurt husband ice idea ill important increase
industry inside instead interest invent iron join journey judge juice just keep kettle kick kind king kitchen knee
knife knock know ladder lady language large last laugh law lead leaf learn leave left leg lend length less let library
lie life lift light like limit line lion lip list listen live local lock lonely long look lose lot love low lower
lucky machine main make male man manage mark market marry matter may meal mean measure meat medicine meet member
mention method middle might mile million mind minute miss mistake mix model modern moment money monkey month mother
motion mouth move much music must narrow nation nature near nearly neck need needle neighbor neither net next nice
nine noble noise none north nose nothing notice now nurse object ocean offer office often oil only opposite orange
order other our outside oven owner page pain pair pan paper parent park part partner party pass past path pay peace
pen pencil people pepper per perfect period person petrol phone photograph pick picture piece pig pin pink pipe plan
plane plant plastic plate play please pleased plenty pocket point poison police polite pool poor popular position
possible potato pour power present press pretty prevent prince prison private probably problem produce promise proper
protect provide public punish push put queen question quite radio raise reach ready real really reason receive record
remain remember remind remove rent repair repeat reply rest restaurant return rice rich ride right ring rise rubber
rude rule ruler rush safe sail salt same sand save say science scissors search seat second see seem sell send sentence
serve several shade shadow shake shallow share sheep sheet shelf shine ship shirt shoe shoot shop short should
shoulder shout shut sick side signal silence silly similar simple since single sink sister sit six size skill skin
skirt slip slow smart smell smile smoke snow soap sock soft someone something sometimes son soon sorry soup south
space speak special spell spend spoon sport spread spring square stamp stand start state station stay steal steam step
still stomach stop storm strange stream strong structure student study stupid subject substance success such sudden
sugar suitable sure surprise sweet swim sword system table take talk tall taste taxi tea teach tell ten tennis
terrible than then there therefore thick thin thing think third thirsty thousand thread through thunder ticket tidy
tie tiger tight till time tin tired title toe together tomorrow tonight too tool tooth top total touch tourist toward
town toy track trade training transport travel tree trip trouble true trust try turn twice type uncle understand unit
until use useful usual usually vegetable village visit voice wait wake want war wash waste watch way weak wear wedding
week welcome well west wet what wheel when where which while who why wide wife wild will win wing wire wise wish
without woman wonder wool work worry worst yard year yellow yesterday yet young zero zoo pineapple haiku philosophy
graph phrase alphabet triumph symphony default async await import function server client socket process kernel buffer
compile debug parser schema vector matrix tensor docker commit merge rebase hello world thanks yes no maybe today here
how
""".split()
KINDS = ["current", "next", "last", "local", "average", "daily", "total", "nearest", "recent", "expected"]
"""Words between the verb and the noun of a tool's name."""
PROGRAMS = """ls cat echo grep find git python python3 node npm make pwd date whoami wc head tail sort uname du df ps
env touch mkdir rm cp mv sed awk curl tar chmod diff which cargo go pytest ruff jq tree hostname id uptime printf seq
stat file basename dirname tee xargs cut tr test true sleep ln zip ssh docker kubectl pip uv""".split()
SUFFIXES = "py txt md json toml rs go js c h sh log csv yaml html cfg".split()

# The words of common first demonstrations and of fixed sentences: always on training's side, so that they never decide
# an evaluation.
ALWAYS_TRAINED = frozenset("weather oslo city location cmd path query world code file cat python".split()).union(
    FIXED_WORDS
)

ONSETS = (
    "b c d f g h j k l m n p r s t v w z br ch cl dr fl gr kr pl pr sh sk sl sn st th tr qu x y ph wh sc sp".split()
)
VOWELS = "a e i o u ai ea ee oo ou y a e i o".split()
CODAS = [
    "",
    "",
    "",
    "n",
    "r",
    "l",
    "s",
    "t",
    "m",
    "nd",
    "ck",
    "x",
    "th",
    "rn",
    "p",
    "g",
    "ng",
    "st",
    "nt",
    "d",
    "b",
    "ll",
    "ph",
]


def is_held_out(word: str) -> bool:
    """Tells whether a word belongs to the evaluation. Ignores case, so that "Oslo" and "oslo" are on the same side."""
    lowercase = word.lower()
    return crc32(lowercase.encode()) % 8 == 0 and lowercase not in ALWAYS_TRAINED


class WordSampler:
    """Seeded source of words from one side of the train/evaluation split.

    `strange`: most nouns are made up. `sharing`: any word may be a verb or a parameter, and in most dialogues all tools
    share a few of them, so that neither distinguishes one tool from another. `crowded`: most dialogues have many tools.
    """

    def __init__(
        self,
        seed: int | str,
        evaluation: bool = False,
        strange: bool = False,
        sharing: bool = False,
        crowded: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.evaluation = evaluation
        self.strange, self.crowded = strange, crowded
        self.verbs, self.params = VERBS, PARAMS
        if sharing:
            use_few = self.flip_coin(0.6)
            self.verbs = self._draw_replacements(VERBS, 3 if use_few else 24)
            self.params = self._draw_replacements(PARAMS, 5 if use_few else 24)

    def _draw_replacements(self, usual: list[str], count: int) -> list[str]:
        """Draws `count` words to replace a usual list: some of its words, more from outside it."""
        replacements: list[str] = []
        while len(replacements) < count:
            word = self.made_up() if self.flip_coin(0.2) else self.pick_word(usual if self.flip_coin(0.3) else COMMON)
            if len(word) > 2 and word not in RUNNERS:
                replacements.append(word)
        return replacements

    def _is_allowed(self, word: str) -> bool:
        return is_held_out(word) == self.evaluation

    def pick_word(self, words: list[str]) -> str:
        """Draws a word of the list that is on this sampler's side; a made-up one if 64 draws find none."""
        for _ in range(64):
            if self._is_allowed(word := self.random.choice(words)):
                return word
        return self.made_up()

    def made_up(self, syllables: int = 0) -> str:
        """Returns a pronounceable word without meaning."""
        choose = self.random.choice
        while True:
            count = syllables or self.random.choice((1, 2, 2, 2, 3))
            word = "".join(choose(ONSETS) + choose(VOWELS) + choose(CODAS) for _ in range(count))
            if len(word) > 2 and self._is_allowed(word):
                return word

    def random_characters(self, low: int = 3, high: int = 9) -> str:
        """Returns random characters, which train the model to copy exactly words that it cannot know."""
        letters = string.ascii_letters
        alphabet = self.random.choice((string.ascii_lowercase, letters, letters + string.digits))
        while True:
            word = "".join(self.random.choices(alphabet, k=self.random.randint(low, high)))
            if self._is_allowed(word):
                return word

    def make_number(self, digits: int = 0) -> str:
        """Returns a number in decimal digits, a time or a decimal fraction. Both sides use the same numbers."""
        if not digits and self.flip_coin(0.15):
            return f"{self.random.randrange(24):02d}:{self.random.randrange(60):02d}"
        if not digits and self.flip_coin(0.1):
            return f"{self.random.randrange(100)}.{self.random.randrange(1000)}"
        return str(self.random.randrange(10 ** (digits or self.random.randint(1, 5))))

    def flip_coin(self, chance: float) -> bool:
        """Returns True with the given probability."""
        return self.random.random() < chance

    def splice_words(self) -> str:
        """Joins the beginning of one word to the end of another, which gives letter sequences that no language has."""
        first, second = self.random.choice(COMMON), self.random.choice(NOUNS)
        word: str = first[: self.random.randint(1, len(first))] + second[self.random.randrange(len(second)) :]
        return word if self._is_allowed(word) else self.made_up()

    def pick_noun(self) -> str:
        """Draws a noun for a tool or a question to be about."""
        if self.strange and self.flip_coin(0.6):
            return self.splice_words() if self.flip_coin(0.5) else self.made_up()
        if self.flip_coin(0.3):
            return self.made_up()
        return self.pick_word(COMMON if self.flip_coin(0.25) else NOUNS)

    def any_word(self) -> str:
        """Draws a word for a phrase."""
        draw = self.random.random()
        if draw < 0.06 and not self.evaluation:
            return self.random.choice(FIXED_WORDS)
        if draw < 0.38:
            return self.pick_word(COMMON)
        if draw < 0.45:
            return self.splice_words()
        if draw < 0.55:
            return self.pick_word(NOUNS)
        return self.made_up() if draw < 0.8 else self.random_characters()

    def pick_name(self) -> str:
        """Draws the name of a person or place."""
        return self.pick_word(NAMES) if self.flip_coin(0.5) else self.made_up().capitalize()
