"""Training, whatever is trained: the one loop, what it runs on, and what a run leaves in its folder.

In: a recipe (recipe.py for pre-training, finetune_recipe.py; settings.py has what both share). Out: a run's
folder, with its recipe, log, checkpoints, model and report. Begin with loop.py: batches in, steps out, to
the bit the same after a kill. It takes a step's gradient from gradients.py, steps by optimizer.py and saves
by checkpoint.py; machine.py and sharding.py say on what, observer.py tells the log and who watches. run.py
is a run at work, in the folder that run_folder.py opens, and pretrain.py the first story told in one, from
inputs.py over streams.py to pretraining_report.py; finetuning/ tells that of labelled files.
"""
