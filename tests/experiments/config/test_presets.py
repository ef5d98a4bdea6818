"""The presets are the papers' settings, written out here, and twins differ in the layer alone."""

from dataclasses import replace

import pytest
import torch

from probattn.experiments.config.layers import SoftmaxSettings
from probattn.experiments.config.presets import PRESETS, digits, preset, twin
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.images.datasets import ImageDataset
from probattn.experiments.data.images.labelled_images import Images
from probattn.experiments.data.tables.datasets import Table, TableDataset
from probattn.experiments.data.tables.encoding import TableEncoding
from probattn.experiments.data.text.datasets import TextDataset
from probattn.experiments.data.text.labelled_texts import Texts
from probattn.experiments.data.text.tokens import TokenSettings, fit
from probattn.experiments.runs.build import build
from probattn.inference import guide_checks, warm_start

TWINS = [name for name in PRESETS if f"{name}-softmax" in PRESETS]
FURTHER_OPTIONS = {
    "schedule": "cosine",
    "lr_scale": None,
    "decoupled_weight_decay": True,
    "accumulate_grad_batches": 1,
    "clip_norm": None,
    "elbo": "mean_field",
    "samples_per": "example",
    "vectorize": None,
    "num_particles": 1,
    "kl_weight": 1.0,
    "local_kl_weight": 1.0,
    "kl_anneal_epochs": 0,
    "alpha_start": 1.0,
    "alpha_end": 1.0,
    "monitor": "nll",
    "patience": None,
    "num_samples": 10,
    "precision": "32",
    "matmul_precision": None,
    "checkpoint_every": 1,
    "compile": False,
    "deterministic": False,
    "accelerator": "auto",
    "devices": 1,
    "seed": 0,
}
CIFAR_TRAINING = FURTHER_OPTIONS | {
    "epochs": 300,
    "lr": 1e-3,
    "min_lr": 1e-5,
    "warmup_epochs": 5,
    "weight_decay": 5e-5,
    "decoupled_weight_decay": False,
    "log_every": 10,
    "guide_lr": None,
    "guide_optimizer": "adam",
}
GUIDE = {"kep-svgp": {"guide_lr": 0.03}}
NO_DECAY = {"weight_decay": 0.0, "decoupled_weight_decay": True}
DIGITS_TRAINING = CIFAR_TRAINING | NO_DECAY | {"epochs": 40, "warmup_epochs": 2, "log_every": 5}
CIFAR_NETWORK = {"kind": "vit", "patch_size": 4, "dim": 384, "depth": 7, "heads": 12, "mlp_dim": 384, "dropout": 0.1}
DIGITS_NETWORK = {"kind": "vit", "patch_size": 2, "dim": 64, "depth": 4, "heads": 4, "mlp_dim": 128, "dropout": 0.1}
KEP_SVGP = {
    "name": "kep-svgp",
    "last": 1,
    "rank": 10,
    "pair": "er",
    "merge": "concat",
    "projection": "data",
    "multiple": 10,
    "prior": "normal",
    "eta": 10.0,
    "penalty": "example",
    "scale": 1.0,
    "learn_scale": True,
    "residual": None,
    "mean": "zero",
    "amplitude": 0.1,
    "dropout": 0.0,
    "guide": "full",
    "guide_scale": 0.1,
}
SOFTMAX = {"name": "softmax", "dropout": 0.0}
CGP_TRAINING = FURTHER_OPTIONS | {
    "epochs": 600,
    "lr": 5e-4,
    "min_lr": 1e-5,
    "schedule": "linear",
    "warmup_epochs": 0,
    "weight_decay": 0.0,
    "log_every": 10,
    "guide_lr": None,
    "guide_optimizer": "adam",
}
CGP_NETWORK = {"kind": "vit", "patch_size": 4, "dim": 128, "depth": 5, "heads": 4, "mlp_dim": 128, "dropout": 0.1}
CORRELATED = {
    "last": None,
    "noise": 0.1,
    "learn_noise": False,
    "canonical_guide": "posterior",
    "collapsed": True,
    "output": "draw",
    "alpha": 1.0,
    "regulariser_norm": "scalar",
    "bias": False,
}
CGP = CORRELATED | {"name": "cgp", "noisy_canonical": True, "noisy_output": True}
SPARSE_CGP = CORRELATED | {"name": "sparse-cgp", "inducing": 16, "inducing_keys": None, "mixtures": False}
THE_PAPERS = {"canonical_guide": "prior", "output": "mean", "regulariser_norm": "column"}
KERNEL = {"name": "kernel", "last": None, "kernel": "rbf", "symmetric": False, "variance": 1.0, "bias": False}
SGPA = {
    "name": "sgpa",
    "last": None,
    "inducing": 32,
    "kernel": "ard",
    "variance": 1.0,
    "draws": "marginal",
    "prior": None,
    "bias": False,
    "guide": "full",
    "guide_scale": 0.1,
    "init_loc": 0.0,
}
TEXT = {"kind": "text", "dropout": 0.1, "min_count": 2, "max_words": None, "spelling": 0, "encoder": None}
IMDB_NETWORK = TEXT | {"dim": 128, "depth": 1, "heads": 8, "mlp_dim": 128, "max_length": 512, "max_words": 20_000}
COLA_NETWORK = TEXT | {"dim": 128, "depth": 2, "heads": 4, "mlp_dim": 256, "max_length": 64, "spelling": 16}
IMDB_TRAINING = CIFAR_TRAINING | NO_DECAY | {"epochs": 20, "min_lr": 1e-4}
COLA_TRAINING = CIFAR_TRAINING | NO_DECAY | {"epochs": 50, "lr": 5e-4, "monitor": "nll"}
CGP_COLA_TRAINING = COLA_TRAINING | {"schedule": "linear", "warmup_epochs": 0}
COLA_SGPA = SGPA | {"inducing": 16, "kernel": "exponential", "variance": 0.1}
START = {"epochs": 200, "kernel": "rbf", "symmetric": False, "variance": 1.0, "bias": False}
ANNEALED = {"alpha_start": 0.0, "alpha_end": 1.0}


