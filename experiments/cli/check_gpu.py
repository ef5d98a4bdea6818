"""``probattn check-gpu``: does this library compute the right numbers on this machine's GPU?"""

from rich.table import Table

from probattn.experiments.cli.terminal import fail, interruptible, show_table


def check_gpu() -> None:
    """Check a GPU: each layer against the CPU, training with and without bf16 and compilation, a prediction."""
    with interruptible("nothing is kept"):
        import torch

        from probattn.experiments.studies.gpu_check import checks

        if not torch.cuda.is_available():
            fail("PyTorch finds no GPU here, so there is nothing to check")
        found = list(checks())
        table = Table("check", "result", "", title=torch.cuda.get_device_name())
        for each in found:
            table.add_row(each.name, each.result, "ok" if each.passed else "FAILED")
        show_table(table)
        if not all(each.passed for each in found):
            fail("some checks failed")
