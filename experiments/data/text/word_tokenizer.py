"""Tokenizer of words, and of the characters that spell them, on Hugging Face `tokenizers`."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from probattn.experiments.data.sealed_files import read_json, write_json
from probattn.inference.imports import extra

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

FORMAT = "probattn-tokenizer-2"
PADDING, UNKNOWN = "[PAD]", "[UNK]"
"""The words of ids 0 and 1; no token of a text equals them, since brackets are tokens of their own."""
BEGIN, END = "<w>", "</w>"
"""The marks of a word's begin and end among its characters; longer than one, so that no character equals them."""

_PATTERN = r"[\p{L}\p{N}]+(?:['-][\p{L}\p{N}]+)*|[^\p{L}\p{N}\s\x1c-\x1f]"
_UNKNOWN_ID, _NUM_SPECIAL = 1, 2


@dataclass(frozen=True)
class WordTokenizer:
    """Vocabulary of the words and characters of training texts, by falling frequency; ties alphabetically.

    A token is a word of letters and digits, with the apostrophes and hyphens inside it (``don't``, ``well-known``), or
    a single other mark; every text that is not all white space has one. Words are compared in lower case, with straight
    apostrophes. Their spelling is that of the text: a mark for its begin, its characters, and a mark for its end, in
    the first ``spelling`` places, so that a truncated word has no end.

    Attributes:
        words: entry i has id i + 2; id 0 is padding, id 1 an unknown word.
        characters: the same for characters, the two marks first; ``()`` without spelling.
        max_length: maximal number of tokens of a text; longer texts are truncated.
        spelling: number of characters of a word, with its marks (K); 0: none.

    Raises:
        ValueError: ``max_length`` below 1; ``spelling`` other than 0 and less than 3, for both marks and a character;
            words or characters that are not distinct strings; or characters that contradict ``spelling``.
    """

    words: tuple[str, ...]
    characters: tuple[str, ...]
    max_length: int
    spelling: int

    def __post_init__(self) -> None:
        if not isinstance(self.max_length, int) or self.max_length < 1:
            raise ValueError(f"max_length must be an integer of at least 1, got {self.max_length!r}")
        if not isinstance(self.spelling, int) or (self.spelling != 0 and self.spelling < 3):
            raise ValueError(f"spelling must be 0, or at least 3 for both marks and a character, got {self.spelling!r}")
        for name, entries in (("words", self.words), ("characters", self.characters)):
            if not all(isinstance(entry, str) and entry for entry in entries) or len(set(entries)) < len(entries):
                raise ValueError(f"{name} must be distinct strings, none of them empty")
        if self.characters[:2] != ((BEGIN, END) if self.spelling else ()):
            raise ValueError(f"characters must begin with {BEGIN} and {END} with spelling, and be empty without")

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
        """Build the vocabulary from the words and characters of training texts, after truncation.

        Args:
            texts: the training part only; their order does not matter.
            max_length: see the class.
            min_count: rarer words and characters are unknown. Values from 2 on leave unknown ones in the training
                texts, so that their embedding is trained.
            max_words: maximal number of words; the most frequent ones are kept.
            spelling: see the class.

        Raises:
            ValueError: ``min_count`` below 1, ``max_words`` below 0, or no word in all the texts.
        """
        marks = (BEGIN, END) if spelling else ()
        cls((), marks, max_length, spelling)  # checks them
        if min_count < 1:
            raise ValueError(f"min_count must be at least 1, got {min_count}")
        if max_words is not None and max_words < 0:
            raise ValueError(f"max_words must not be negative, got {max_words}")
        tokens = Counter(chain.from_iterable(_split(text)[:max_length] for text in texts))
        if not tokens:
            raise ValueError("there is no word in the texts; give the training part")
        words, characters = Counter(), Counter()
        for (word, written), count in tokens.items():
            words[word] += count
            for character in written[: max(0, spelling - 1)]:
                characters[character] += count
        return cls(_ranked(words, min_count)[:max_words], marks + _ranked(characters, min_count), max_length, spelling)

    @property
    def num_words(self) -> int:
        """Number of word ids, with padding and the unknown word: the size of an embedding table."""
        return len(self.words) + _NUM_SPECIAL

    @property
    def num_characters(self) -> int:
        """Number of character ids, with padding and the unknown character: the size of an embedding table."""
        return len(self.characters) + _NUM_SPECIAL

    @cached_property
    def pipeline(self) -> "Tokenizer":
        """Hugging Face tokenizer of the words: normalisation, splitting, ids and truncation."""
        vocabulary = {word: index for index, word in enumerate((PADDING, UNKNOWN, *self.words))}
        library = _tokenizers()
        pipeline = library.Tokenizer(library.models.WordLevel(vocabulary, unk_token=UNKNOWN))
        pipeline.normalizer, pipeline.pre_tokenizer = _normalizer(), _pre_tokenizer()
        pipeline.enable_truncation(self.max_length)
        return pipeline

    def encode(self, text: str) -> Tensor:
        """Return the ids of a text's words, int64 (n,); with spelling (n, 1 + K), word id first, then characters.

        Raises:
            ValueError: there is nothing but white space.
        """
        encoding = self.pipeline.encode(text)
        if not encoding.ids:
            raise ValueError(f"the text is empty: {text!r}; remove it with its label")
        if not self.spelling:
            return torch.tensor(encoding.ids)
        written = (text[start:end] for start, end in encoding.offsets)
        return torch.tensor([[word, *self._spell(token)] for word, token in zip(encoding.ids, written, strict=True)])

    def _spell(self, token: str) -> list[int]:
        ids = [self._character_ids.get(part, _UNKNOWN_ID) for part in (BEGIN, *token[: self.spelling - 1], END)]
        return (ids + [0] * self.spelling)[: self.spelling]

    @cached_property
    def _character_ids(self) -> dict[str, int]:
        return {character: index for index, character in enumerate(self.characters, start=_NUM_SPECIAL)}

    def save(self, path: Path) -> None:
        """Write the tokenizer as JSON, atomically.

        The object has the keys ``digest``, ``format``, ``words`` (the JSON of :attr:`pipeline`, which
        ``tokenizers.Tokenizer.from_str`` reads), ``spelling`` and ``characters``.
        """
        saved = {"format": FORMAT, "words": json.loads(self.pipeline.to_str())}
        saved |= {"spelling": self.spelling, "characters": self.characters}
        write_json(path, saved)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a tokenizer that :meth:`save` wrote.

        Raises:
            FileNotFoundError: the file is missing.
            DamagedFileError: it is damaged.
            ValueError: it is no such tokenizer.
        """
        saved, library = read_json(path), _tokenizers()
        try:
            if saved.pop("format") != FORMAT:
                raise ValueError(f"it is not of format {FORMAT}")
            pipeline = library.Tokenizer.from_str(json.dumps(saved.pop("words")))
            vocabulary = pipeline.get_vocab()
            words = tuple(sorted(vocabulary, key=vocabulary.get)[_NUM_SPECIAL:])
            characters = tuple(saved.pop("characters"))
            loaded = cls(words, characters, pipeline.truncation["max_length"], **saved)
            if loaded.pipeline.to_str() != pipeline.to_str():
                raise ValueError("its words are not those of a WordTokenizer")
        except Exception as error:  # tokenizers raises Exception itself
            raise ValueError(
                f"{path} is no valid tokenizer ({error}); restore that of the run, or fit a new one"
            ) from error
        return loaded


def _tokenizers() -> ModuleType:
    """Import the library `tokenizers`.

    Raises:
        MissingExtraError: it is not installed.
    """
    with extra("text", needed_by="the tokenizer of words"):
        import tokenizers
    return tokenizers


@cache
def _normalizer() -> "Normalizer":
    """Replace character for character, so that positions are those of the text: "İ" alone has two in lower case."""
    parts = _tokenizers().normalizers
    return parts.Sequence([parts.Replace("’", "'"), parts.Replace("İ", "i"), parts.Lowercase()])


@cache
def _pre_tokenizer() -> "PreTokenizer":
    """Remove all but the matches of the pattern."""
    library = _tokenizers()
    return library.pre_tokenizers.Split(library.Regex(_PATTERN), behavior="removed", invert=True)


def _split(text: str) -> list[tuple[str, str]]:
    """Return each token of a text, normalised and as written."""
    pieces = _pre_tokenizer().pre_tokenize_str(_normalizer().normalize_str(text))
    return [(word, text[start:end]) for word, (start, end) in pieces]


def _ranked(counts: Counter[str], min_count: int) -> tuple[str, ...]:
    kept = (entry for entry in counts.items() if entry[1] >= min_count)
    return tuple(key for key, _ in sorted(kept, key=lambda entry: (-entry[1], entry[0])))