def flat(*, warm_start=None, **parts):
    keys = {f"{part}.{key}": value for part, values in parts.items() for key, value in values.items()}
    return keys | ({"warm_start": None} if not warm_start else {f"warm_start.{k}": v for k, v in warm_start.items()})


def data(name, batch_size):
    return {"name": name, "batch_size": batch_size, "limit": None, "seed": 0}


@pytest.mark.parametrize("classes", ["cifar10", "cifar100"])
@pytest.mark.parametrize(("suffix", "layer"), [("", KEP_SVGP), ("-softmax", SOFTMAX)])
def test_cifar_presets_are_the_papers(classes, suffix, layer):
    expected = flat(
        data=data(classes, 128), network=CIFAR_NETWORK, layer=layer, train=CIFAR_TRAINING | GUIDE.get(layer["name"], {})
    )
    assert PRESETS[f"kep-svgp/{classes}{suffix}"].flat() == expected


@pytest.mark.parametrize(
    ("data", "monitor"), [("cifar10", "accuracy"), ("cifar100", "accuracy"), ("imdb", "accuracy"), ("cola", "mcc")]
)
def test_presets_of_the_kep_svgp_authors_form(data, monitor):
    """Their layer and choice of the epoch; options that both layers have, and all else, are as in ours."""
    name = f"kep-svgp/{data}-paper"
    found, ours = PRESETS[name].flat(), PRESETS[f"kep-svgp/{data}"].flat()
    changed = {"layer.name": "kep-svgp-authors", "train.monitor": monitor, "train.guide_lr": None}
    changed |= {"layer.multiple": 2} if data == "cola" else {}
    assert found == {key: value for key, value in (ours | changed).items() if key in found}
    assert {key for key in ours if key not in found} <= {key for key in ours if key.startswith("layer.")}
    assert twin(name) == f"kep-svgp/{data}-softmax"


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("kep-svgp", KEP_SVGP | {"rank": 8}),
        ("kep-svgp-ee", KEP_SVGP | {"rank": 8, "pair": "ee"}),
        ("kep-svgp-rr", KEP_SVGP | {"rank": 8, "pair": "rr"}),
        ("softmax", SOFTMAX),
    ],
)
def test_digits_presets(name, layer):
    expected = flat(
        data=data("digits", 64),
        network=DIGITS_NETWORK,
        layer=layer,
        train=DIGITS_TRAINING | GUIDE.get(layer["name"], {}),
    )
    assert PRESETS[f"digits/{name}"].flat() == expected


