"""What a model turned out to be: the decompositions and the verdicts on the theory's predictions."""

import jaxlayers  # noqa: F401  before anything is computed: see jaxlayers.xla
