"""Images and files in requests: their bytes, their URLs, and the errors about them."""
