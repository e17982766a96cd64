"""A model as a graph for ONNX Runtime or OpenVINO, written only where it answers as the model does.

In: a model folder and a file of the user's own rows. Out: a folder that other programs open, or a refusal
that says by how much the graph is wrong. Read export.py first: padded twin (padded.py) → graph (graph.py) →
int8 (int8.py) → gate (gate.py, by gate_file.py and comparison.py) → folder (artefact.py). source.py opens the
model.
"""
