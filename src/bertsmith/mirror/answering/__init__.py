"""Answering in the LLM's place, as far as the evidence goes.

In: calls that may be mirrored (../relay.py) and what became of them. Out: whose turn it is, and which mode
each version of a site is in.

    service.py → open_students.py → ledger.py → reconciler.py → judging.py → stage_store.py

Read stages.py first. audits.py puts answered calls to the LLM too; training_process.py starts what learns;
accounts.py says what answering has saved and cost.
"""
