"""Tables and figures of the KEP-SVGP paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probattn.experiments.data.images.corrupted_sets import SEVERITIES
from probattn.experiments.data.images.corruptions import STANDARD
from probattn.experiments.evaluation.metric_display import OOD_DISPLAY, MetricDisplay
from probattn.experiments.studies import paper_tables as papers
from probattn.experiments.studies.entries import Column, Entry, Model, Part, Row, columns_of, keys_of
from probattn.experiments.studies.paper_tables import parse

# KEP-SVGP paper. Every model's best epoch is chosen as in the paper. "KEP-SVGP" is the authors' form, "KEP-SVGP, ELBO"
# this library's, which is compared with the same row of the paper.
_NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imdb": "IMDB", "cola": "CoLA"}
_IMAGES, _TEXTS = ("cifar10", "cifar100"), ("imdb", "cola")


def _model(data: str, layer: str, *changes: str) -> Model:
    """Return a model of the KEP-SVGP paper, with the paper's choice of the epoch."""
    monitor = "mcc" if data == "cola" else "accuracy"
    return Model(f"kep-svgp/{data}{layer}", (f"train.monitor={monitor}", *changes))


def _kep_columns(data: str, subject: str = "test") -> tuple[Column, ...]:
    first, *others = papers.KEP_COLUMNS
    return columns_of(subject, "mcc" if data == "cola" else first, *others)


def _kep_rows(data: str, *, post_hoc: tuple[str, ...]) -> dict[str, Row]:
    titles = {"temperature": "Temperature Scaling", "mc-dropout": "MC Dropout", "laplace": "KFLLLA", "sv-dkl": "SV-DKL"}
    softmax, authors = _model(data, "-softmax"), _model(data, "-paper")
    rows = {"MSP": Row(softmax)} | {titles[method]: Row(softmax, method) for method in post_hoc}
    if data in _TEXTS:
        rows["SGPA"] = Row(_model(data, "-sgpa"))
    rows |= {"KEP-SVGP": Row(authors), "KEP-SVGP, ELBO": Row(_model(data, ""), paper="KEP-SVGP")}
    rows["Deep Ensembles"] = Row(softmax, is_ensemble=True)
    return rows | {"KEP-SVGP Ensembles": Row(authors, is_ensemble=True)}


def _kep_part(data: str, rows: Mapping[str, Row], text: str, **options: Any) -> Part:
    columns = _kep_columns(data, options.pop("subject", "test"))
    title = options.pop("title", _NAMES[data])
    return Part(title, rows, columns, parse(text, keys_of(columns)), baseline="MSP" if "MSP" in rows else "", **options)


_POST_HOC = ("temperature", "mc-dropout", "laplace", "sv-dkl")
_COLA_NOTE = (
    "The paper chooses the epoch on the test set and averages MCC over batches of 32, and its word vectors are ELMo's."
)
_UNDER_SHIFT = {"corruptions": STANDARD, "severities": SEVERITIES}


def _kep_1() -> tuple[Part, ...]:
    notes = {"cola": _COLA_NOTE}
    return tuple(
        _kep_part(data, _kep_rows(data, post_hoc=_POST_HOC), text, note=notes.get(data, ""))
        for data, text in papers.KEP_1.items()
    )


def _kep_2() -> tuple[Part, ...]:
    options = {"subject": "shift/all", **_UNDER_SHIFT}
    return tuple(
        _kep_part(data, _kep_rows(data, post_hoc=_POST_HOC[1:]), text, title=f"{_NAMES[data]}-C", **options)
        for data, text in papers.KEP_2.items()
    )


