"""Text of unknown origin."""

import sys
import unicodedata

from probattn.experiments.displayable import displayable


def test_no_character_at_all_controls_a_terminal_or_breaks_xml():
    """XML 1.0 allows no control characters but tab and line breaks, no surrogates, neither U+FFFE nor U+FFFF."""
    shown = displayable("".join(map(chr, [*range(0x20000), *range(0xE0000, 0xE0200), sys.maxunicode])))
    assert {unicodedata.category(character) for character in shown}.isdisjoint({"Cc", "Cs", "Cn", "Co", "Zl", "Zp"})
    assert {unicodedata.bidirectional(character) for character in shown}.isdisjoint(
        {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    )
    assert {character for character in shown if unicodedata.category(character) == "Cf"} == {"\u200c", "\u200d"}


def test_text_of_any_language_stays_and_the_rest_becomes_escapes():
    assert displayable("naïve ± 1 µm, 中文, ελληνικά, 👩\u200d🔬") == "naïve ± 1 µm, 中文, ελληνικά, 👩\u200d🔬"
    assert displayable("\x1b[31m\t\u202e\udcff") == r"\x1b[31m\t\u202e\udcff"
