"""Tokenizer of words, and of the characters that spell them, on Hugging Face `tokenizers`."""

import importlib
import json
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
# Regular expression of a word, with the apostrophes and hyphens inside it, or of another mark.
_TOKEN = r"[\p{L}\p{N}]+(?:['-][\p{L}\p{N}]+)*|[^\p{L}\p{N}\s\x1c-\x1f]"


@dataclass(frozen=True, eq=False)
class WordTokenizer:
    """Vocabulary of the words and characters of training texts, by falling frequency; ties
    alphabetically.

    A token is a word of letters and digits, with the apostrophes and hyphens inside it (``don't``,
    ``well-known``), or a single other mark; every text that is not all white space has one. A word
    that the vocabulary lacks, such as one of a script without spaces, may be its letters, each a
    token. Words are compared in lower case, with straight apostrophes. Their spelling is that of
    the text: a mark for its begin, its characters, and a mark for its end, in the first
    ``spelling`` places, so that a truncated word has no end. Each letter has that of its word.

    Attributes:
        pipeline: Hugging Face tokenizer of the words: normalisation, splitting, ids and truncation.
            Id 0 is padding, id 1 an unknown word, or unknown letters in a row.
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
        letters: bool = False,
    ) -> Self:
        """Build the vocabulary from the words and characters of training texts, after truncation.

        Args:
            texts: the training part only; their order does not matter.
            max_length: maximal number of tokens of a text; longer texts are truncated.
            min_count: rarer words and characters are unknown. Values from 2 on leave unknown ones
                in the training texts, so that their embedding is trained.
            max_words: maximal number of words; the most frequent ones are kept.
            spelling: see the class; 0, or at least 3 for both marks and a character.
            letters: read other words by their letters. Those of the training texts' other words are
                known, since their embeddings are trained.
        """
        written, words = _count(well_formed(texts), max_length)
        characters = _letters(written, size=max(0, spelling - 1))
        vocabulary = _ranked(words, min_count)[:max_words]
        others = set("".join(words.keys() - set(vocabulary))) if letters else set()
        frequent = _ranked(_letters(words), min_count)
        pipeline = _pipeline(vocabulary, [letter for letter in frequent if letter in others])
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
        rows = []
        for token, word in zip(encoding.ids, encoding.word_ids, strict=True):
            start, end = encoding.word_to_chars(word)
            rows.append([token, *self._spell(text[start:end])])
        return torch.tensor(rows)

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


def _letters(words: Mapping[str, int], size: int | None = None) -> Counter[str]:
    """Return how often the letters of words occur, of the first ``size`` of each word."""
    counts = Counter[str]()
    for word, count in words.items():
        for letter in word[:size]:
            counts[letter] += count
    return counts


def _pipeline(vocabulary: Sequence[str] = (), letters: Sequence[str] = ()) -> Any:
    """Return a Hugging Face tokenizer; a character becomes one character, so that positions are
    those of the text.

    Args:
        vocabulary: words.
        letters: those of other words, which may be words, too; without any, other words are
            unknown.
    """
    library = _tokenizers()
    ids = _ids([*vocabulary, *letters])
    model = library.models.WordLevel(ids, unk_token=UNKNOWN)
    if letters:
        # Without merges of letters, a word is in the vocabulary, or becomes its letters.
        options = {"unk_token": UNKNOWN, "fuse_unk": True, "ignore_merges": True}
        model = library.models.BPE(ids, [], **options)
    pipeline = library.Tokenizer(model)
    replaced = [
        library.normalizers.Replace(*pair) for pair in (("’", "'"), ("İ", "i"))
    ]  # lower "İ" has two characters
    pipeline.normalizer = library.normalizers.Sequence([*replaced, library.normalizers.Lowercase()])
    pattern = library.Regex(_TOKEN)
    pipeline.pre_tokenizer = library.pre_tokenizers.Split(pattern, behavior="removed", invert=True)
    return pipeline


def _count(texts: Iterable[str], max_length: int) -> tuple[Counter[str], Counter[str]]:
    """Return how often words occur in truncated texts: as they are written, and normalised."""
    pipeline = _pipeline()
    normalise = pipeline.normalizer.normalize_str
    written = Counter[str]()
    for text in texts:
        pieces = pipeline.pre_tokenizer.pre_tokenize_str(normalise(text))[:max_length]
        written.update(text[start:end] for _, (start, end) in pieces)
    words = Counter[str]()
    for word, count in written.items():
        words[normalise(word)] += count
    return written, words


def _ids(words: Sequence[str]) -> dict[str, int]:
    different = dict.fromkeys((PADDING, UNKNOWN, *words))
    return {word: index for index, word in enumerate(different)}


def _ranked(counts: Counter[str], min_count: int) -> list[str]:
    frequent = [key for key in counts if counts[key] >= min_count]
    return sorted(frequent, key=lambda key: (-counts[key], key))
