"""`CommandError`: a command cannot do what was asked of it."""


class CommandError(Exception):
    """One sentence: what is wrong, and the way out. The command line shows it without a traceback."""
