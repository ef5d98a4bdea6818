"""Single test examples of a report: the most confident errors and the most uncertain answers."""

import base64
import io
import textwrap

import torch
from torch import Tensor
from torchvision.transforms.functional import to_pil_image

from probattn.experiments.evaluation.metric_display import format_number
from probattn.experiments.evaluation.run_result import RunResult

COUNT = 6
SIDE = 128
"""Longest side of a picture in pixels, so that reports of photographs stay small."""


def cards(result: RunResult) -> dict[str, list[dict[str, object]]]:
    """Return six examples by heading: the most confident errors, and the most uncertain answers.

    An example has its number in the test part, a picture (data URI) and a text, empty without one. Then come the
    true value, the answer, its confidence or standard deviation, and whether it is right.
    """
    if result.probs is None:
        error = (result.numbers.mean - result.labels).abs().flatten()
        orders = {"The largest errors": error, "The most uncertain predictions": result.numbers.variance.flatten()}
    else:
        confidence, answers = result.probs.max(-1)
        wrong = confidence.where(answers != result.labels, -1)
        entropy = torch.special.entr(result.probs.double()).sum(-1)
        orders = {"The most confident errors": wrong, "The most uncertain answers": entropy}
    places = {name: values.argsort(descending=True, stable=True)[:COUNT].tolist() for name, values in orders.items()}
    return {
        name: [_card(result, number) for number in numbers if orders[name][number] >= 0]
        for name, numbers in places.items()
    }


def _card(result: RunResult, number: int) -> dict[str, object]:
    if result.probs is None:
        true, answer = (format_number(part[number].item()) for part in (result.labels, result.numbers.mean))
        certainty = f"± {result.numbers.variance[number].item() ** 0.5:.3g}"
    else:
        confidence, place = result.probs[number].max(-1)
        true, answer = result.classes[result.labels[number]], result.classes[place]
        certainty = f"{100 * float(confidence):.1f} %"
    picture = _picture(result.images[number]) if result.images.numel() else ""
    text = textwrap.shorten(result.texts[number], 160, placeholder=" …") if result.texts else ""
    values = {"true": true, "answer": answer, "certainty": certainty, "is_right": true == answer}
    return {"number": number, "picture": picture, "text": text, **values}


def _picture(pixels: Tensor) -> str:
    """Return an image ``(channels, H, W)`` as a data URI; of other than three channels the first is grey."""
    image = to_pil_image(pixels if len(pixels) == 3 else pixels[:1])
    kind = "jpeg" if max(image.size) > SIDE else "png"
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, format=kind)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
