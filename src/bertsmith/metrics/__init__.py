"""What predictions are worth: scores, what they are compared with, how far to trust them. No model here.

In: arrays and texts of gold and of predictions. Out: figures by name, baselines, thresholds, intervals.
Read scores.py first. ranking_scores.py scores searches, entities.py spans of words, in whatever scheme
their tags are. baselines.py has what a score must beat; calibration.py makes probabilities that hold of
scores, and thresholds.py says from which one to answer. guarantees/ has what may be claimed of a model that
answers in a teacher's place.
"""
