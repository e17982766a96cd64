"""What is special to processors: compiled kernels, oneDNN's products, memory. `inference` is the door."""
