"""``probattn bench``: benchmarks of time and memory."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from probattn.experiments.cli.terminal import COUNT, SEED, SettingChanges, check_file, console, say, show_table

app = typer.Typer(help="Benchmark time and memory, as ratios within one run.", no_args_is_help=True)
Rounds = Annotated[int, typer.Option(**COUNT, help="Number of timed rounds of all cases.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Seed = Annotated[int, typer.Option(**SEED, help="Seed of weights, inputs and posterior samples.")]
Json = Annotated[Path | None, typer.Option("--json", help="Also write the measurements to this file.")]


@app.command("layers")
def layers(rounds: Rounds = 11, device: Device = "cpu", seed: Seed = 0, json: Json = None) -> None:
    """Benchmark forward and backward of the layers, relative to scaled-dot-product attention."""
    from probattn.experiments.bench import layers

    tables = (layers.kep_svgp, layers.gaussian_processes)
    _measure([partial(each, rounds=rounds) for each in tables], device, seed, json)


@app.command("train")
def train(
    rounds: Annotated[int, typer.Option(**COUNT, help="Number of timed rounds of the 7-layer ViT.")] = 7,
    device: Device = "cpu",
    images: Annotated[
        int | None,
        typer.Option(
            min=0, max=COUNT["max"], help="Images of an epoch; default 45000 on a GPU, 512 on a CPU; 0: no epochs."
        ),
    ] = None,
    preset: Annotated[
        str, typer.Option(help="Preset of the epochs, compared with its softmax baseline.")
    ] = "kep-svgp/cifar10",
    set_: SettingChanges = None,
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """Benchmark training steps, by SVI and by a loop without Pyro, and epochs, relative to softmax attention."""
    from probattn.experiments.bench import epoch, train

    both = epoch.twins(preset, set_ or (), device=device)
    tables = [partial(train.cifar10, rounds=rounds), partial(train.small, rounds=5 * rounds)]
    if images != 0:
        tables.append(partial(epoch.epoch, rounds=2, both=both, images=images))
    _measure(tables, device, seed, json)


@app.command("predict")
def prediction(rounds: Rounds = 7, device: Device = "cpu", seed: Seed = 0, json: Json = None) -> None:
    """Benchmark prediction with ten posterior samples, relative to a deterministic forward pass of the softmax ViT."""
    from probattn.experiments.bench import predict

    _measure([partial(predict.ten_samples, rounds=rounds)], device, seed, json)


@app.command("scaling")
def scaling(
    rounds: Rounds = 5,
    device: Device = "cpu",
    sizes: Annotated[str, typer.Option(help="Comma-separated numbers of tokens.")] = "256,1024,4096,16384",
    limit: Annotated[float, typer.Option(help="Seconds; steps that would take longer are skipped.")] = 10.0,
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """Benchmark time and peak memory over the number of tokens, relative to softmax attention at each."""
    from probattn.experiments.bench import scaling

    words = sizes.split(",")
    if not all(word.strip().isdecimal() and len(word) < 10 and int(word) for word in words):
        raise ValueError(f"--sizes takes comma-separated positive integers, got {sizes!r}")
    if not limit > 0:
        raise ValueError(f"--limit takes a positive number of seconds, got {limit}")
    numbers = sorted({int(word) for word in words})
    _measure([partial(scaling.over_tokens, rounds=rounds, limit=limit, sizes=numbers)], device, seed, json)


def _measure(tables: list[Callable[..., dict[str, Any]]], device: str, seed: int, json: Path | None) -> None:
    """Measure and print one table after the other, then print the environment."""
    import torch

    from probattn.experiments.bench.meter import Meter
    from probattn.experiments.bench.table import table
    from probattn.experiments.data.sealed_files import write_json

    check_file(json, option="--json")
    meter = Meter(device)
    setting, results = meter.setting(seed), []
    for make in tables:
        torch.manual_seed(seed)
        with console.status("measuring"):
            results.append(make(meter))
        show_table(table(results[-1]))
        if json is not None:
            write_json(json, {"tables": results, **setting})
    rates = ", ".join(f"{dtype} {rate / 1e9:.0f} GFLOP/s" for dtype, rate in meter.rates.items())
    say(f"ratios: to the first case of a section; share: of the rate of a matrix product ({rates}); seed {seed}")
    say(", ".join(f"{key} {value}" for key, value in setting["environment"].items()))
