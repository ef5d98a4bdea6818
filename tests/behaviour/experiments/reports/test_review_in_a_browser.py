"""The page of `probattn review` in a real browser: what a person sees and does, against numbers
that are computed from the same predictions."""

import csv
import json
import os
import re
import shutil
import time

import numpy as np
import pandas as pd
import pytest
import torch
from evaluated_runs import random_prediction

from probattn.experiments.data.own.rows import read_texts
from probattn.experiments.data.tables.table_dataset import Table
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.evaluation.calibration import Calibration
from probattn.experiments.reporting import review
from probattn.inference import Prediction

CLASSES = ("ham", "spam", "</script><b>other</b>")
HOSTILE = (
    "</script><script>window.broken = 1</script>",
    "<img src=x onerror='window.broken = 1'>",
    "<b>bold</b> & <a href='javascript:window.broken = 1'>link</a>",
    'She said "no", and\nleft; <svg onload=window.broken=1>',
)
NUMBER = 150  # more than the page adds at a time
UNKNOWN = "tokens unknown"
CUT = "tokens cut"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A headless Chromium, driven by Selenium; its downloads go to ``browser.downloads``."""
    selenium = pytest.importorskip("selenium.webdriver", reason="no Selenium to drive a browser")
    from selenium.webdriver.chrome.service import Service

    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    binary = next(filter(None, map(shutil.which, names)), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no Chromium with its chromedriver to open the page in")
    downloads = tmp_path_factory.mktemp("downloads")
    options = selenium.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    running = selenium.Chrome(options=options, service=Service(driver))
    running.downloads = downloads
    yield running
    running.quit()


@pytest.fixture(scope="module")
def prediction():
    """Probabilities with equal confidences among them, and labels that are often not the answer."""
    generator = torch.Generator().manual_seed(int(os.environ.get("PROBATTN_TEST_SEED", "0")))
    probs = (2 * torch.randn(NUMBER, 3, generator=generator)).softmax(-1)
    probs[1::7] = probs[0]
    labels = torch.randint(0, 3, (NUMBER,), generator=generator)
    expected = torch.special.entr(probs).sum(-1) * torch.rand(NUMBER, generator=generator)
    return Prediction(probs=probs, expected_entropy=expected, labels=labels)


@pytest.fixture(scope="module")
def calibration(prediction):
    valid = random_prediction(300, 3, seed=1)
    return Calibration.fit(valid, weights="", num_samples=1, seed=0, max_risk=0.6)


@pytest.fixture(scope="module")
def truth(prediction, calibration):
    """What the page must show of each example, by its number."""
    probs = calibration.apply(prediction).probs.double()
    sets = calibration.sets(probs)
    number = np.arange(NUMBER)
    return pd.DataFrame(
        {
            "confidence": probs.amax(1),
            "entropy": torch.special.entr(probs).sum(-1),
            "mutual_information": prediction.mutual_information,
            "predicted": [CLASSES[place] for place in probs.argmax(1)],
            "true": [CLASSES[place] for place in prediction.labels],
            "size": sets.sum(1),
            "is_inside": sets.gather(1, probs.argmax(1, keepdim=True)).squeeze(1),
            UNKNOWN: np.where(number % 3 == 0, 0.25, 0.0),
            CUT: np.where(number % 10 == 0, 1.0, 0.0),
        }
    )


@pytest.fixture
def show(browser, tmp_path):
    """Function that writes a page and opens it."""

    def open_page(*values, **options):
        path = tmp_path / "review.html"
        page = review.page(*values, name="<i>run</i>", **{"settings": {}} | options)
        path.write_text(page, "utf-8")
        browser.get_log("performance")  # what came before
        browser.get(path.as_uri())
        return browser

    return open_page


@pytest.fixture
def page(show, prediction, calibration, truth):
    """The page of texts, opened."""
    texts = tuple(f"{HOSTILE[place % 4]} {place}" for place in range(NUMBER))
    columns = {"data.text_column": "a, text", "data.label_column": "label"}
    return show(
        prediction,
        Texts(texts, prediction.labels),
        classes=CLASSES,
        calibration=calibration,
        settings=columns,
        unseen=truth[[UNKNOWN, CUT]],
    )


def find(page, selector):
    return page.find_element("css selector", selector)


def find_all(page, selector):
    return page.find_elements("css selector", selector)


def choose(page, name, value):
    """Choose an option of a filter by a click."""
    options = find_all(page, f"select[name={name}] option")
    (option,) = (option for option in options if option.get_property("value") == value)
    option.click()


def press(page, *keys):
    """Press keys, wherever the focus is."""
    from selenium.webdriver import ActionChains

    for key in keys:
        ActionChains(page).send_keys(key).perform()


def shown(page):
    """Return the numbers of all examples that are listed, in their order, after "Show more"."""
    while find(page, "#more").is_displayed():
        find(page, "#more").click()
    script = "return [...document.querySelectorAll('#examples > li')].map(li => li.example.number)"
    return page.execute_script(script)


def focused(page):
    """Return the number of the example that has the focus."""
    script = "const li = document.activeElement.closest('li'); return li && li.example.number"
    return page.execute_script(script)


def numbers(text):
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]


def expected_counts(truth, step):
    """Return the numbers of the sentence on a threshold, by counting."""
    is_answered = truth.confidence >= (step["threshold"] or float("inf"))
    answered = int(is_answered.sum())
    wrong = int((truth.predicted != truth.true)[is_answered].sum())
    counts = [answered, NUMBER, 100 * answered / NUMBER]
    if answered:
        # test_review.py compares these ends with exact ones.
        counts += [wrong, 100 * wrong / answered, 95, 100 * step["low"], 100 * step["high"]]
    return [*counts, NUMBER - answered]


def test_the_slider_changes_the_counts_to_those_of_its_threshold(page, truth):
    from selenium.webdriver import Keys

    steps = json.loads(find(page, "#about").get_attribute("textContent"))["steps"]
    slider = find(page, "#threshold")
    right = round(len(steps) / 3)
    moves = [(), (Keys.HOME,), (Keys.ARROW_RIGHT,) * right, (Keys.END,), (Keys.ARROW_LEFT,)]
    seen = set()
    for keys in moves:
        for key in keys:
            slider.send_keys(key)
        step = steps[int(slider.get_attribute("value"))]
        threshold = step["threshold"] or float("inf")
        text = find(page, "#counts").text
        assert numbers(text) == pytest.approx(expected_counts(truth, step), abs=0.051)
        said = numbers(find(page, "#shown").text)
        expected = [100 * threshold] if np.isfinite(threshold) else []
        assert said == pytest.approx(expected, abs=0.051)
        is_answered = truth.confidence >= threshold
        for card in find_all(page, "#examples > li")[:5]:
            number = numbers(card.find_element("tag name", "h2").text)[0]
            assert ("to a person" in card.text) != is_answered[number]
        seen.add(text)
    assert len(seen) >= 4


def test_filters_list_what_passes_them_the_least_certain_first(page, truth):
    is_wrong = truth.predicted != truth.true
    kinds = [entry.get_property("value") for entry in find_all(page, "select[name=kind] option")]
    assert {UNKNOWN, CUT} <= set(kinds)
    slider = find(page, "#threshold")
    steps = json.loads(find(page, "#about").get_attribute("textContent"))["steps"]
    step = len(steps) // 2
    script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))"
    page.execute_script(script, slider, step)
    is_answered = truth.confidence >= steps[step]["threshold"]
    filters = [
        ({}, is_wrong | ~is_wrong),
        ({"predicted": "ham"}, truth.predicted == "ham"),
        ({"true": CLASSES[2]}, truth.true == CLASSES[2]),
        ({"error": "wrong"}, is_wrong),
        ({"error": "right"}, ~is_wrong),
        ({"size": "1"}, truth["size"] == 1),
        ({"size": "3"}, truth["size"] >= 3),
        ({"kind": UNKNOWN}, truth[UNKNOWN] > 0),
        ({"kind": CUT, "error": "wrong"}, (truth[CUT] > 0) & is_wrong),
        ({"who": "answered"}, is_answered),
        ({"who": "person", "predicted": "spam"}, ~is_answered & (truth.predicted == "spam")),
    ]
    for chosen, passes in filters:
        for name in ("predicted", "true", "error", "size", "kind", "who"):
            choose(page, name, chosen.get(name, ""))
        listed = shown(page)
        assert sorted(listed) == list(truth.index[passes])
        assert (np.diff(truth.confidence[listed].to_numpy()) > -1e-6).all()
        assert numbers(find(page, "#found").text) == [passes.sum(), NUMBER]


@pytest.mark.parametrize("measure", ["entropy", "mutual_information"])
def test_cards_are_sorted_by_the_chosen_uncertainty(page, truth, measure):
    choose(page, "measure", measure)
    values = truth[measure][shown(page)].to_numpy()
    assert (np.diff(values) < 1e-6).all()  # single precision may swap equal ones


def test_notes_of_an_example_say_what_is_unseen_of_it(page, truth):
    for card in find_all(page, "#examples > li"):
        number = int(numbers(card.find_element("tag name", "h2").text)[0])
        assert (f"{UNKNOWN} 25%" in card.text) == (truth[UNKNOWN][number] > 0)
        assert (CUT in card.text) == (truth[CUT][number] > 0)


def test_keys_go_through_the_examples_and_past_the_end_of_what_is_shown(page, truth):
    from selenium.webdriver import Keys

    order = list(truth.sort_values("confidence", kind="stable").index)
    press(page, "j", "j", Keys.ARROW_DOWN, "k", Keys.ARROW_UP)
    assert focused(page) == order[0]
    press(page, "k")  # there is none before
    assert focused(page) == order[0]
    press(page, Keys.ENTER, "j", "k", Keys.ENTER)  # letters in the box are no moves
    assert focused(page) == order[1]
    press(page, Keys.ENTER, Keys.ESCAPE, "j")
    assert focused(page) == order[2]
    first = find(page, "#examples > li input")
    assert first.get_attribute("value") == "jk"
    before = len(find_all(page, "#examples > li"))
    press(page, *["j"] * before)
    assert focused(page) == order[before + 2]
    assert page.execute_script(
        "const place = document.activeElement.getBoundingClientRect();"
        "return place.top >= 0 && place.bottom <= innerHeight"
    )


def test_noted_labels_are_downloaded_as_a_list_that_train_reads(page, tmp_path):
    from selenium.webdriver import Keys

    notes = {}
    download = find(page, "#download")
    assert not download.is_enabled()
    for place, card in enumerate(find_all(page, "#examples > li")[:12]):
        number = int(numbers(card.find_element("tag name", "h2").text)[0])
        label = ("yes", 'no "really", no', "<b>x</b>")[place % 3]
        card.find_element("css selector", "input").send_keys(label)
        notes[number] = label
    find(page, "#examples > li input").send_keys(Keys.BACKSPACE * len("yes"))
    del notes[next(iter(notes))]
    choose(page, "error", "wrong")  # notes of what is no longer listed stay
    download.click()
    path = page.downloads / "labels.csv"
    end = time.monotonic() + 20
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.05)
    text = path.read_text("utf-8")
    path.unlink()
    rows = list(csv.reader(text.splitlines(keepends=True)))
    assert rows[0] == ["a, text", "label"]
    assert len(rows) == 1 + len(notes)
    for part in ("train", "valid", "test"):
        (tmp_path / f"{part}.csv").write_text(text, "utf-8", newline="")
    names = {"text_column": "a, text", "label_column": "label"}
    division = {"shares": {"valid": 0.2, "test": 0.3}, "seed": 0, "limit": None}
    classes, train, *_ = read_texts(tmp_path, kind="csv", **names, **division)
    read = {line: classes[label] for line, label in zip(train.texts, train.labels, strict=True)}
    assert read == {f"{HOSTILE[number % 4]} {number}": label for number, label in notes.items()}


def test_html_in_a_text_or_a_name_stays_text_and_nothing_runs_or_asks_the_network(page):
    shown(page)
    for button in find_all(page, "#examples button"):
        button.click()
    assert page.execute_script("return window.broken") is None
    script = "return document.querySelectorAll('#examples :is(b, img, svg, script, a, i)').length"
    assert page.execute_script(script) == 0
    assert find(page, "h1").text == "Review: <i>run</i>"
    texts = [part.get_attribute("textContent") for part in find_all(page, "#examples li > p")]
    assert sorted(texts) == sorted(f"{HOSTILE[place % 4]} {place}" for place in range(NUMBER))
    records = [json.loads(record["message"])["message"] for record in page.get_log("performance")]
    requests = [
        record["params"]["request"]["url"]
        for record in records
        if record["method"] == "Network.requestWillBeSent"
    ]
    assert any(url.startswith("file:") for url in requests)  # of the page itself: they are seen
    assert all(url.startswith(("file:", "data:", "blob:")) for url in requests)
    assert page.get_log("browser") == []  # no errors, and nothing refused


def luminance(colour):
    """Return the relative luminance of an rgb(...) colour (WCAG 2.2)."""
    parts = np.array(numbers(colour)[:3]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_wish_of_the_reader_and_can_be_read(page, scheme):
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    paper = find(page, "body").value_of_css_property("background-color")
    box = find(page, "#examples > li").value_of_css_property("background-color")
    assert (luminance(paper) < 0.2) == (scheme == "dark")
    inside = ("h2", "dt", "dd", ".wrong", "p", "label", "input")
    for selector in (*(f"#examples {name}" for name in inside), "#counts", "#download"):
        ink = luminance(find(page, selector).value_of_css_property("color"))
        dark, light = sorted((ink, luminance(box)))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, selector
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.parametrize("width", [390, 1400])
def test_rows_with_long_names_fit_the_width_and_leave_room_for_their_values(
    show, prediction, calibration, width
):
    name = "a rather long name of a column that has no end"
    cells = pd.DataFrame(
        {name: ["north-west"] * NUMBER, "n" * 80: ["y" * 90] * NUMBER, "kind": ["ham"] * NUMBER}
    )
    data = Table(torch.zeros(NUMBER, 1), prediction.labels, cells=cells)
    settings = {"data.label_column": "kind"}
    page = show(prediction, data, classes=CLASSES, calibration=calibration, settings=settings)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    row, value = find(page, "#examples dl"), find(page, "#examples dd")
    assert value.size["width"] >= 0.4 * row.size["width"]
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
