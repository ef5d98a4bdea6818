"""Hugging Face's trainer takes the steps of fit."""

import pytest
import torch
from elbos import TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from small_fit import build, data, short, weights
from torch.optim.lr_scheduler import ConstantLR
from torch.utils.data import DataLoader

from probattn.inference import Callback, TrainOptions, fit
from probattn.inference.integrations.hugging_face import TrainerModel

OPTIONS = {"lr": 0.02, "weight_decay": 0.1, "guide_lr": 0.05, "kl_weight": 0.5, "num_samples": 3}


class Seeded(Callback):
    """The same posterior samples in each training step, whatever the trainer draws in between."""

    def on_train_epoch_start(self, trainer):
        torch.manual_seed(trainer.step)

    def on_train_step_end(self, trainer, outputs):
        torch.manual_seed(trainer.step)


class Columns(torch.utils.data.Dataset):
    """The data in Hugging Face's form: a dict of columns for each example."""

    def __len__(self):
        return len(data())

    def __getitem__(self, index):
        x, y = data()[index]
        return {"inputs_embeds": x, "labels": y, "idx": index}


def trainer(module, tmp_path, **options):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Seed(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            torch.manual_seed(state.global_step)

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *args):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    few = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True, "max_grad_norm": 0.0}
    few |= {"per_device_eval_batch_size": 4, "lr_scheduler_type": "constant", "logging_strategy": "no"}
    arguments = transformers.TrainingArguments(str(tmp_path), **few | options)
    return InOrder(
        model=module,
        args=arguments,
        train_dataset=Columns(),
        eval_dataset=Columns(),
        callbacks=[Seed()],
        optimizers=(module.make_optimizer(), None),
        compute_metrics=lambda given: {"accuracy": (given.predictions.argmax(-1) == given.label_ids).mean()},
    )


def test_its_losses_and_weights_are_those_of_fit(tmp_path):
    model, guide, *_ = build()
    fit_options = short(epochs=2, **OPTIONS)
    constant = {"scheduler": lambda optimizer: ConstantLR(optimizer, 1.0), "callbacks": [Seeded()]}
    history = fit(model, guide, list(DataLoader(data(), batch_size=3)), **constant, **fit_options)
    expected = weights(model, guide)
    model, guide, *_ = build()
    module, losses = TrainerModel(model, guide, options=TrainOptions(**OPTIONS)), []
    module.register_forward_hook(lambda _, args, outputs: losses.append(outputs["loss"].item()))
    trainer(module, tmp_path, num_train_epochs=2, per_device_train_batch_size=3).train()
    assert losses == pytest.approx([step["loss"] for step in history.steps], rel=1e-6)
    for name, value in weights(model, guide).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-7, msg=name)


def test_accumulated_steps_average_the_losses_and_evaluation_has_the_predictive(tmp_path):
    """Two batches of four examples are one of eight: the posterior is a point."""
    found = []
    for size, number in ((8, 1), (4, 2)):
        model, guide, *_ = build(guide="delta")
        module = TrainerModel(model, guide, options=TrainOptions(**OPTIONS | {"num_samples": 1}))
        run = trainer(
            module, tmp_path, num_train_epochs=2, per_device_train_batch_size=size, gradient_accumulation_steps=number
        )
        run.train()
        found.append((weights(model, guide), run.evaluate()))
    (whole, metrics), (parts, _) = found
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-3, atol=1e-5, msg=name)
    assert {"eval_loss", "eval_accuracy"} <= metrics.keys()
    model, guide, *_ = build(guide="delta")
    model.load_state_dict({name[2:]: value for name, value in parts.items() if name[0] == "0"})
    guide.load_state_dict({name[2:]: value for name, value in parts.items() if name[0] == "1"})
    x, y = data().tensors
    module = TrainerModel(model, guide).eval()
    outputs = module(inputs_embeds=x, labels=y)
    probs = outputs["logits"].exp()
    torch.testing.assert_close(probs.sum(-1), torch.ones(8))
    torch.testing.assert_close(outputs["loss"], torch.nn.functional.nll_loss(outputs["logits"], y))
    assert outputs["loss"].item() == pytest.approx(metrics["eval_loss"], rel=1e-3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kl_anneal_epochs": 2, "seed": 3}, "does not follow the options seed, kl_anneal_epochs"),
        ({"alpha_start": 0.0}, "does not know the trainer's step"),
        ({"guide_optimizer": "ngd"}, "two optimisers"),
    ],
)
def test_what_the_trainer_has_itself_or_cannot_do_is_refused(options, words):
    model, guide, *_ = build()
    with pytest.raises(ValueError, match=words):
        TrainerModel(model, guide, options=TrainOptions(**options))


def test_a_guide_without_parameters_yet_is_refused():
    model, *_ = build()
    guide = AutoNormal(model)
    with pytest.raises(ValueError, match="exist after its first run"):
        TrainerModel(model, guide)
    TraceMeanField_ELBO()(model, guide)(*data().tensors)
    TrainerModel(model, guide)


@pytest.mark.parametrize(
    "given", [{"labels": 1}, {"inputs_embeds": 0}, {"input_ids": 0, "inputs_embeds": 0, "labels": 1}]
)
def test_batches_without_inputs_or_labels_are_refused(given):
    model, guide, *_ = build()
    columns = {name: data().tensors[part] for name, part in given.items()}
    with pytest.raises(ValueError, match="labels and one of input_ids, pixel_values"):
        TrainerModel(model, guide)(**columns)