def _kep_3() -> tuple[Part, ...]:
    parts = []
    for data, text in papers.KEP_3.items():
        sets = ("svhn", "cifar100" if data == "cifar10" else "cifar10", "lsun")
        columns = tuple(
            Column(f"ood/{name}/max_softmax", key, OOD_DISPLAY[key]._replace(title=f"{title} {name}"))
            for key, title in (("auroc", "AUROC"), ("aupr_in", "AUPR"))
            for name in sets
        )
        paper, rows = parse(text, keys_of(columns)), _kep_rows(data, post_hoc=_POST_HOC[1:])
        note = "AUPR: the positive class are the test images, which the paper does not say."
        parts.append(Part(f"ID {_NAMES[data]}", rows, columns, paper, ood=sets, baseline="MSP", note=note))
    return tuple(parts)


_SMALL = ("network.depth=5", "network.dim=128", "network.heads=4", "network.mlp_dim=128")


def _kep_4() -> tuple[Part, ...]:
    seconds = Column("log", "seconds", MetricDisplay("s/epoch", 1, higher_is_better=False), comparable=False)
    shapes = {"cifar10": _SMALL, "cifar100": ("network.depth=6", *_SMALL[1:])}
    parts = []
    for data, text in papers.KEP_4.items():
        columns = (*columns_of("test", "mcc" if data == "cola" else "accuracy", "nll"), seconds)
        shape = shapes.get(data, ())
        sgpa = _model(data, "-sgpa")
        if data in _IMAGES:
            sgpa = Model("cgp/cifar10-sgpa", (f"data.name={data}", shape[0], "train.monitor=accuracy"))
        rows = {"MSP": Row(_model(data, "-softmax", *shape)), "SGPA": Row(sgpa)}
        rows["KEP-SVGP"] = Row(_model(data, "-paper", *shape))
        note = "Seconds an epoch: the median of ours, validation included; the paper's are of a V100."
        if shape:
            note += " Training settings of these smaller networks are not given: SGPA's are those of the CGP paper."
        paper = parse(text, keys_of(columns))
        parts.append(Part(_NAMES[data], rows, columns, paper, baseline="MSP", note=note))
    return tuple(parts)


def _kep_5() -> tuple[Part, ...]:
    pairs = {"F_e + F_e": "ee", "F_r + F_r": "rr", "F_e + F_r": "er"}
    both = {name: Row(_model("cola", "-paper", "layer.last=2", f"layer.pair={pair}")) for name, pair in pairs.items()}
    return (_kep_part("cola", {"MSP": Row(_model("cola", "-softmax"))} | both, papers.KEP_5, note=_COLA_NOTE),)


def _kep_6() -> tuple[Part, ...]:
    rows = {
        "W_1 of N × 2N": Row(_model("cifar10", "-paper")),
        "A B^T": Row(_model("cifar10", "-paper", "layer.merge=concat_lowrank")),
    }
    return (_kep_part("cifar10", rows, papers.KEP_6),)


def _kep_7() -> tuple[Part, ...]:
    methods = {"imdb": ("temperature", "Temperature Scaling", "TS"), "cola": ("laplace", "KFLLLA", "KFLLLA")}
    parts = []
    for data, (method, title, short) in methods.items():
        softmax, authors = _model(data, "-softmax"), _model(data, "-paper")
        rows = {"MSP": Row(softmax), title: Row(softmax, method)}
        rows |= {"KEP-SVGP": Row(authors), f"KEP-SVGP+{short}": Row(authors, method)}
        parts.append(_kep_part(data, rows, papers.KEP_7[data], note=_COLA_NOTE if data == "cola" else ""))
    return tuple(parts)


def _kep_9() -> tuple[Part, ...]:
    rows = {}
    for title, merge in (("concatenation", "concat"), ("addition", "add")):
        for eta in ("10", "1", "0.1", "0.01"):
            changes = [] if merge == "concat" else [f"layer.merge={merge}"]
            changes += [] if eta == "10" else [f"layer.eta={eta}"]
            rows[f"{title}, η = {eta}"] = Row(_model("cifar10", "-paper", *changes))
    return (_kep_part("cifar10", rows, papers.KEP_9),)


