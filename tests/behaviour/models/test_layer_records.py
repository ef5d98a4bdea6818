"""A name of a layer: it means the same in Python and at the command, and one record is all that a
new layer needs."""

import subprocess
import sys
import textwrap

import pytest
from torch import nn

from probattn.experiments.config.presets import PRESETS, changed_defaults, with_layer
from probattn.experiments.runs.build import build
from probattn.models import Classifier, TabularTransformer, TextTransformer, ViT
from probattn.models.layer_factories import LAYERS
from tests.behaviour.experiments.config.test_presets import made_up_data


def vit(attention):
    sizes = {"dim": 64, "depth": 4, "heads": 4, "mlp_dim": 128}
    return ViT(image_size=8, patch_size=2, channels=1, classes=10, attention=attention, **sizes)


def text(attention):
    sizes = {"dim": 128, "depth": 1, "heads": 8, "mlp_dim": 128}
    embedding = nn.Embedding(10, 128)
    return TextTransformer(embedding, max_length=256, classes=2, attention=attention, **sizes)


def tabular(attention):
    sizes = {"dim": 32, "depth": 2, "heads": 4, "mlp_dim": 64}
    return TabularTransformer([None, 2], outputs=2, attention=attention, **sizes)


IN_PYTHON = {"digits/softmax": vit, "text/csv": text, "tabular/csv": tabular}


def content(layer):
    """Class, plain attributes, shapes of the parameters and initial values of the kernels and the
    noise of a layer."""
    plain = (bool, int, float, str, type(None))
    attributes = {
        f"{path}.{name}": value
        for path, module in layer.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, plain) and name != "_name"
    }
    shapes = {key: value.shape for key, value in layer.state_dict().items()}
    set_by_options = ("log_noise", "log_variance", "log_lengthscale")
    values = {
        key: value.tolist()
        for key, value in layer.state_dict().items()
        if key.endswith(set_by_options)
    }
    return type(layer), attributes, shapes, values


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("preset", IN_PYTHON)
def test_a_name_means_the_same_layer_in_python_and_at_the_command(preset, name, tmp_path):
    softmax = with_layer(PRESETS[preset], "softmax")
    model, _ = build(with_layer(softmax, name), made_up_data(softmax, tmp_path))
    python = Classifier(IN_PYTHON[preset](name), num_data=10)
    for theirs, ours in zip(model.network.blocks, python.network.blocks, strict=True):
        assert content(theirs.attention) == content(ours.attention)


def test_what_a_preset_changes_of_its_layer_is_shown(command):
    assert changed_defaults(with_layer(PRESETS["digits/softmax"], "sgpa")) == {}
    assert changed_defaults(PRESETS["digits/anchored"]) == {"layer.anchors": 16}
    _, shown, _ = command("presets", "digits/anchored")
    (row,) = [line for line in shown.splitlines() if "layer.anchors" in line]
    assert "32 (layer: 16)" in row


PROGRAM = """
    import sys, types
    import torch
    from torch import nn
    from probattn import ProbabilisticAttention

    class Uniform(ProbabilisticAttention):
        \"\"\"Mean of the values, with a learned factor.

        Args:
            gate: initial factor.
        \"\"\"

        def __init__(self, dim, heads, *, gate=0.5):
            super().__init__(dim, heads)
            self.query_key_value = nn.Linear(dim, 3 * dim)
            self.out = nn.Linear(dim, dim)
            self.gate = nn.Parameter(torch.tensor(gate))

        def compute(self, x, mask):
            value = self.split_heads(self.query_key_value(x), 3)[2]
            mean = value.mean(-2, keepdim=True).expand_as(value)
            return self.gate * self.from_heads(mean), {}

    toys = types.ModuleType("toys")
    toys.Uniform = Uniform
    sys.modules["toys"] = toys

    from probattn.models.layer_factories import LAYERS, LayerRecord

    LAYERS["uniform"] = LayerRecord(
        layer="toys:Uniform", meaning="a toy", options={"gate": 0.25}, bench={"a toy": {}}
    )
"""


def run(program, *arguments):
    text = textwrap.dedent(PROGRAM) + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", text, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_record_makes_a_layer_known_to_python_the_commands_the_bench_and_the_grid():
    shown = run(
        """
        from probattn.experiments.bench import suites
        from probattn.experiments.cli.study_command import SHOWN
        from probattn.experiments.config.presets import PRESETS, with_layer
        from probattn.models import ViT, TextTransformer

        sys.path.insert(0, "tests/support")
        from attention_layers import LAYERS as GRID

        sizes = {"dim": 8, "depth": 2, "heads": 2, "mlp_dim": 8, "classes": 3}
        network = ViT(image_size=4, patch_size=2, channels=1, attention="uniform", **sizes)
        layers = [block.attention for block in network.blocks]
        print("python", [type(layer) is Uniform and layer.gate.item() for layer in layers])
        print("command", with_layer(PRESETS["digits/softmax"], "uniform").layer.gate)
        print("demo", "uniform" in SHOWN)
        print("bench", type(suites.CASES["a toy"](8, 2)) is Uniform)
        print("measured", any("a toy" in names for names, _ in suites.SHAPES["layers"]))
        print("grid", type(GRID["uniform"](8, 2)) is Uniform)

        from probattn.experiments.cli.main import main

        for command in ("train", "demo"):
            print("end")
            sys.argv[1:] = [command, "--help"]
            try:
                main()
            except SystemExit:
                pass
        """
    )
    known, *helps = shown.split("end\n")
    assert ["uniform" in text for text in helps] == [True, True]
    assert known.splitlines() == [
        "python [0.25, 0.25]",
        "command 0.25",
        "demo True",
        "bench True",
        "measured True",
        "grid True",
    ]


@pytest.mark.slow
def test_the_demo_trains_a_layer_that_has_a_record_alone(tmp_path):
    program = "from probattn.experiments.cli.main import main\nmain()"
    layers = ("--layers", "softmax,uniform", "--epochs", "3", "--workers", "1")
    run(program, "demo", *layers, "--out", str(tmp_path / "demo"))
    assert "uniform" in (tmp_path / "demo" / "comparison.md").read_text()
