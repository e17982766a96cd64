"""The wire formats of the service's clients: one file a protocol, its routes and its errors. Read routing.py
first, which has what they share, then ours.py, the smallest.

In: a body as somebody's client sends it. Out: a request for service.py, and its answer, or a refusal, in that
client's own shape. A new protocol is a file with a `Protocol`, which app.py's PROTOCOLS has, or a user's file
(docs/add-a-route.md).

systemone.py and decisions.py both ask typed questions, which questions.py answers; hugging_face.py has the
routes of pipelines.py.
"""
