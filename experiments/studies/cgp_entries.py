"""Tables and figures of the CGP paper."""

from __future__ import annotations

from collections.abc import Mapping

from probattn.experiments.data.images.corrupted_sets import SEVERITIES
from probattn.experiments.data.images.corruptions import CORRUPTIONS
from probattn.experiments.evaluation.metric_display import DETECTORS, DISPLAY, OOD_DISPLAY, MetricDisplay
from probattn.experiments.studies import paper_tables as papers
from probattn.experiments.studies.entries import Column, Entry, Model, Part, Row, columns_of, keys_of
from probattn.experiments.studies.paper_tables import parse

# CGP paper. Its own forms (Alg. 1, and the regulariser as in its authors' code).
_CGP_FORM = ("layer.canonical_guide=prior", "layer.output=mean", "layer.regulariser_norm=column")
_DENSE_FORM = (*_CGP_FORM, "layer.noisy_output=false")
_HALF, _FIXED = ("train.alpha_start=0.5",), ("train.alpha_start=0.7", "train.alpha_end=0.7")
_MONITOR = "train.monitor=accuracy"
_CGP_UNITS = {"accuracy": ("Acc", 100), "mcc": ("MCC", 100), "nll": ("NLL", 1), "mce": ("MCE", 1), "ece": ("ECE", 1)}


def _cgp_column(subject: str, metric: str, title: str = "") -> Column:
    own, scale = _CGP_UNITS[metric]
    return Column(subject, metric, MetricDisplay(title or own, scale, DISPLAY[metric].higher_is_better))


def _cgp_1() -> tuple[Part, ...]:
    rows = {
        "SGPA": Row(Model("cgp/cola-sgpa", ("train.monitor=mcc",))),
        "CGPT": Row(Model("cgp/cola", ("train.monitor=mcc", *_DENSE_FORM))),
        "SCGPT": Row(Model("cgp/cola-sparse", ("train.monitor=mcc", *_CGP_FORM))),
    }
    note = (
        "The paper tests in domain on 1,816 sentences of the training files and evaluates the last epoch; here the "
        "test part are the 527 development sentences, and the epoch is chosen on validation sentences."
    )
    parts = []
    for (subject, text), title in zip(papers.CGP_1.items(), ("CoLA", "CoLA (OOD)"), strict=True):
        columns = tuple(_cgp_column(subject, metric) for metric in ("mcc", "nll", "mce", "ece"))
        parts.append(Part(title, rows, columns, parse(text, keys_of(columns)), baseline="SGPA", note=note))
    return tuple(parts)


def _by_category(texts: Mapping[str, str], rows: dict[str, Row], title: str) -> tuple[Part, ...]:
    """Return a block for each metric, whose columns are the categories of the 19 corruptions."""
    parts = []
    for metric, text in texts.items():
        columns = tuple(
            _cgp_column(f"shift/{category}", metric, "Avg." if category == "all" else category.capitalize())
            for category in papers.CGP_CATEGORIES
        )
        heading, options = f"{title}, {_CGP_UNITS[metric][0]}", {"corruptions": tuple(CORRUPTIONS)}
        paper = parse(text, keys_of(columns))
        parts.append(Part(heading, rows, columns, paper, severities=SEVERITIES, baseline="SGPA", **options))
    return tuple(parts)


_CIFAR10_SGPA = Row(Model("cgp/cifar10-sgpa", (_MONITOR,)))
_KERNELS = {
    "Kernel (asym)": Row(Model("cgp/cifar10-kernel", (_MONITOR,))),
    "Kernel (sym)": Row(Model("cgp/cifar10-kernel-symmetric", (_MONITOR,))),
}
_CGPT = Row(Model("cgp/cifar10-paper", (_MONITOR, *_HALF)))
_SCGPT = Row(Model("cgp/cifar10-sparse-paper", (_MONITOR,)))
_CIFAR100_SGPA = Row(Model("cgp/cifar10-sgpa", (_MONITOR, "data.name=cifar100", "network.depth=6")))
_CIFAR100_CGPT = Row(Model("cgp/cifar100", (_MONITOR, *_DENSE_FORM, *_FIXED)))


