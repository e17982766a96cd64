"""One file a provider's wire format, each a class that fulfils wire_format.py; registry.py lists them.

In: a request's body, an answer's body or the events of a stream. Out: what was asked and answered
(../call.py), and the bytes of a student's answer. Read wire_format.py first, then openai_chat.py; reading.py
has the parts that several look for.
"""
