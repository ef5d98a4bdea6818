"""Fine-tune a Hugging Face encoder with KEP-SVGP in its last layer by Hugging Face's Trainer.

Needs ``pip install 'probattn[huggingface]' 'transformers[torch]'``. With a pretrained encoder, pass its folder or name:
``python finetune_text_classifier.py sentence-transformers/all-MiniLM-L6-v2``. Without one, a tiny BERT that knows
nothing is trained on docstrings of NumPy and scikit-learn: from which library is this sentence?
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

from probattn import KEPSVGPAttention, guides
from probattn.inference import TrainOptions
from probattn.inference.integrations.hugging_face import TrainerModel
from probattn.models import Classifier, PretrainedClassifier

torch.manual_seed(0)
rows = []
for label, package in enumerate((numpy, sklearn)):
    files = sorted(Path(package.__path__[0]).rglob("*.py"))
    found = {match for file in files for match in re.findall(r':\n +r?"""(.+)\n', file.read_text(errors="ignore"))}
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
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    encoder = transformers.BertModel(transformers.BertConfig(vocab_size=2000, max_position_embeddings=32, **sizes))

data = [dict(tokenizer(text, truncation=True, max_length=24)) | {"labels": label} for text, label in rows]
train, test = data[:-300], data[-300:]

attention = KEPSVGPAttention.partial(rank=4, mean="softmax")
network = PretrainedClassifier(encoder, classes=2, attention=attention, last=1)
model = Classifier(network, num_data=len(train))
module = TrainerModel(model, guides.for_model(model), options=TrainOptions(lr=3e-3))
trainer = transformers.Trainer(
    model=module,
    args=transformers.TrainingArguments(
        str(folder),
        num_train_epochs=2,
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
    optimizers=(module.make_optimizer(), None),
    compute_metrics=lambda given: {"accuracy": float((given.predictions.argmax(-1) == given.label_ids).mean())},
)
trainer.train()
results = trainer.evaluate()
print(f"test accuracy {results['eval_accuracy']:.1%}, NLL {results['eval_loss']:.3f} nats per sentence")