@pytest.mark.parametrize(
    ("name", "layer", "start", "changes"),
    [
        ("cifar10", CGP, START, ANNEALED),
        ("cifar10-sparse", SPARSE_CGP, START, ANNEALED),
        ("cifar10-paper", CGP | THE_PAPERS | {"noisy_output": False}, START, ANNEALED),
        ("cifar10-sparse-paper", SPARSE_CGP | THE_PAPERS, START, ANNEALED),
        ("cifar10-sgpa", SGPA, START | {"kernel": "ard", "symmetric": True}, {}),
        ("cifar10-kernel", KERNEL | {"kernel": "ard"}, None, {}),
        ("cifar10-kernel-symmetric", KERNEL | {"kernel": "ard", "symmetric": True}, None, {}),
        ("cifar10-softmax", SOFTMAX, None, {}),
        ("cifar100", CGP, START, ANNEALED),
        ("cifar100-softmax", SOFTMAX, None, {}),
    ],
)
def test_presets_of_the_cgp_paper(name, layer, start, changes):
    classes = name.partition("-")[0]
    network = CGP_NETWORK | {"depth": 5 if classes == "cifar10" else 6}
    train = CGP_TRAINING | changes | {"epochs": 400 if start else 600}
    expected = flat(data=data(classes, 100), network=network, layer=layer, train=train, warm_start=start)
    assert PRESETS[f"cgp/{name}"].flat() == expected


@pytest.mark.parametrize(
    ("name", "network", "train", "layer"),
    [
        ("kep-svgp/imdb", IMDB_NETWORK, IMDB_TRAINING, KEP_SVGP | {"merge": "add"}),
        ("kep-svgp/imdb-softmax", IMDB_NETWORK, IMDB_TRAINING, SOFTMAX),
        ("kep-svgp/imdb-sgpa", IMDB_NETWORK, IMDB_TRAINING, COLA_SGPA | {"variance": 0.004}),
        ("kep-svgp/cola", COLA_NETWORK, COLA_TRAINING, KEP_SVGP | {"rank": 5, "merge": "add", "eta": 1.0}),
        ("kep-svgp/cola-softmax", COLA_NETWORK, COLA_TRAINING, SOFTMAX),
        ("kep-svgp/cola-sgpa", COLA_NETWORK, COLA_TRAINING, COLA_SGPA),
        ("cgp/cola", COLA_NETWORK, CGP_COLA_TRAINING | ANNEALED, CGP | {"noise": 0.5}),
        (
            "cgp/cola-sparse",
            COLA_NETWORK,
            CGP_COLA_TRAINING | ANNEALED,
            SPARSE_CGP | {"noise": 0.5, "inducing": 8},
        ),
        ("cgp/cola-sgpa", COLA_NETWORK, CGP_COLA_TRAINING, COLA_SGPA),
        ("cgp/cola-softmax", COLA_NETWORK, CGP_COLA_TRAINING, SOFTMAX),
    ],
)
def test_presets_of_texts(name, network, train, layer):
    corpus = name.partition("/")[2].partition("-")[0]
    train = train | GUIDE.get(layer["name"], {})
    assert PRESETS[name].flat() == flat(data=data(corpus, 32), network=network, layer=layer, train=train)


