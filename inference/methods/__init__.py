"""Methods that turn a trained model into a predictor: ``data -> Prediction``. They compose."""
