"""What all services share: requests, outputs, errors, hashes."""
