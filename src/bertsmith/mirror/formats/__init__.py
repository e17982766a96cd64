"""The wire formats of providers: one file and one class for each, as wire_format.py demands. registry.py
lists them.

A format reads requests, answers and streams into the records of ../call.py, and writes a student's answer as
the provider would. Read wire_format.py first, then openai_chat.py; reading.py has what several formats share.
"""
