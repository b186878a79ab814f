"""What every room of the application may import: errors, settings, event logs, keys and small types."""
