"""The SDK, driven through real pipes."""
