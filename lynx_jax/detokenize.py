"""Text that grows token by token: whole characters only, cut before stop strings."""

from collections.abc import Sequence

from lynx_jax.errors import InputError
from lynx_jax.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
# A character takes at most four bytes, so at most three of them can stand unfinished at the end.
_LONGEST_UNFINISHED = 3
# A run of tokens without one whole character at its end is shown as it is from here on, so that a
# stream of invalid bytes costs linear time too.
_LONGEST_RUN = 32
_CONTEXT_SIZES = (8, 32, 128)


class TextStream:
    """Turns the token ids of one generation into text as they come.

    The pieces that ``push`` and ``finish`` return join to ``tokenizer.decode`` of all ids, cut
    before the stop string that is completed first. Two things differ: text follows on from
    ``context``, so a leading space that decoding from the start would drop is kept; and bytes that
    are no valid UTF-8 do not change text that was returned before them.

    Args:
      tokenizer: gives the text of ids.
      stops: strings that end the text. They are found across token borders, and a special token
        whose text is a stop string ends the text too.
      context: ids before the first one, usually the prompt's; empty where the text stands alone.

    Attributes:
      stopped: a stop string was completed; further ids are ignored.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, stops: Sequence[str] = (), context: Sequence[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._stops = _StopStrings(stops)
        self._before = self._tail(context)  # ids that are shown, and fix how the next ones read
        self._before_text = tokenizer.decode(self._before)
        self._new: list[int] = []  # ids since then
        self._shown = 0  # characters of their text that are returned
        self.stopped = False

    def push(self, token_id: int) -> str:
        """Text that this id completes; may be empty, and may hold text of earlier ids."""
        if self.stopped:
            return ""
        special = self._tokenizer.special_tokens.get(token_id)
        if special is None:
            self._new.append(token_id)
            return self._through_stops(self._take_whole())
        if special not in self._stops:
            return ""
        text = self.finish()
        self.stopped = True
        return text

    def finish(self) -> str:
        """Text that was held back; call once, after the last id."""
        if self.stopped:
            return ""
        text = self._through_stops(self._new_text()[self._shown :])
        self._new, self._shown = [], 0
        return text if self.stopped else text + self._stops.rest()

    def _through_stops(self, piece: str) -> str:
        text, self.stopped = self._stops.push(piece)
        return text

    def _take_whole(self) -> str:
        """Text of the new ids that is not returned yet, up to what a later id may change."""
        text = self._new_text()
        full = len(self._new) >= _LONGEST_RUN
        whole = max(len(text.rstrip(_REPLACEMENT)), len(text) - _LONGEST_UNFINISHED)
        end = len(text) if full else whole
        piece, self._shown = text[self._shown : end], max(end, self._shown)
        settled = bool(text) and end == len(text)
        if settled:
            self._before, self._before_text = self._new, self._tokenizer.decode(self._new)
        if settled or full:
            self._new, self._shown = [], 0
        return piece

    def _new_text(self) -> str:
        """Text of the new ids as it reads after the ids before them."""
        joint = self._tokenizer.decode(self._before + self._new)
        if joint.startswith(self._before_text):
            return joint[len(self._before_text) :]
        # New bytes can make a run of byte tokens invalid, or not valid yet, as a whole.
        return self._tokenizer.decode(self._new)

    def _tail(self, context: Sequence[int]) -> list[int]:
        """The shortest end of the context that does not begin inside a character."""
        ids = [id_ for id_ in context if id_ not in self._tokenizer.special_tokens]
        for size in _CONTEXT_SIZES:
            if _REPLACEMENT not in self._tokenizer.decode(ids[-size:]):
                return ids[-size:]
        return []


class _StopStrings:
    """Cuts a stream before the first completed stop string; holds back what may begin one."""

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise InputError("expected stop strings of at least one character, got an empty one")
        self._stops = tuple(stops)
        self._held = ""

    def __contains__(self, text: str) -> bool:
        return text in self._stops

    def push(self, piece: str) -> tuple[str, bool]:
        """Text that is safe to show, and whether a stop string was completed."""
        text = self._held + piece
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            return text[: min(found)[1]], True
        safe = len(text) - self._open(text)
        self._held = text[safe:]
        return text[:safe], False

    def rest(self) -> str:
        """Text held back that turned out not to begin a stop string."""
        return self._held

    def _open(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
