"""Labels that another trainer made, beside the conversations that they were made from."""
