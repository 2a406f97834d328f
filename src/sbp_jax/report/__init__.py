"""Plans and runs made visible."""
