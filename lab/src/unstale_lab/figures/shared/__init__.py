"""Parts that several figures share."""
