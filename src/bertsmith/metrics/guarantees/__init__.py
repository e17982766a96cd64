"""What may be claimed of a model that answers in a teacher's place, and how sure the claim is.

In: losses and confidences of calls that nothing else was chosen by; later audits, one by one. Out: thresholds
with a proven risk, intervals, decisions, forecasts, each with the probability that it fails. Every method is
exact for any number of calls and names its source.

Read learn_then_test.py first (before service), then growing_proof.py (while calls come in) and audit.py (in
service). bounds.py has the intervals and p-values below them; sample_size.py plans a proof; power_law.py and
teacher_noise.py say what a claim needs and what it can reach at best.
"""
