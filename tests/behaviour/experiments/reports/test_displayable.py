"""Text of unknown origin."""

import sys
import unicodedata

import pytest

from probattn.experiments.displayable import displayable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("naïve ± 1 µm, 中文, ελληνικά", "naïve ± 1 µm, 中文, ελληνικά"),
        ("a\u00a0b\u3000c", "a\u00a0b\u3000c"),
        ("👩\u200d🔬 می\u200cخواهم", "👩\u200d🔬 می\u200cخواهم"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x00\x01\x07\b\t\n\r\x7f\x85\x9b", r"\x00\x01\x07\x08\t\n\r\x7f\x85\x9b"),
        ("\u202edcba\u202c \u2066x\u2069 \u200e\u200f", r"\u202edcba\u202c \u2066x\u2069 \u200e\u200f"),
        ("\u2028\u2029\ufeff\u00ad", r"\u2028\u2029\ufeff\xad"),
        ("\udcff\ud800", r"\udcff\ud800"),
        ("\ufffe\uffff\U0010ffff", r"\ufffe\uffff\U0010ffff"),
        ("back\\slash", "back\\slash"),
    ],
)
def test_what_is_no_visible_character_is_shown_as_an_escape(text, shown):
    assert displayable(text) == shown
    assert displayable(shown) == shown


def test_no_character_at_all_controls_a_terminal_or_breaks_xml():
    """XML 1.0 allows no control characters but tab and line breaks, no surrogates, neither U+FFFE nor U+FFFF."""
    shown = displayable("".join(map(chr, range(sys.maxunicode + 1))))
    assert {unicodedata.category(character) for character in shown}.isdisjoint({"Cc", "Cs", "Cn", "Co", "Zl", "Zp"})
    assert {unicodedata.bidirectional(character) for character in shown}.isdisjoint(
        {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    )
    assert {character for character in shown if unicodedata.category(character) == "Cf"} == {"\u200c", "\u200d"}
