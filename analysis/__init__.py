"""What a model turned out to be: the decompositions and the verdicts on the theory's predictions."""
