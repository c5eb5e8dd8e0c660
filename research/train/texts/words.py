"""Words that values are made of."""


WORDS = """
amber anchor apple atlas autumn basil beacon birch bloom blue breeze brick bridge candle canyon
castle cedar chalk cherry cinder cloud clover cobalt comet copper coral cotton crane crystal
daisy dawn delta desert dragon eagle echo ember falcon fern field flame flint forest fox frost
garden gecko glacier gold granite grape harbor hazel heron honey island ivory jade jasper kettle
kite lagoon lantern lemon lilac linen lotus lunar maple marble meadow mesa mint mirror mosaic
moss nectar nimbus north oak ocean olive onyx orbit orchid otter panda paper pebble pepper pine
pixel planet plaza polar prairie prism quartz rabbit raven reef river robin rocket ruby saffron
sage salmon sand shadow silver sky snow solar spark spruce star stone storm summit sun swan
thistle thunder tiger topaz torch tulip valley velvet violet walnut water wave willow winter
wolf zebra data project report backup media static public photos travel kitchen music sport
library school market studio energy health finance cargo logistics press research
""".split()  # noqa: SIM905
COMPANY_ENDS = """
GmbH AG Ltd Inc LLC BV S.A. SpA Lda Group Bank Energy Logistics Software Labs Systems Books
Motors Foods Airlines Partners Foundation University Hospital Press Media Records Pharma
Consulting
""".split()  # noqa: SIM905
PRODUCTS = """
Galaxy Pixel ThinkPad Kindle Corolla Golf Laserjet Roomba Model Switch Surface Polo Vitra Nova
Titan
""".split()  # noqa: SIM905
COUNTRIES = """
Germany France Spain Italy Portugal Netherlands Sweden Poland USA Deutschland España Brasil
Belgique Österreich Schweiz Ireland Canada India
""".split()  # noqa: SIM905
CODES = """
1 7 20 27 30 31 32 33 34 36 39 40 41 43 44 45 46 47 48 49 51 52 54 55 61 62 81 90 91 234 351 353
354 358 372 385 420
""".split()  # noqa: SIM905
TLDS = """
com org net de fr es it nl pt eu io dev info co.uk com.br se pl ch at be example shop app
""".split()  # noqa: SIM905
#: Parts of the address of a page: before somebody's name, before a key, and what asks for one.
PROFILES = ["u", "user", "users", "in", "people", "members", "profile", "p", "author"]
SHARES = ["s", "share", "d", "file", "invite", "join", "album", "doc", "meet"]
ACTIONS = ["reset", "login", "cal", "view", "confirm"]
ASKED = ["token", "key", "id", "user", "auth"]
