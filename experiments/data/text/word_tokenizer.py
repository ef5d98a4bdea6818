"""Tokenizer of words, and of the characters that spell them, on Hugging Face `tokenizers`."""

import importlib
import json
import logging
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from probattn.experiments.data.text.labelled_texts import well_formed
from probattn.inference.imports import extra
from probattn.models.embeddings import SpelledEmbedding, WordEmbedding

# The words of ids 0 and 1, which no token of a text equals, since brackets are tokens of their own;
# and the marks of a word's begin and end among its characters, longer than one, so that no
# character equals them.
PADDING = "[PAD]"
UNKNOWN = "[UNK]"
BEGIN = "<w>"
END = "</w>"
# Regular expressions of a letter or digit, and of a mark.
_LETTER = r"[\p{L}\p{N}]"
_MARK = r"[^\p{L}\p{N}\s\x1c-\x1f]"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class WordTokenizer:
    """Vocabulary of the words and characters of training texts, by falling frequency; ties
    alphabetically.

    A token is a word of letters and digits, with the apostrophes and hyphens inside it (``don't``,
    ``well-known``), or a single other mark; every text that is not all white space has one. In
    scripts most of whose words are rare, such as those without spaces, each letter is a token.
    Words are compared in lower case, with straight apostrophes. Their spelling is that of the text:
    a mark for its begin, its characters, and a mark for its end, in the first ``spelling`` places,
    so that a truncated word has no end.

    Attributes:
        pipeline: Hugging Face tokenizer of the words: normalisation, splitting, ids and truncation.
            Id 0 is padding, id 1 an unknown word.
        characters: ids of the characters and of the two marks, in the same order; ``{}`` without
            spelling.
        spelling: number of characters of a word, with its marks (K); 0: none.
    """

    pipeline: Any
    characters: Mapping[str, int]
    spelling: int

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

        Of a script most of whose words are rare, such as Chinese, or Latin in DNA, each letter is a
        token.

        Args:
            texts: the training part only; their order does not matter.
            max_length: maximal number of tokens of a text; longer texts are truncated.
            min_count: rarer words and characters are unknown. Values from 2 on leave unknown ones
                in the training texts, so that their embedding is trained.
            max_words: maximal number of words; the most frequent ones are kept.
            spelling: see the class; 0, or at least 3 for both marks and a character.
        """
        texts = well_formed(texts)
        size = max(0, spelling - 1)
        words, characters = _count(texts, "", max_length=max_length, size=size)
        letters = _letters_of_rare_words(words, min_count)
        if letters:
            words, characters = _count(texts, letters, max_length=max_length, size=size)
        pipeline = _pipeline(letters, _ranked(words, min_count)[:max_words])
        pipeline.enable_truncation(max_length)
        return cls(
            pipeline,
            _ids([BEGIN, END, *_ranked(characters, min_count)]) if spelling else {},
            spelling,
        )

    def encode(self, text: str) -> Tensor:
        """Return the ids of a text's words, int64 (n,); with spelling (n, 1 + K), word id first,
        then characters."""
        encoding = self.pipeline.encode(text)
        if not self.spelling:
            return torch.tensor(encoding.ids)
        written = (text[start:end] for start, end in encoding.offsets)
        return torch.tensor(
            [[word, *self._spell(token)] for word, token in zip(encoding.ids, written, strict=True)]
        )

    def encode_batch(self, texts: Sequence[str]) -> list[Tensor]:
        """Return the ids of each text."""
        return list(map(self.encode, texts))

    def embedding(self, dim: int) -> nn.Module:
        """Return the embedding of words, and of their spelling if the tokenizer has it."""
        words = self.pipeline.get_vocab_size()
        if self.spelling:
            return SpelledEmbedding(words, len(self.characters), dim)
        return WordEmbedding(words, dim)

    def to_json(self) -> dict[str, Any]:
        """Return the tokenizer as ``preprocessing.json`` holds it.

        ``words`` are the JSON of :attr:`pipeline`, which ``tokenizers.Tokenizer.from_str`` reads.
        """
        words = json.loads(self.pipeline.to_str())
        return {"words": words, "characters": self.characters, "spelling": self.spelling}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Self:
        """Read a tokenizer back that :meth:`to_json` returned."""
        return cls(
            _tokenizers().Tokenizer.from_str(json.dumps(saved["words"])),
            saved["characters"],
            saved["spelling"],
        )

    def _spell(self, token: str) -> list[int]:
        marked = (BEGIN, *token[: self.spelling - 1], END, *[PADDING] * self.spelling)[
            : self.spelling
        ]
        return [self.characters.get(character, self.characters[UNKNOWN]) for character in marked]


def _tokenizers() -> Any:
    with extra("text", needed_by="the tokenizer of words"):
        return importlib.import_module("tokenizers")


def _letters_of_rare_words(words: Mapping[str, int], min_count: int) -> str:
    """Return the letters of the scripts most of whose words occur fewer than ``min_count``
    times."""
    surplus = Counter[str]()  # of rare words over others, by script
    for word, count in words.items():
        if word[0].isalpha():
            surplus[_script(word[0])] += count if count < min_count else -count
    rare = {script for script, count in surplus.items() if count > 0}
    if rare:
        shown = ", ".join(sorted(rare)).lower()
        advice = "each letter is a token (network.min_count=1: each word)"
        _log.warning("most %s words are rare: %s", shown, advice)
    letters = {letter for letter in "".join(words) if letter.isalpha() and _script(letter) in rare}
    return "".join(sorted(letters))


def _script(letter: str) -> str:
    """Return the script of a letter, which is the first word of its name in Unicode."""
    return unicodedata.name(letter, "other").partition(" ")[0]


def _pipeline(letters: str, words: Sequence[str] = ()) -> Any:
    """Return a Hugging Face tokenizer; a character becomes one character, so that positions are
    those of the text.

    Args:
        letters: those that are tokens of their own.
        words: the vocabulary.
    """
    library = _tokenizers()
    pipeline = library.Tokenizer(library.models.WordLevel(_ids(words), unk_token=UNKNOWN))
    replaced = [
        library.normalizers.Replace(*pair) for pair in (("’", "'"), ("İ", "i"))
    ]  # lower "İ" has two characters
    pipeline.normalizer = library.normalizers.Sequence([*replaced, library.normalizers.Lowercase()])
    of_word = f"(?![{letters}]){_LETTER}" if letters else _LETTER
    word = f"(?:{of_word})+(?:['-](?:{of_word})+)*"
    pattern = library.Regex("|".join([*([f"[{letters}]"] if letters else []), word, _MARK]))
    pipeline.pre_tokenizer = library.pre_tokenizers.Split(pattern, behavior="removed", invert=True)
    return pipeline


def _count(
    texts: Iterable[str], letters: str, *, max_length: int, size: int
) -> tuple[Counter[str], Counter[str]]:
    """Return how often words occur in truncated texts, and their first ``size`` characters as they
    are written."""
    pipeline = _pipeline(letters)
    tokens = Counter[tuple[str, str]]()
    words = Counter[str]()
    characters = Counter[str]()
    for text in texts:
        pieces = pipeline.pre_tokenizer.pre_tokenize_str(pipeline.normalizer.normalize_str(text))[
            :max_length
        ]
        tokens.update((word, text[start:end]) for word, (start, end) in pieces)
    for (word, written), count in tokens.items():
        words[word] += count
        for character in written[:size]:
            characters[character] += count
    return words, characters


def _ids(words: Sequence[str]) -> dict[str, int]:
    return {word: index for index, word in enumerate((PADDING, UNKNOWN, *words))}


def _ranked(counts: Counter[str], min_count: int) -> list[str]:
    frequent = [key for key in counts if counts[key] >= min_count]
    return sorted(frequent, key=lambda key: (-counts[key], key))
