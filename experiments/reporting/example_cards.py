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
    labels = test.require("labels")
    if result.classes:
        is_wrong = test.predicted != labels
        orders = {
            "The most confident errors": test.confidence.where(is_wrong, -1),
            "The most uncertain answers": test.entropy,
        }
    else:
        orders = {
            "The largest errors": (test.predicted - labels).abs().flatten(),
            "The most uncertain predictions": test.require("variance").flatten(),
        }
    return {
        heading: [_card(result, number) for number in _largest(values)]
        for heading, values in orders.items()
    }


def _largest(values: Tensor) -> list[int]:
    """Return the places of the largest values, without negative ones and NaN."""
    values, places = values.sort(descending=True, stable=True)
    return places[values >= 0][:COUNT].tolist()


def _card(result: RunResult, number: int) -> dict[str, object]:
    test, data = result.test[number], result.data
    values = (test.require("labels").item(), test.predicted.item())
    if result.classes:
        true, answer = (result.classes[int(value)] for value in values)
        certainty = f"{100 * float(test.confidence):.1f} %"
    else:
        true, answer = map(format_number, values)
        certainty = f"± {test.require('variance').item() ** 0.5:.3g}"
    image, text = "", ""
    if isinstance(data, Images):
        image = picture(data.images[number])
    elif isinstance(data, Texts):
        text = textwrap.shorten(data.texts[number], 160, placeholder=" …")
    return {
        "number": number,
        "picture": image,
        "text": text,
        "true": true,
        "answer": answer,
        "certainty": certainty,
        "is_right": true == answer,
    }


def picture(pixels: Tensor, *, side: int = SIDE, form: str = "", **options: int) -> str:
    """Return an image ``(channels, H, W)`` as a data URI; of other than three channels the first is
    grey.

    Args:
        pixels: the image.
        side: its longest side in the URI, in pixels.
        form: format of the file, by default PNG, or JPEG of larger images.
        options: of Pillow's ``save``.
    """
    image = to_pil_image(pixels if len(pixels) == 3 else pixels[:1])
    form = form or ("jpeg" if max(image.size) > side else "png")
    image.thumbnail((side, side))
    file = io.BytesIO()
    image.save(file, format=form, **options)
    return f"data:image/{form};base64,{base64.b64encode(file.getvalue()).decode()}"
