"""A smaller model learns what a larger one says.

In: a recipe that names a teacher and texts. Out: a run's folder with the student and what it keeps. distil.py
tells the story of any distillation, recipes.py has its settings. What differs between kinds of teachers is
answered by the kind: `tasks` is for fine-tuned models and files of answers, `encoders` for encoders and
embedding models, on raw text. Read first: distil.py, then the lesson.py of a kind.
"""
