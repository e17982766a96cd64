"""A model as a graph for ONNX Runtime or OpenVINO, written only where it answers as the model does."""
