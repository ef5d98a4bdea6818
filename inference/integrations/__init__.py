"""Training by other libraries' trainers: a ``LightningModule``, and a model for Hugging Face's ``Trainer``.

Imports ``training`` and lower levels. Modules are imported by name, since each needs an optional library."""
