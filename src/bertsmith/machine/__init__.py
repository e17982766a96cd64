"""What this machine has: processors, memory, GPUs, and what a container grants of them."""