def test_fine_tuning_with_sparse_cgp_has_its_layer_in_the_last_place():
    layer = SPARSE_CGP | {"last": 1, "inducing": 8, "noise": 0.5, "alpha": 0.1}
    changes = {f"layer.{key}": value for key, value in layer.items()} | {"train.alpha_start": 0.0}
    softmax = {key: value for key, value in PRESETS["finetune/cola-softmax"].flat().items() if "layer." not in key}
    assert PRESETS["finetune/cola-sparse"].flat() == softmax | changes


def test_tempered_sgpa_differs_in_the_weight_of_the_kl_alone():
    weights = {"train.kl_weight": 0.01, "train.local_kl_weight": 0.01}
    assert PRESETS["digits/sgpa-tempered"].flat() == PRESETS["digits/sgpa"].flat() | weights


def test_there_are_no_other_presets():
    assert set(PRESETS) == {
        "vit/folder",
        "image/hf",
        "text/csv",
        "text/jsonl",
        "text/hf",
        "tabular/csv",
        "digits/softmax",
        "digits/kep-svgp",
        "digits/kernel",
        "digits/kernel-symmetric",
        "digits/sgpa",
        "digits/cgp",
        "digits/sparse-cgp",
        "digits/sgpa-tempered",
        "digits/kep-svgp-ee",
        "digits/kep-svgp-rr",
        "kep-svgp/cifar10",
        "kep-svgp/cifar10-softmax",
        "kep-svgp/cifar100",
        *(f"kep-svgp/{data}-paper" for data in ("cifar10", "cifar100", "imdb", "cola")),
        "kep-svgp/cifar100-softmax",
        *(f"kep-svgp/{corpus}{layer}" for corpus in ("imdb", "cola") for layer in ("", "-softmax", "-sgpa")),
        *(f"cgp/cola{layer}" for layer in ("", "-softmax", "-sgpa", "-sparse")),
        "cgp/cifar10",
        "cgp/cifar10-sparse",
        "cgp/cifar10-paper",
        "cgp/cifar10-sparse-paper",
        "cgp/cifar10-sgpa",
        "cgp/cifar10-kernel",
        "cgp/cifar10-kernel-symmetric",
        "cgp/cifar10-softmax",
        "cgp/cifar100",
        "cgp/cifar100-softmax",
        *(f"finetune/{corpus}{layer}" for corpus in ("imdb", "cola") for layer in ("", "-softmax")),
        "finetune/cola-sparse",
    }
    assert len(TWINS) == 9


@pytest.mark.parametrize(
    ("name", "twin"),
    [
        *((name, "digits/softmax") for name in PRESETS if name.startswith("digits/")),
        *((name, "cgp/cola-softmax") for name in PRESETS if name.startswith("cgp/cola-")),
        *((f"kep-svgp/{corpus}-sgpa", f"kep-svgp/{corpus}-softmax") for corpus in ("imdb", "cola")),
        *((f"kep-svgp/{data}-paper", f"kep-svgp/{data}-softmax") for data in ("cifar10", "cifar100", "imdb", "cola")),
        *((name, "cgp/cifar10-softmax") for name in PRESETS if name.startswith("cgp/cifar10-")),
        *((name, f"{name}-softmax") for name in TWINS),
        ("finetune/cola-sparse", "finetune/cola-softmax"),
    ],
)
def test_twins_differ_in_the_layer_and_its_training_alone(name, twin):
    """As many epochs in all, the same data, network, learning rates and seed; weights of the objective may differ."""
    ours, theirs = PRESETS[name], PRESETS[twin]
    assert ours.epochs == theirs.epochs
    objective = {"alpha_start": 1.0, "alpha_end": 1.0, "kl_weight": 1.0, "local_kl_weight": 1.0}
    objective |= {"monitor": theirs.train.monitor, "guide_lr": None}
    train = replace(ours.train, epochs=theirs.train.epochs, **objective)
    assert replace(ours, layer=SoftmaxSettings(), train=train, warm_start=None) == theirs


