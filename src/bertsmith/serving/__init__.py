"""Models as an HTTP service: every task, the routes that clients speak already, one queue."""
