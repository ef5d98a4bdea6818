"""Single test examples of a report: the most confident errors and the most uncertain answers."""

import base64
import io
import textwrap

from torch import Tensor
from torchvision.transforms.functional import to_pil_image

from probattn.experiments.data.images.image_datasets import Images
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.evaluation.metric_display import format_number
from probattn.experiments.evaluation.run_result import RunResult

COUNT = 6
SIDE = 128
"""Longest side of a picture in pixels, so that reports of photographs stay small."""


def cards(result: RunResult) -> dict[str, list[dict[str, object]]]:
    """Return six examples by heading: the most confident errors, and the most uncertain answers.

    An example has its number in the test part, a picture (data URI) and a text, empty without one.
    Then come the true value, the answer, its confidence or standard deviation, and whether it is
    right.
    """
    test = result.test
    if not result.classes:
        error, variance = (
            (test.predicted - test.require("labels")).abs().flatten(),
            test.require("variance").flatten(),
        )
        orders = {"The largest errors": error, "The most uncertain predictions": variance}
    else:
        errors = test.confidence.where(test.predicted != test.require("labels"), -1)
        orders = {"The most confident errors": errors, "The most uncertain answers": test.entropy}
    first = {name: values.sort(descending=True, stable=True) for name, values in orders.items()}
    return {
        name: [_card(result, n) for n in indices[values >= 0][:COUNT].tolist()]
        for name, (values, indices) in first.items()
    }


def _card(result: RunResult, number: int) -> dict[str, object]:
    test = result.test[number]
    if not result.classes:
        true, answer = (
            format_number(number.item()) for number in (test.require("labels"), test.predicted)
        )
        certainty = f"± {test.require('variance').item() ** 0.5:.3g}"
    else:
        true, answer = (
            result.classes[int(label)] for label in (test.require("labels"), test.predicted)
        )
        certainty = f"{100 * float(test.confidence):.1f} %"
    picture = _picture(result.data.images[number]) if isinstance(result.data, Images) else ""
    text = (
        textwrap.shorten(result.data.texts[number], 160, placeholder=" …")
        if isinstance(result.data, Texts)
        else ""
    )
    shown = {"true": true, "answer": answer, "certainty": certainty, "is_right": true == answer}
    return {"number": number, "picture": picture, "text": text} | shown


def _picture(pixels: Tensor) -> str:
    """Return an image ``(channels, H, W)`` as a data URI; of other than three channels the first is
    grey."""
    image = to_pil_image(pixels if len(pixels) == 3 else pixels[:1])
    form = "jpeg" if max(image.size) > SIDE else "png"
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, format=form)
    return f"data:image/{form};base64,{base64.b64encode(file.getvalue()).decode()}"
