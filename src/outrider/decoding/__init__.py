"""The decoding loop: requests in row slots (continuous batching), one step after another, tokens out."""
