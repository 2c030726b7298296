"""C that is built where it runs, and what of it several backends share."""
