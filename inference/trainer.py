"""One training run: modules, optimiser and counters, which together are what a checkpoint holds."""

import copy
import math
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from probattn.functional.linalg import NumericalError
from probattn.handlers import alpha, draws, kl_weight
from probattn.inference import checkpoint, rng
from probattn.inference.diagnosis import NonFiniteError, find_non_finite, refuses_nan
from probattn.inference.elbo import ELBOS
from probattn.inference.logs import RunLog
from probattn.inference.options import TrainOptions
from probattn.inference.progress import TrainProgress
from probattn.inference.schedule import SCHEDULES, annealed, between
from probattn.inference.validation import is_better, validate


class Trainer:
    """The state of a run behind :func:`~probattn.inference.fit`, whose arguments these are."""

    def __init__(
        self,
        model: nn.Module,
        guide: nn.Module,
        train: Iterable,
        valid: Iterable | None,
        *,
        settings: TrainOptions,
        folder: Path | None,
    ) -> None:
        self.model, self.guide, self.train, self.valid = model, guide, train, valid
        self.settings, self.folder = settings, folder
        self.epoch = self.step = self.best_epoch = 0
        self.best_value: float | None = None
        self.best_weights: dict[str, dict] = {}
        self.elbo = ELBOS[settings.elbo]()
        groups = [
            {"params": list(model.parameters()), "weight_decay": settings.weight_decay},
            {"params": list(guide.parameters()), "weight_decay": 0.0},
        ]
        optimizer = torch.optim.Adam([group for group in groups if group["params"]], lr=settings.lr, fused=True)
        self.steps = settings.epochs * len(train)
        warmup = round(settings.warmup_epochs * len(train))
        schedule = SCHEDULES[settings.schedule]
        self.scheduler = schedule(optimizer, steps=self.steps, warmup=warmup, min_lr=settings.min_lr)
        self.fabric = Fabric(accelerator=settings.accelerator, devices=settings.devices)
        if self.fabric.world_size != 1:
            raise ValueError(f"fit trains on one device, devices={settings.devices!r} come to {self.fabric.world_size}")
        self.module, self.optimizer = self.fabric.setup(self.elbo(model, guide), optimizer)

    def resume(self) -> None:
        """Goes back to the end of the last finished epoch, as ``last.pt`` holds it."""
        path = self.folder / "last.pt"
        content = checkpoint.read(path)
        state = content["extra"]
        differences = self.settings.differences(state["options"])
        if differences:
            raise checkpoint.CheckpointError(
                f"{path} was trained with other options; resume with the same, or choose another folder:\n  "
                + "\n  ".join(differences)
            )
        checkpoint.restore(content, self.model, self.guide, path=path)
        self.epoch, self.step = state["epoch"], state["step"]
        self.best_epoch, self.best_value = state["best_epoch"], state["best_value"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        rng.restore(state["random"], self.train)

    def run(self, log: RunLog, progress: TrainProgress) -> None:
        """Trains to the last epoch, or until patience ends."""
        while self.epoch < self.settings.epochs and not self._out_of_patience():
            started = time.perf_counter()
            values = {"train_loss": self._train_epoch(log, progress)}
            self._refuse_non_finite((), len(self.train) - 1, "the gradient was not finite")
            self.epoch += 1
            if self.valid is not None:
                metrics = self._validate()
                values |= {f"valid/{name}": value for name, value in metrics.items()}
            self._keep_if_best(values)
            seconds = time.perf_counter() - started
            log.write("epoch", self.step, epoch=self.epoch, seconds=seconds, **values)
            progress.epoch_done(self.epoch, values)
            self._save_last()

    def load_best(self) -> None:
        """Puts the best epoch's weights into model and guide."""
        if self.folder is not None and (self.folder / "best.pt").exists():
            checkpoint.load(self.folder / "best.pt", self.model, self.guide)
        elif self.best_weights:
            self.model.load_state_dict(self.best_weights["model"])
            self.guide.load_state_dict(self.best_weights["guide"])

    def _train_epoch(self, log: RunLog, progress: TrainProgress) -> float:
        self.module.train()
        total = examples = 0
        for number, batch in enumerate(self.train):
            batch = self.fabric.to_device(tuple(batch))
            loss = self._loss(batch, number)
            # Before the optimiser's step, which changes the parameters that the closed-form KL reads.
            logged = self.step == 0 or (self.step + 1) % self.settings.log_every == 0
            terms = self.elbo.terms() if logged else {}
            self.optimizer.zero_grad()
            self.fabric.backward(loss)
            if self.settings.clip_norm is not None:
                self._clip(number)
            self.optimizer.step()
            lr = self.scheduler.get_last_lr()[0]
            self.scheduler.step()
            self.step += 1
            total, examples = total + loss.item() * len(batch[0]), examples + len(batch[0])
            if logged:
                terms = {name: value / self.model.num_data for name, value in terms.items()}
                log.write("step", self.step, epoch=self.epoch + 1, loss=loss.item(), lr=lr, **terms)
            progress.step_done()
        return total / examples

    def _loss(self, batch: tuple, number: int) -> Tensor:
        """−ELBO/N of a batch, or an error that names what is not finite."""
        anneal = round(self.settings.kl_anneal_epochs * len(self.train))
        weights = self.settings.kl_weight, self.settings.local_kl_weight
        weight, local = (annealed(each, step=self.step, steps=anneal) for each in weights)
        start, end = self.settings.alpha_start, self.settings.alpha_end
        regulariser = between(start, end, step=self.step, steps=self.steps)
        self.elbo.traces = ()
        try:
            with ExitStack() as handlers:
                if (weight, local) != (1, 1):
                    handlers.enter_context(kl_weight(weight, local=local))
                if regulariser != 1:
                    handlers.enter_context(alpha(regulariser))
                if self.settings.posterior_draws == "example":
                    handlers.enter_context(draws("example"))
                if self.settings.particles > 1:
                    handlers.enter_context(draws(self.settings.particles))
                # Not Fabric's own precision: it would round the labels as well.
                half = self.settings.precision == "bf16-mixed"
                handlers.enter_context(torch.autocast(self.fabric.device.type, torch.bfloat16, enabled=half))
                loss = self.module(*batch) / self.model.num_data
        except (ValueError, RuntimeError, NumericalError) as error:
            symptom = str(error).splitlines()[0]
            self._refuse_non_finite(batch, number, symptom)
            if isinstance(error, NumericalError):
                raise NonFiniteError(f"epoch {self.epoch + 1}, batch {number}: {error}") from error
            if refuses_nan(error):
                raise NonFiniteError(f"epoch {self.epoch + 1}, batch {number}: NaN; lower lr ({symptom})") from error
            raise
        if not math.isfinite(loss.item()):
            self._refuse_non_finite(batch, number, "the loss is not finite")
            raise NonFiniteError(f"epoch {self.epoch + 1}, batch {number}: the loss is {loss.item()}; lower lr")
        return loss

    def _clip(self, number: int) -> None:
        try:
            self.fabric.clip_gradients(self.module, self.optimizer, max_norm=self.settings.clip_norm)
        except RuntimeError as error:
            parts = (("model", self.model), ("guide", self.guide))
            broken = [
                f"the gradient of {name} of the {part}"
                for part, module in parts
                for name, parameter in module.named_parameters()
                if parameter.grad is not None and not parameter.grad.isfinite().all()
            ]
            source = broken[0] if broken else "the gradient's norm"
            raise NonFiniteError(f"epoch {self.epoch + 1}, batch {number}: NaN or Inf in {source}") from error

    def _refuse_non_finite(self, batch: tuple, number: int, symptom: str) -> None:
        source = find_non_finite(batch, {"model": self.model, "guide": self.guide}, self.elbo.traces)
        if source is not None:
            raise NonFiniteError(f"epoch {self.epoch + 1}, batch {number}: NaN or Inf in {source} ({symptom})")

    def _validate(self) -> dict[str, float]:
        try:
            return validate(self.model, self.guide, self.valid, num_draws=self.settings.num_draws)
        except NumericalError as error:
            raise NonFiniteError(f"epoch {self.epoch}, validation: {error}") from error

    def _keep_if_best(self, values: dict[str, float]) -> None:
        monitor = self.settings.monitor or ("accuracy" if "valid/accuracy" in values else "log_prob")
        value = values.get(f"valid/{monitor}")
        if self.valid is not None and value is None:
            known = ", ".join(name.removeprefix("valid/") for name in values if name.startswith("valid/"))
            raise ValueError(f"monitor {monitor!r} is no metric of this model; choose one of {known}")
        if value is not None and not is_better(monitor, value, self.best_value):
            return
        self.best_epoch, self.best_value = self.epoch, value
        if self.folder is not None:
            checkpoint.save(self.folder / "best.pt", self.model, self.guide, epoch=self.epoch, value=value)
        else:
            self.best_weights = copy.deepcopy({"model": self.model.state_dict(), "guide": self.guide.state_dict()})

    def _save_last(self) -> None:
        if self.folder is None:
            return
        checkpoint.save(
            self.folder / "last.pt",
            self.model,
            self.guide,
            epoch=self.epoch,
            step=self.step,
            best_epoch=self.best_epoch,
            best_value=self.best_value,
            optimizer=self.optimizer.state_dict(),
            scheduler=self.scheduler.state_dict(),
            options=asdict(self.settings),
            random=rng.capture(self.train),
        )

    def _out_of_patience(self) -> bool:
        patience = self.settings.patience
        return patience is not None and self.epoch - self.best_epoch >= patience
