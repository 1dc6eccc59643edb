"""What is said to a user whose input cannot be used."""


class Refusal(ValueError):
    """One sentence that names what to change. The commands print it, without a traceback, and exit 2."""
