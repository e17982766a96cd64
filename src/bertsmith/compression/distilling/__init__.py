"""Knowledge distillation: a small student is trained on the outputs of a larger teacher.

In: a recipe that names a teacher and texts. Out: a run folder with the student and its figures. distil.py has
the steps of every distillation, recipes.py the settings. `tasks` is for teachers that are fine-tuned models
or files of answers, `encoders` for encoders and embedding models, which teach on raw text. Read first:
distil.py, then the distiller.py of one of the two.
"""
