"""The one exception for input that the user can mend."""


class InputError(Exception):
    """Bad input: the message is one line that says what was expected, what came, what to do.

    Command-line programs print it as ``error: <message>`` and exit with code 2. Line ends in the
    message, as a path or a tensor's name may hold, become spaces.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))
