"""The protocols that the service speaks: each file has the routes and errors of one API. Read routing.py
first, which has what they share, then ours.py, the smallest.

A route turns a body, as that API's clients send it, into a request for service.py, and its answer or refusal
into the response that those clients expect. A new protocol is a file with a `Protocol` that is listed in
app.py's PROTOCOLS, or a user's own file (docs/add-a-format-or-route.md).

systemone.py and decisions.py are two APIs for typed questions, which questions.py answers; hugging_face.py
has the routes for the functions in pipelines.py.
"""
