"""Fine-tune a Hugging Face encoder with KEP-SVGP in its last layer by Hugging Face's Trainer.

Needs ``pip install 'probattn[huggingface]' 'transformers[torch]'``. With a pretrained encoder, pass
its folder or name: ``python finetune_text_classifier.py sentence-transformers/all-MiniLM-L6-v2``.
Without one, a tiny BERT that knows nothing is trained on docstrings of NumPy and scikit-learn: from
which library is this sentence?
"""

import re
import sys
import tempfile
from pathlib import Path

import numpy
import sklearn
import torch
import transformers
from tokenizers import BertWordPieceTokenizer

from probattn import KEPSVGPAttention, draws, guides
from probattn.inference import ELBOLoss, predict, unpack_batch
from probattn.models import Classifier, PretrainedClassifier


class TrainerModel(torch.nn.Module):
    """Model and guide as Hugging Face's Trainer takes them: the forward pass returns the loss."""

    accepts_loss_kwargs = (
        False  # the loss is a mean over the batch, so that accumulated losses are averaged
    )

    def __init__(self, model, guide):
        super().__init__()
        self.loss = ELBOLoss(model, guide)

    def forward(self, labels=None, **fields):
        """Return −ELBO/N in training, else the log of the mean probabilities, with the loss of the
        predictive."""
        batch = unpack_batch(
            {**fields, "labels": labels}
        )  # refuses fields that the network would not see
        model, guide = self.loss.model, self.loss.guide
        if self.training:
            with draws("example"):
                return {"loss": self.loss(*batch.arguments()) / model.num_data}
        prediction = predict(model, guide, [batch], num_samples=10)
        return {"loss": -prediction.log_prob(batch.y).mean(), "logits": prediction.log_probs}


torch.manual_seed(0)
rows = []
for label, package in enumerate((numpy, sklearn)):
    files = sorted(Path(package.__path__[0]).rglob("*.py"))
    found = {
        match
        for file in files
        for match in re.findall(r':\n +r?"""(.+)\n', file.read_text(errors="ignore"))
    }
    rows += [(" ".join(text.split()), label) for text in sorted(found)[:900]]
rows = [rows[i] for i in torch.randperm(len(rows)).tolist()]

folder = Path(tempfile.mkdtemp())
if len(sys.argv) > 1:
    tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
    encoder = transformers.AutoModel.from_pretrained(sys.argv[1])
else:
    words = BertWordPieceTokenizer(lowercase=True)
    words.train_from_iterator([text for text, _ in rows], vocab_size=2000, show_progress=False)
    words.save_model(str(folder))
    tokenizer = transformers.BertTokenizerFast.from_pretrained(folder)
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    encoder = transformers.BertModel(
        transformers.BertConfig(vocab_size=2000, max_position_embeddings=32, **sizes)
    )

data = [
    dict(tokenizer(text, truncation=True, max_length=24)) | {"labels": label}
    for text, label in rows
]
train, test = data[:-300], data[-300:]

attention = KEPSVGPAttention.partial(rank=4, mean="softmax")
network = PretrainedClassifier(encoder, classes=2, attention=attention, last=1)
model = Classifier(network, num_data=len(train))
module = TrainerModel(model, guides.for_model(model))
trainer = transformers.Trainer(
    model=module,
    args=transformers.TrainingArguments(
        str(folder),
        num_train_epochs=2,
        learning_rate=3e-3,
        weight_decay=0.0,  # KL and prior regularise the guide
        # The model gets all fields, and refuses those that it does not know.
        remove_unused_columns=False,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=100,
        dataloader_pin_memory=torch.cuda.is_available(),  # without a GPU, True only warns
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    ),
    train_dataset=train,
    eval_dataset=test,
    data_collator=transformers.DataCollatorWithPadding(tokenizer),
    compute_metrics=lambda given: {
        "accuracy": float((given.predictions.argmax(-1) == given.label_ids).mean())
    },
)
trainer.train()
results = trainer.evaluate()
print(
    f"test accuracy {results['eval_accuracy']:.1%}, NLL {results['eval_loss']:.3f} nats per "
    "sentence"
)
