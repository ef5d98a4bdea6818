"""Words, and the characters that spell them, as numbers."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from probattn.inference.io.atomic_write import atomic_write

FORMAT = "probattn-tokenizer-1"
BEGIN, END = "<w>", "</w>"
"""The marks of a word's begin and end among its characters; longer than one, so that no character equals them."""

_TOKEN = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*|[^\w\s]|_")
_UNKNOWN, _SPECIAL = 1, 2


@dataclass(frozen=True)
class Tokenizer:
    """The words and characters of training texts, by rank of frequency; ties alphabetically.

    A token is a word of letters and digits, with the apostrophes and hyphens inside it (``don't``, ``well-known``), or
    a single other mark; every text that is not all white space has one. Words are compared in lower case, with straight
    apostrophes. Their spelling is that of the text: a mark for its begin, its characters, and a mark for its end, as
    far as ``spelling`` reaches, so that a word cut short has no end.

    Attributes:
        words: entry i is id i + 2; id 0 is padding, id 1 an unknown word.
        characters: the same for characters, the two marks first; ``()`` without spelling.
        max_length: tokens kept of a text, the first ones.
        spelling: characters kept of a word, with its marks (K); 0: none.

    Raises:
        ValueError: ``max_length`` below 1; ``spelling`` other than 0 and less than 3, for both marks and a character;
            words or characters that are not different strings; or characters that do not go with ``spelling``.
    """

    words: tuple[str, ...]
    characters: tuple[str, ...]
    max_length: int
    spelling: int

    def __post_init__(self) -> None:
        _check_lengths(self.max_length, self.spelling)
        for name, entries in (("words", self.words), ("characters", self.characters)):
            if not all(isinstance(entry, str) and entry for entry in entries) or len(set(entries)) < len(entries):
                raise ValueError(f"{name} must be different strings, none of them empty")
        if self.characters[:2] != ((BEGIN, END) if self.spelling else ()):
            raise ValueError(f"characters must begin with {BEGIN} and {END} if there is spelling, else be none")

    @classmethod
    def fit(
        cls,
        texts: Iterable[str],
        *,
        max_length: int,
        min_count: int = 2,
        max_words: int | None = None,
        spelling: int = 0,
    ) -> Self:
        """Count the words and characters that :meth:`encode` would keep of the training texts.

        Args:
            texts: the training part only; their order does not matter.
            max_length: see above.
            min_count: rarer words and characters are unknown ones. From 2 on there are unknown ones in training, so
                that their embedding is trained.
            max_words: keep at most this many words, the most frequent ones.
            spelling: see above.

        Raises:
            ValueError: ``min_count`` below 1, ``max_words`` below 0, or no word in all the texts.
        """
        _check_lengths(max_length, spelling)
        if min_count < 1:
            raise ValueError(f"min_count must be at least 1, got {min_count}")
        if max_words is not None and max_words < 0:
            raise ValueError(f"max_words must not be negative, got {max_words}")
        written = Counter(chain.from_iterable(_tokens(text)[:max_length] for text in texts))
        if not written:
            raise ValueError("there is no word in the texts; give the training part")
        words, characters = Counter(), Counter()
        for token, count in written.items():
            words[_word(token)] += count
            for character in token[: max(0, spelling - 1)]:
                characters[character] += count
        marks = (BEGIN, END) if spelling else ()
        return cls(_ranked(words, min_count)[:max_words], marks + _ranked(characters, min_count), max_length, spelling)

    @property
    def num_words(self) -> int:
        """Ids of words, with padding and the unknown word: the size of an embedding table."""
        return len(self.words) + _SPECIAL

    @property
    def num_characters(self) -> int:
        """Ids of characters, with padding and the unknown character: the size of an embedding table."""
        return len(self.characters) + _SPECIAL

    def encode(self, text: str) -> Tensor:
        """The ids of a text's words, int64 (n,); with spelling (n, 1 + K), the word's id before its characters'.

        Raises:
            ValueError: there is nothing but white space.
        """
        tokens = _tokens(text)[: self.max_length]
        if not tokens:
            raise ValueError(f"the text is empty: {text!r}; remove it with its label")
        words = [self._word_ids.get(_word(token), _UNKNOWN) for token in tokens]
        if not self.spelling:
            return torch.tensor(words)
        return torch.tensor([[word, *self._spell(token)] for word, token in zip(words, tokens, strict=True)])

    def _spell(self, token: str) -> list[int]:
        ids = [self._character_ids.get(part, _UNKNOWN) for part in (BEGIN, *token[: self.spelling - 1], END)]
        return (ids + [0] * self.spelling)[: self.spelling]

    @cached_property
    def _word_ids(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self.words, start=_SPECIAL)}

    @cached_property
    def _character_ids(self) -> dict[str, int]:
        return {character: index for index, character in enumerate(self.characters, start=_SPECIAL)}

    def save(self, path: Path) -> None:
        """Write it as JSON, in one step."""
        with atomic_write(path) as unfinished:
            unfinished.write_text(json.dumps({"format": FORMAT} | asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what :meth:`save` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is damaged, or something else.
        """
        content = path.read_bytes()
        try:
            saved = json.loads(content)
            if saved.pop("format") != FORMAT:
                raise ValueError(f"it is not of format {FORMAT}")
            lists = {name: saved.pop(name) for name in ("words", "characters")}
            if not all(isinstance(entries, list) for entries in lists.values()):
                raise ValueError("words and characters must be lists")
            return cls(**{name: tuple(entries) for name, entries in lists.items()}, **saved)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is no sound tokenizer ({error}); take that of the run, or fit anew") from error


def _check_lengths(max_length: int, spelling: int) -> None:
    if not isinstance(max_length, int) or max_length < 1:
        raise ValueError(f"max_length must be an integer of at least 1, got {max_length!r}")
    if not isinstance(spelling, int) or (spelling != 0 and spelling < 3):
        raise ValueError(f"spelling must be 0, or at least 3 for both marks and a character, got {spelling!r}")


def _tokens(text: str) -> list[str]:
    """As written."""
    return _TOKEN.findall(text)


def _word(token: str) -> str:
    return token.lower().replace("’", "'")


def _ranked(counts: Counter[str], min_count: int) -> tuple[str, ...]:
    kept = (entry for entry in counts.items() if entry[1] >= min_count)
    return tuple(key for key, _ in sorted(kept, key=lambda entry: (-entry[1], entry[0])))
