"""Fine-tuning and features as estimators of scikit-learn."""
