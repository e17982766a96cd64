"""Fine-tuning: trains a model on labelled files, once for each seed, and measures the best beside baselines.

In: labelled files (read and checked by labelled_data.py), an encoder, and a FinetuneRecipe. Out: a folder
with the model, results.json and report.html. Read finetune.py first: it tells a run from start to end.
finetune_session.py holds what all trainings of a run share. methods.py has the ways to train on labelled
rows, choosing.py compares them by cross-validation on few rows, and effort.py counts the work they take.
task_run.py is one training, restarts.py runs one for each seed. measuring.py measures the model; results.py,
figures.py and report.py record and show what it measured. tune.py searches for settings by many trainings,
and adaptation.py pre-trains the encoder further on unlabelled texts first.
"""