_AVERAGE_NOTE = (
    "The printed averages of Kernel (sym) and SCGPT, and the AUPR-OUT of Kernel (asym), are not the means of the "
    "paper's own rows: 68.96 and 71.03 for AUROC."
)


def _cgp_3() -> tuple[Part, ...]:
    rows = {**_KERNELS, "SGPA": _CIFAR10_SGPA, "SCGPT": _SCGPT}
    sets = ("textures", "lsun-crop", "lsun-resize", "tinyimagenet-crop")
    parts = []
    for detector, text in papers.CGP_3.items():
        columns = tuple(Column(f"ood/mean/{detector}", key, OOD_DISPLAY[key]) for key in papers.CGP_DETECTION)
        title = DETECTORS.get(detector, "Average")
        note = _AVERAGE_NOTE if detector == "average" else ""
        parts.append(Part(title, rows, columns, parse(text, keys_of(columns)), ood=sets, baseline="SGPA", note=note))
    return tuple(parts)


def _cgp_figure(title: str, **rows: Row) -> tuple[Part, ...]:
    return (Part(title, rows, columns_of("test", "accuracy", "nll"), baseline="SGPA"),)


_CGP = "CGP paper"
ENTRIES = (
    Entry("cgp/table-1", "CoLA in and out of domain", f"{_CGP}, Table I, section 5", None, _cgp_1()),
    Entry(
        "cgp/table-2",
        "CIFAR10-C by category",
        f"{_CGP}, Table II, section 5",
        None,
        _by_category(papers.CGP_2, {"SGPA": _CIFAR10_SGPA, **_KERNELS, "CGPT": _CGPT, "SCGPT": _SCGPT}, "CIFAR10-C"),
    ),
    Entry("cgp/table-3", "OOD detection by detector", f"{_CGP}, Table III, section 5.3", None, _cgp_3()),
    Entry(
        "cgp/table-4",
        "CIFAR10-C by α",
        f"{_CGP}, Table IV, appendix F.1",
        3,
        _by_category(
            papers.CGP_4,
            {
                "SGPA": _CIFAR10_SGPA,
                "CGPT, α = 0.5 → 1": _CGPT,
                "CGPT, α = 0.7": Row(Model("cgp/cifar10-paper", (_MONITOR, *_FIXED))),
            },
            "CIFAR10-C",
        ),
    ),
    Entry(
        "cgp/table-5",
        "CIFAR100-C by category",
        f"{_CGP}, Table V, appendix F.1",
        3,
        _by_category(papers.CGP_5, {"SGPA": _CIFAR100_SGPA, "CGPT, α = 0.7": _CIFAR100_CGPT}, "CIFAR100-C"),
    ),
    Entry(
        "cgp/figure-1",
        "Diagram of the training",
        f"{_CGP}, Fig. I, section 3.3",
        unavailable="a diagram without data",
    ),
    Entry(
        "cgp/figure-2",
        "Time and GPU memory by inducing inputs",
        f"{_CGP}, Fig. II, section 5.2",
        unavailable="times and memory of an A100; `probattn bench layers --device cuda` measures them on a GPU",
    ),
    Entry(
        "cgp/figure-3",
        "Similarity of tokens on CIFAR-10",
        f"{_CGP}, Fig. III, appendix F.2",
        None,
        _cgp_figure("CIFAR-10", SGPA=_CIFAR10_SGPA, CGPT=_CGPT, SCGPT=_SCGPT),
        "similarity",
    ),
    Entry(
        "cgp/figure-4",
        "Similarity of tokens on CIFAR-100",
        f"{_CGP}, Fig. IV, appendix F.2",
        None,
        _cgp_figure("CIFAR-100", SGPA=_CIFAR100_SGPA, CGPT=_CIFAR100_CGPT),
        "similarity",
    ),
)
"""In the order of the paper."""
