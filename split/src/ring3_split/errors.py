"""What goes wrong in a way that the user can mend."""


class Refusal(Exception):  # noqa: N818 - it is an answer, and is shown as one
    """A request that cannot be met.

    The text says what is wrong and what to do next, in one line.
    """
