"""Network architectures, and alternative last layers."""