@pytest.mark.parametrize("name", [name for name in PRESETS if not name.startswith("finetune/")])
def test_every_preset_builds_and_its_warm_start_fits(name):
    """The layers take the network's tokens, and the attention's projections are carried over."""
    settings = PRESETS[name].with_changes(["network.depth=2"])
    if settings.network.kind == "text":
        texts = Texts(("one word", "and another"), torch.arange(2))
        tokens = fit(TokenSettings(512, 1, None, settings.network.spelling, None), texts, cache=None)
        dataset = TextDataset("made up", ("a", "b"), texts, texts, texts, tokens, {})
        guide_checks.check(*build(settings, dataset))
        return
    kind = settings.data.name
    if kind == "table-csv":
        rows = [{"a": "1", "b": "x", "c": "y", "d": "2"}, {"a": "2", "b": "y", "c": "y", "d": "2"}]
        encoding = TableEncoding.fit(rows, ["", ""], names=("a", "b", "c", "d"), categories=())
        table = Table(encoding.features(rows, ["", ""]), torch.arange(2))
        guide_checks.check(*build(settings, TableDataset(kind, ("n", "y"), encoding, "label", table, table, table)))
        return
    sizes = {"digits": (1, 8, 10), "cifar10": (3, 32, 10), "cifar100": (3, 32, 100)}
    channels, size, classes = sizes.get(kind, (3, 32, 3))
    images = Images(torch.zeros(classes, channels, size, size, dtype=torch.uint8), torch.arange(classes))
    names = tuple(map(str, range(classes)))
    dataset = ImageDataset(kind, names, images, images, images, (0.5,) * channels, (0.5,) * channels, augment=False)
    model, guide = build(settings, dataset)
    guide_checks.check(model, guide)
    if settings.warm_start is not None:
        report = warm_start(model, build(settings.first_phase(), dataset)[0].state_dict())
        assert report["unused"] == []
        projection = "query_value" if "sgpa" in name else "query_key_value"
        assert {f"network.blocks.{n}.attention.{projection}.weight" for n in range(2)} <= set(report["carried"])
        assert all(".attention." in fresh for fresh in report["fresh"])


def test_the_presets_on_digits_by_layer():
    assert digits("softmax,kep-svgp") == ["digits/softmax", "digits/kep-svgp"]
    assert digits(" cgp, softmax ,cgp") == ["digits/cgp", "digits/softmax"]
    layers = ("softmax", "kep-svgp", "kernel", "kernel-symmetric", "sgpa", "cgp", "sparse-cgp")
    assert digits("all") == [f"digits/{layer}" for layer in layers]
    assert digits("kep-svgp,kep-svgp-ee, kep-svgp-rr") == [f"digits/kep-svgp{pair}" for pair in ("", "-ee", "-rr")]


@pytest.mark.parametrize("layers", ["", "zebra", "softmax,zebra", "digits/cgp", "softmax,", "all,cgp"])
def test_unknown_layers_on_digits_are_named(layers):
    with pytest.raises(SettingsError, match="known: all, or some of softmax,kep-svgp,.*sparse-cgp") as caught:
        digits(layers)
    assert repr(layers.split(",")[-1] if layers != "all,cgp" else "all") in str(caught.value)


def test_preset_by_name():
    assert preset("kep-svgp/cifar10") is PRESETS["kep-svgp/cifar10"]


def test_a_near_miss_is_guessed():
    with pytest.raises(SettingsError, match=r"unknown preset 'kep-svgp/cifar'; did you mean .*kep-svgp/cifar10\b.*\?"):
        preset("kep-svgp/cifar")


def test_a_far_miss_gets_the_whole_list():
    with pytest.raises(SettingsError) as caught:
        preset("zebra")
    assert all(name in str(caught.value) for name in ("zebra", *PRESETS))
