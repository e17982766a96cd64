"""Fine-tuning: labelled files → a run of each seed → the best model, measured beside its baselines.

In: labelled files, read and checked by labelled_data.py, an encoder, and a FinetuneRecipe. Out: a folder
with the model, results.json and report.html. Begin with finetune.py, the story of a run. What all its
trainings share is in finetune_session.py; methods.py are the ways in which rows become a model, between
which choosing.py decides on few rows, within the work that effort.py counts; task_run.py is one training,
restarts.py that of each seed; measuring.py finds out the results.py, figures.py and report.py show them.
tune.py searches for settings by many such trainings, adaptation.py first teaches the encoder the domain.
"""
