"""The viewer of audits: a static site of classes and their images, which opens from disk without a server."""
