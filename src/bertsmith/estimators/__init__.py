"""scikit-learn estimators over fine-tuning and features."""