def _kep_figure(data: str, rows: dict[str, Row], *metrics: str, **options: Any) -> tuple[Part, ...]:
    columns = columns_of(options.pop("subject", "test"), *metrics)
    return (Part(_NAMES[data], rows, columns, baseline="MSP", **options),)


def _some(data: str, *names: str) -> dict[str, Row]:
    rows = _kep_rows(data, post_hoc=_POST_HOC)
    return {name: rows[name] for name in names}


def _spectra() -> tuple[Part, ...]:
    rows = {
        "MSP": Row(_model("cola", "-softmax")),
        "KEP-SVGP, last layer": Row(_model("cola", "-paper")),
        "KEP-SVGP, both layers": Row(_model("cola", "-paper", "layer.last=2", "layer.pair=er")),
    }
    return _kep_figure("cola", rows, "mcc", "nll")


_KEP = "KEP-SVGP paper"
ENTRIES = (
    Entry("kep-svgp/table-1", "Test data", f"{_KEP}, Table 1, section 4.2", 5, _kep_1()),
    Entry("kep-svgp/table-2", "Distribution shift", f"{_KEP}, Table 2, section 5", 5, _kep_2()),
    Entry("kep-svgp/table-3", "OOD detection", f"{_KEP}, Table 3, section 5.1", 5, _kep_3()),
    Entry("kep-svgp/table-4", "Performance and time", f"{_KEP}, Table 4, section 5.2", 5, _kep_4()),
    Entry("kep-svgp/table-5", "Pairs of branches", f"{_KEP}, Table 5, section 5.3", 5, _kep_5()),
    Entry("kep-svgp/table-6", "Concatenation weights", f"{_KEP}, Table 6, appendix D.2", 5, _kep_6()),
    Entry("kep-svgp/table-7", "Post-hoc methods on KEP-SVGP", f"{_KEP}, Table 7, appendix D.3", 5, _kep_7()),
    Entry(
        "kep-svgp/table-8",
        "Forward times",
        f"{_KEP}, Table 8, appendix D.4",
        unavailable="forward times of a V100; `probattn bench` measures steps on this machine",
    ),
    Entry("kep-svgp/table-9", "Weight of the KSVD loss and merging", f"{_KEP}, Table 9, appendix D.5", 5, _kep_9()),
    Entry(
        "kep-svgp/figure-1", "Diagram of the layer", f"{_KEP}, Fig. 1, section 1", unavailable="a diagram without data"
    ),
    Entry(
        "kep-svgp/figure-2",
        "Corruptions at severity 5",
        f"{_KEP}, Fig. 2, section 5",
        5,
        _kep_figure(
            "cifar10",
            _some("cifar10", "MSP", "KEP-SVGP"),
            *papers.KEP_COLUMNS,
            subject="shift/all",
            corruptions=STANDARD,
            severities=(5,),
        ),
        "shift",
    ),
    Entry(
        "kep-svgp/figure-3",
        "Confidence on right, wrong and OOD images",
        f"{_KEP}, Fig. 3, section 5.1",
        5,
        _kep_figure(
            "cifar10", _some("cifar10", "MSP", "MC Dropout", "KEP-SVGP"), "accuracy", "auroc", ood=("svhn", "lsun")
        ),
        "confidence",
    ),
    Entry(
        "kep-svgp/figure-4",
        "Spectrum of the attention kernel",
        f"{_KEP}, Fig. 4, appendix D.6",
        None,
        _spectra(),
        "spectrum",
    ),
    Entry(
        "kep-svgp/figure-5",
        "AURC under corruptions",
        f"{_KEP}, Fig. 5, appendix D.7",
        5,
        _kep_figure(
            "cifar10",
            _some("cifar10", "MSP", "MC Dropout", "KFLLLA", "SV-DKL", "KEP-SVGP"),
            "aurc",
            subject="shift/all",
            **_UNDER_SHIFT,
        ),
        "shift",
    ),
)
"""In the order of the paper."""
