"""What builds, documents and deploys Quire; nothing of it is installed."""
