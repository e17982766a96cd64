"""A mirror in front of an LLM: its calls are relayed, recorded, learned from, and answered in its place.

In: an application's requests, in any wire format of formats/. Out: the LLM's answers, the same bytes, or a
student's where one is proven to agree; and a store of calls. As a call lives:

    relay.py → recorder.py → store.py → learning/ → student.py → answering/ → audits

Read call.py, then formats/wire_format.py, then relay.py. app.py is `bertsmith mirror serve`, guard/ a relay
of its own that allows, reviews or blocks, page/ what a person sees; importing.py reads calls logged
elsewhere.
"""
