import json
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probattn.experiments.data.text.word_tokenizer import BEGIN, END, WordTokenizer

TEXTS = ("The cat sat.", "the dog sat, the cat ran!", "A well-known dog isn't The cat.")
texts = st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=8)


def vocabulary(tokenizer):
    """The words in the order of their ids, after padding and the unknown word."""
    ids = tokenizer.pipeline.get_vocab()
    assert sorted(ids.values()) == list(range(len(ids)))
    return sorted(ids, key=ids.get)[2:]


def words_of(tokenizer, text):
    """The words of a text, from ids back to words."""
    ids = tokenizer.encode(text)
    ids = ids[:, 0] if tokenizer.spelling else ids
    return ["?" if index == 1 else tokenizer.pipeline.id_to_token(index) for index in ids.tolist()]


def written(tokenizer, row):
    """A row of character ids as text: ``^`` begin, ``$`` end, ``?`` unknown, ``_`` padding."""
    shown = ["_", "?", "^", "$", *list(tokenizer.characters)[4:]]
    return "".join(shown[index] for index in row.tolist())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The CAT sat.", ["the", "cat", "sat", "."]),
        (
            "Don't! It’s a well-known dogs' trick",
            ["don't", "!", "it's", "a", "well-known", "dogs", "'", "trick"],
        ),
        ("?", ["?"]),
        ("你好 🙂", ["你好", "🙂"]),
        ("İzmir [PAD] [unk]", ["izmir", "[", "pad", "]", "[", "unk", "]"]),
    ],
)
def test_words_and_marks(text, expected):
    assert words_of(WordTokenizer.fit([text], max_length=99, min_count=1), text) == expected


def test_ids_are_ranks_of_frequency_and_ties_are_alphabetical():
    tokenizer = WordTokenizer.fit(TEXTS, max_length=99)
    assert vocabulary(tokenizer) == ["the", "cat", ".", "dog", "sat"]  # 4, 3, 2, 2, 2
    assert tokenizer.encode("dog THE zebra a").tolist() == [5, 2, 1, 1]


def test_spelling_as_written_with_marks_as_far_as_there_is_room():
    tokenizer = WordTokenizer.fit(
        ["The cat", "the CAt", "then"], max_length=9, min_count=1, spelling=5
    )
    ids = tokenizer.encode("The cat thens q")
    assert ids.shape == (4, 6)
    assert [written(tokenizer, row[1:]) for row in ids] == ["^The$", "^cat$", "^then", "^?$__"]
    assert [tokenizer.pipeline.id_to_token(index) for index in ids[:2, 0].tolist()] == [
        "the",
        "cat",
    ]
    assert ids[2:, 0].tolist() == [1, 1]
    # t 2, h 3, e 3, n 1 (the fifth place), T 1, c 1, a 1, C 1, A 1, t of cat 1; the last t of "CAt"
    # 1
    assert list(tokenizer.characters)[2:] == [
        BEGIN,
        END,
        "t",
        "e",
        "h",
        "A",
        "C",
        "T",
        "a",
        "c",
        "n",
    ]


@settings(deadline=None)
@given(
    texts,
    st.text(min_size=1).filter(str.strip),
    st.integers(1, 5),
    st.sampled_from([0, 3, 6]),
    st.booleans(),
)
def test_every_text_has_a_token_and_ids_fit_the_tables_and_a_saved_one_gives_the_same(
    data, unseen, max_length, spelling, letters
):
    options = {"max_length": max_length, "spelling": spelling, "letters": letters}
    tokenizer = WordTokenizer.fit(data, min_count=1, **options)
    loaded = WordTokenizer.from_json(json.loads(json.dumps(tokenizer.to_json())))
    for text in (*data, unseen):
        ids = tokenizer.encode(text).view(-1, 1 + spelling)
        assert torch.equal(loaded.encode(text).view_as(ids), ids)
        assert 1 <= len(ids) <= max_length
        assert ids[:, 0].min() >= 1
        assert ids[:, 0].max() < tokenizer.pipeline.get_vocab_size()
        assert not spelling or (
            (ids[:, 1] == 2).all() and ids[:, 1:].max() < len(tokenizer.characters)
        )
    assert all((tokenizer.encode(text) != 1).all() for text in data)


