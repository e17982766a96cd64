"""The routes that clients speak: one file a protocol, each with its errors."""
