"""The processes that measure, and what is sent between them."""