words = st.lists(st.text("abcé不错が한жλب", min_size=1, max_size=5), min_size=1, max_size=6)


@settings(deadline=None)
@given(st.lists(words, min_size=1, max_size=8), words, st.integers(1, 3), st.sampled_from([0, 6]))
def test_a_word_that_the_vocabulary_lacks_is_its_letters_and_every_token_is_trained(
    data, unseen, min_count, spelling
):
    data = list(map(" ".join, data))
    options = {"max_length": 999, "min_count": min_count, "spelling": spelling}
    plain = WordTokenizer.fit(data, **options)
    tokenizer = WordTokenizer.fit(data, letters=True, **options)
    whole = vocabulary(plain)
    known = vocabulary(tokenizer)
    assert known[: len(whole)] == whole
    every = " ".join(data)
    for letter in known[len(whole) :]:
        assert len(letter) == 1
        assert every.count(letter) >= min_count
    letters = set("".join(set(every.split()) - set(whole)))
    frequent = {letter for letter in letters if every.count(letter) >= min_count}
    assert frequent <= set(known)
    if not frequent:
        assert known == whole
        assert tokenizer.pipeline.to_str() == plain.pipeline.to_str()
        return
    for word in unseen:
        spelled = "".join(letter if letter in known else "?" for letter in word)
        while "??" in spelled:  # unknown letters in a row
            spelled = spelled.replace("??", "?")
        assert words_of(tokenizer, word) == ([word] if word in known else list(spelled))
    one_by_one = [token for word in unseen for token in words_of(tokenizer, word)]
    assert words_of(tokenizer, " ".join(unseen)) == one_by_one
    assert set(known) <= {token for text in data for token in words_of(tokenizer, text)}


def test_letters_of_a_word_have_the_spelling_of_the_word():
    data = ["the cat", "the cat", "Acht", "aache"]
    tokenizer = WordTokenizer.fit(data, max_length=9, letters=True, spelling=7)
    ids = tokenizer.encode("the Cathe")
    assert words_of(tokenizer, "the Cathe") == ["the", *"cathe"]
    assert [written(tokenizer, row[1:]) for row in ids[1:]] == ["^?athe$"] * 5


def test_known_words_stay_words_beside_rare_ones_of_any_script():
    common = ["the cat sat on the mat", "иван ел суп", "这 部 电影 很 好"] * 20
    rare = ["zyzzyva the cat", "щука ел", "电影很好看不好看"]  # each once
    tokenizer = WordTokenizer.fit([*common, *rare], max_length=99, letters=True)
    spelled = {
        "zyzzyva": list("zyzzy?a"),
        "щука": list("?у?а"),
        "电影很好看不好看": list("电影很好看?好看"),
        "the": ["the"],
        "电影": ["电影"],
        "иван": ["иван"],
        "theиван": ["?", "а", "?"],
    }
    for word, tokens in spelled.items():
        assert words_of(tokenizer, word) == tokens
        assert words_of(tokenizer, f"Cat {word}, sat") == ["cat", *tokens, "?", "sat"]


def test_where_most_words_are_rare_each_letter_is_a_token():
    generator = random.Random(0)
    texts = ["".join(generator.choices("ACGT", k=40)) for _ in range(60)]
    tokenizer = WordTokenizer.fit(texts, max_length=99, letters=True)
    assert words_of(tokenizer, texts[0]) == list(texts[0].lower())
    each_word = WordTokenizer.fit(texts, max_length=99, min_count=1, letters=True)
    assert words_of(each_word, texts[0]) == [texts[0].lower()]
